"""What the adviser measures and what comes of it. Without torch."""

from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

from specdemo.events import ratio
from specdemo.events.speedup import SpeedUp
from specdemo.measure.samples import FEWEST_PROMPTS, Place, Text, TimedText, TimedTurn, speed_up_on_prompts
from specdemo.words.catalogue import say
from specdemo.words.message import Message

Ended = Literal["running", "clear", "all", "budget", "interrupted", "failed"]
ALL = "all"  # the kind of work that stands for all that was measured
OWN = "own"  # that of one's own prompts
PROBED = 8  # tokens of the drafts from which lengths are estimated


def work_in_words(work: str) -> str:
    return say(f"advice.works.{work}")


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

    @property
    def probed(self) -> int:
        """The length of drafts that tell of all lengths."""
        return min(PROBED, self.longest or PROBED)


ALONE = Contender("none", "none")


@dataclass(frozen=True)
class Candidate:
    """A contender with a draft length."""

    contender: str
    gamma: int


@dataclass(frozen=True)
class Sample:
    """One text. prompt: its number among those of its work. drafted, accepted, emitted: tokens of each
    round. judged: drafted tokens. draft_ms: of all rounds. turns: in which
    it was timed beside plain rounds."""

    work: str
    prompt: int
    setting: Candidate
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    judged: int
    draft_ms: float
    turns: tuple[TimedTurn, ...]

    @property
    def timed(self) -> TimedText:
        return TimedText(sum(self.emitted), len(self.emitted), sum(self.drafted), self.turns)


def sample_of(work: str, prompt: int, setting: Candidate, text: Text) -> Sample:
    trace, stats = text.trace, text.trace.stats
    return Sample(
        work,
        prompt,
        setting,
        drafted=tuple(len(one.draft) for one in trace.rounds),
        accepted=tuple(sum(token.fate == "accepted" for token in one.draft) for one in trace.rounds),
        emitted=tuple(len(one.emitted) for one in trace.rounds),
        judged=stats.accepted + (stats.rejected or 0),
        draft_ms=stats.draft_ms or 0.0,
        turns=tuple(text.turns),
    )


@dataclass(frozen=True)
class Together:
    """Samples of one setting together, with a round each."""

    samples: tuple[Sample, ...]

    @property
    def by_place(self) -> dict[Place, TimedText]:
        return {(one.work, one.prompt): one.timed for one in self.samples}

    @cached_property
    def speedup(self) -> SpeedUp | None:
        """Over the target alone; None where too few prompts of a kind of work were written."""
        kinds = {one.work for one in self.samples}
        return (
            speed_up_on_prompts(self.by_place) if len(self.samples) >= len(kinds) * FEWEST_PROMPTS else None
        )

    def _counts(self, what: Literal["drafted", "accepted", "emitted"]) -> list[int]:
        return [count for one in self.samples for count in getattr(one, what)]

    @property
    def tokens_per_round(self) -> float:
        return fmean(self._counts("emitted"))

    @property
    def drafted_per_round(self) -> float:
        return fmean(self._counts("drafted"))

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(sum(self._counts("accepted")), sum(one.judged for one in self.samples))

    @property
    def draft_cost(self) -> float:
        """What drafting takes in a round, in rounds of the target alone."""
        plain_ms = fmean(turn.plain_ms for one in self.samples for turn in one.turns)
        return sum(one.draft_ms for one in self.samples) / len(self._counts("emitted")) / plain_ms

    def share_above(self, what: Literal["drafted", "accepted"], places: int) -> list[float]:
        """The share of rounds with more than i such tokens, for i below `places`."""
        counts = self._counts(what)
        return [fmean(count > place for count in counts) for place in range(places)]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to set for a kind of work. draft_with "none": don't speculate; None: not known, and then nothing
    else is. drafter and gamma are None in both cases. speedup, interval: of the best setting that was
    measured, which `best` names, even where it does not pay. reason: in a sentence or two. is_provisional:
    whether more prompts could change it."""

    work: str
    draft_with: str | None = None
    drafter: str | None = None
    drafter_kind: str | None = None
    gamma: int | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    reason: str
    best: Candidate | None = None
    prompts: int  # on which it was measured
    is_provisional: bool


@dataclass(frozen=True)
class Measured:
    """All that was measured, and how. quantize: of target and drafter. params:
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
    probes: tuple[Sample, ...] = ()
    finalists: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    settled: tuple[str, ...] = ()
    notes: tuple[Message | str, ...] = ()
    seconds: float = 0.0
    ended: Ended = "running"

    @property
    def answered(self) -> list[str]:
        """The kinds of work of which it is said what to set: those that were asked for, and where there are
        several, all of it."""
        return [*self.works, *([ALL] if len(self.works) > 1 else [])]
