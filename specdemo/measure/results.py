"""What the adviser measures and what comes of it. Without torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from specdemo.events import Stats
from specdemo.events.metrics import fresh, ratio
from specdemo.events.params import DraftTree
from specdemo.events.trace import Trace
from specdemo.measure.samples import TimedText, TimedTurn, timed_text

Ended = Literal["running", "clear", "all", "budget", "interrupted", "failed"]
SCHEMA = "specdemo.advice/1"
ALL = "all"  # the kind of work that stands for all that was measured
OWN = "own"  # that of one's own prompts


@dataclass(frozen=True)
class Contender:
    """What can draft. name: as tables have it, another one for each. draft_with: in METHODS; "none" for the
    target alone. drafter, drafter_kind: as in PairInfo, of a method that needs the drafter. at_once: whether
    a draft takes as long whatever its length. longest: the most tokens of a draft; None: no such limit. tree:
    what it drafts (Params.tree), in place of chains of any length; (): chains."""

    name: str
    draft_with: str
    drafter: str | None = None
    drafter_kind: str | None = None
    at_once: bool = False
    longest: int | None = None
    tree: DraftTree = ()


ALONE = Contender("none", "none")


@dataclass(frozen=True)
class Candidate:
    """A contender with a draft length; 0 of one that drafts a tree."""

    contender: str
    gamma: int


@dataclass(frozen=True)
class Sample:
    """One text. prompt: its number among those of its work. length: tokens, the prompt's included. drafted,
    accepted: tokens of each round. turns: in which it was timed beside plain rounds."""

    work: str
    prompt: int
    setting: Candidate
    length: int
    stats: Stats
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    turns: tuple[TimedTurn, ...]

    @property
    def timed(self) -> TimedText:
        return timed_text(self.stats, self.turns)


def sample_of(work: str, prompt: int, setting: Candidate, trace: Trace, turns: Sequence[TimedTurn]) -> Sample:
    drafted = tuple(len(one.draft) for one in trace.rounds)
    accepted = tuple(sum(token.fate == "accepted" for token in one.draft) for one in trace.rounds)
    length = len(trace.prompt_ids) + trace.stats.tokens
    return Sample(work, prompt, setting, length, trace.stats, drafted, accepted, tuple(turns))


@dataclass(frozen=True)
class Together:
    """Samples of one setting together; at least one, with a round each."""

    samples: tuple[Sample, ...]

    def _sum(self, name: str) -> float:
        return sum(getattr(one.stats, name) or 0 for one in self.samples)

    @property
    def tokens_per_round(self) -> float:
        return self._sum("tokens") / self._sum("rounds")

    @property
    def drafted_per_round(self) -> float:
        return self._sum("drafted") / self._sum("rounds")

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(self._sum("accepted"), self._sum("accepted") + self._sum("rejected"))

    @property
    def draft_cost(self) -> float:
        """What drafting takes in a round, in rounds of the target alone."""
        plain_ms = fmean(turn.plain_ms for one in self.samples for turn in one.turns)
        return self._sum("draft_ms") / self._sum("rounds") / plain_ms

    def share_above(self, what: Literal["drafted", "accepted"], places: int) -> list[float]:
        """The share of rounds with more than i such tokens, for i below `places`."""
        counts = [count for one in self.samples for count in getattr(one, what)]
        return [fmean(count > place for count in counts) for place in range(places)]


@dataclass(frozen=True)
class CheckTime:
    """What a forward of the target over so many rows takes after a text of `context` tokens, verdict
    included. ratio: relative to one row, which was timed right before or after; the median. low, high: its
    10th and 90th percentile. ms: that many times the median of one row."""

    context: int
    rows: int
    ms: float
    ratio: float
    low: float
    high: float


def check_ratio(times: Sequence[CheckTime], rows: float) -> float:
    """What a check takes relative to one row, by straight lines between those that were measured. times: of
    one context, by their rows; 1 where there are none."""
    for before, after in pairwise(times):
        if rows <= after.rows:
            share = (rows - before.rows) / (after.rows - before.rows)
            return before.ratio + share * (after.ratio - before.ratio)
    return times[-1].ratio if times else 1.0


@dataclass(frozen=True)
class Recommendation:
    """What to set for a kind of work. draft_with "none": don't speculate; None: not known, and then nothing
    else is. drafter and gamma are None in both cases, and gamma also of a tree. speedup, interval: of the
    best setting that was measured, which `best` names, even where it does not pay. reason: in a sentence or
    two. is_provisional: whether more prompts could change it."""

    work: str
    draft_with: str | None
    drafter: str | None
    drafter_kind: str | None
    gamma: int | None
    speedup: float | None
    interval: tuple[float, float] | None
    reason: str
    best: Candidate | None
    prompts: int  # on which it was measured
    is_provisional: bool
    tree: DraftTree = ()


@dataclass(frozen=True)
class Measured:
    """All that was measured, and how, which is what a report keeps. quantize: of target and drafter. params:
    what all texts were written with, but for draft_with and gamma. probes: the texts with long drafts, of
    which the estimates are. finalists: what is then measured, samples: its texts. settled: the kinds of work
    of which more prompts cannot change the answer. ended: whether the answer is clear, or all prompts are
    used, or why it ended before."""

    target: str
    device: str
    device_name: str
    dtype: str | None
    quantize: dict[str, str | None]
    versions: dict[str, str]
    date: str
    command: str
    params: dict[str, Any]
    works: tuple[str, ...]
    contenders: tuple[Contender, ...]
    checks: tuple[CheckTime, ...] = ()
    probes: tuple[Sample, ...] = ()
    finalists: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    settled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    ended: Ended = "running"


def to_object(measured: Measured) -> dict[str, Any]:
    texts = {name: [_text_object(one) for one in getattr(measured, name)] for name in ("probes", "samples")}
    return {"schema": SCHEMA, **asdict(replace(measured, probes=(), samples=())), **texts}


def _text_object(one: Sample) -> dict[str, Any]:
    """Times are means of a turn's rounds."""
    turns = [
        {
            "plain_ms": turn.plain_ms,
            "drafted": fmean(each.drafted for each in turn.fast),
            "ms": fmean(each.ms for each in turn.fast),
        }
        for turn in one.turns
    ]
    counted = {name: getattr(one.stats, name) for name in ("tokens", "rejected", "draft_ms")}
    return {**asdict(replace(one, stats=fresh(), turns=())), "stats": counted, "turns": turns}
