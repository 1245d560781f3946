"""What the adviser measures and what comes of it. Without torch."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic import TypeAdapter

from specdemo.events.trace import Trace

Ended = Literal["running", "clear", "all", "budget", "interrupted", "failed"]
SCHEMA = "specdemo.advice/1"
ALL = "all"  # the kind of work that stands for all that was measured


@dataclass(frozen=True)
class Contender:
    """What can draft. name: as tables have it, another one for each. draft_with: in METHODS; "none" for the
    target alone. drafter, drafter_kind: as in PairInfo, of a method that needs the drafter. at_once: whether
    a draft takes as long whatever its length. longest: the most tokens of a draft; None: no such limit."""

    name: str
    draft_with: str
    drafter: str | None = None
    drafter_kind: str | None = None
    at_once: bool = False
    longest: int | None = None


ALONE = Contender("none", "none")


@dataclass(frozen=True)
class Setting:
    """A contender with a draft length; 0 is the target alone."""

    contender: str
    gamma: int


PLAIN = Setting(ALONE.name, 0)


@dataclass(frozen=True)
class Sample:
    """One text. prompt: its number among those of its work. The times are of all rounds together.
    drafted_at[i], accepted_at[i]: in how many rounds more than i tokens were drafted, accepted."""

    work: str
    prompt: int
    setting: Setting
    tokens: int
    rounds: int
    judged: int
    draft_ms: float
    verify_ms: float
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @property
    def ms(self) -> float:
        return self.draft_ms + self.verify_ms


def sample_of(work: str, prompt: int, setting: Setting, trace: Trace) -> Sample:
    """The sample of a run that has ended, of an engine that tells the times of drafting and verifying."""
    stats = trace.stats
    assert stats.draft_ms is not None and stats.verify_ms is not None, "it was run here"
    accepted = [sum(token.fate == "accepted" for token in one.draft) for one in trace.rounds]
    return Sample(
        work,
        prompt,
        setting,
        tokens=stats.tokens,
        rounds=stats.rounds,
        judged=stats.accepted + (stats.rejected or 0),
        draft_ms=stats.draft_ms,
        verify_ms=stats.verify_ms,
        drafted_at=_rounds_above([len(one.draft) for one in trace.rounds]),
        accepted_at=_rounds_above(accepted),
    )


def _rounds_above(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(length > place for length in lengths) for place in range(max(lengths, default=0)))


@dataclass(frozen=True)
class Sum:
    """Samples of one setting together, and the quotients that follow."""

    tokens: int
    rounds: int
    judged: int
    draft_ms: float
    verify_ms: float
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    @property
    def ms(self) -> float:
        return self.draft_ms + self.verify_ms

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    @property
    def ms_per_token(self) -> float:
        return self.ms / self.tokens

    @property
    def acceptance_rate(self) -> float | None:
        return sum(self.accepted_at) / self.judged if self.judged else None

    @property
    def drafted_per_round(self) -> float:
        return sum(self.drafted_at) / self.rounds


def summed(samples: Iterable[Sample]) -> Sum:
    """The sum; of at least one sample."""
    some = list(samples)
    columns = {
        name: sum(getattr(one, name) for one in some)
        for name in ("tokens", "rounds", "judged", "draft_ms", "verify_ms")
    }
    places = {name: _added([getattr(one, name) for one in some]) for name in ("drafted_at", "accepted_at")}
    return Sum(**columns, **places)


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(map(len, rows), default=0)
    return tuple(sum(row[place] for row in rows if place < len(row)) for place in range(longest))


@dataclass(frozen=True)
class CheckTime:
    """What a forward of the target over so many rows takes after a text of `context` tokens, verdict
    included: the median, and the 10th and 90th percentile, in ms."""

    context: int
    rows: int
    ms: float
    low_ms: float
    high_ms: float


def check_ms(times: Sequence[CheckTime], rows: float) -> float:
    """The time of a check, by straight lines between those that were measured and the last one's slope beyond
    them. times: of one context, by their rows, at least two."""
    for before, after in pairwise(times):
        if rows <= after.rows or after is times[-1]:
            share = (rows - before.rows) / (after.rows - before.rows)
            return max(before.ms + share * (after.ms - before.ms), 0.1 * before.ms)
    return times[0].ms


@dataclass(frozen=True)
class Recommendation:
    """What to set for a kind of work. draft_with "none": don't speculate; drafter and gamma are None then.
    speedup, interval: of the best setting that was measured, which `best` names, even where it does not pay;
    None where too little was measured. reason: in a sentence or two."""

    work: str
    draft_with: str
    drafter: str | None
    drafter_kind: str | None
    gamma: int | None
    speedup: float | None
    interval: tuple[float, float] | None
    reason: str
    best: Setting | None
    prompts: int  # on which it was measured


@dataclass(frozen=True)
class Measured:
    """All that was measured, and how, which is what a report keeps and what can be gone on with. params: what
    all texts were written with. prompts: how many there are of each kind of work. probes: the texts of which
    the estimates are; samples: those that were written in turns. ended: whether the answer is clear, or all
    prompts are used, or why it ended before."""

    target: str
    device: str
    device_name: str
    dtype: str | None
    versions: dict[str, str]
    date: str
    command: str
    params: dict[str, Any]
    works: tuple[str, ...]
    contenders: tuple[Contender, ...]
    prompts: dict[str, int]
    checks: tuple[CheckTime, ...] = ()
    probes: tuple[Sample, ...] = ()
    samples: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    ended: Ended = "running"


_CODEC = TypeAdapter(Measured)


def to_object(measured: Measured) -> dict[str, Any]:
    return {"schema": SCHEMA, **asdict(measured)}


def from_object(told: dict[str, Any]) -> Measured:
    """The inverse. ValueError for what is none."""
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        raise ValueError(f"has no measurement of {SCHEMA}")
    return _CODEC.validate_python({name: value for name, value in told.items() if name in _FIELDS})


_FIELDS = frozenset(Measured.__dataclass_fields__)
