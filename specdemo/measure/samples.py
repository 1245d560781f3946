"""The driver of all measurements, and what follows from rounds that were timed in turns. Without torch.

What both sides took in short turns, each right after the other, is compared turn by turn: what is slow for
longer than a turn is slow on both sides. A setting's speed-up is the tokens that a round brings, over what a
round takes, in rounds of the target alone. It has two intervals. That of the turns says how well these texts
were timed: a fifth of a text's turns is trimmed at each end, since a stall within a turn is on one side only;
the interval is Student's, of the winsorized turns (Tukey and McLaughlin 1963). That of the prompts is for
other prompts of the same kind, too: a jackknife over the prompts, on the logarithm (Tukey 1958)."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import StatisticsError, fmean, linear_regression, stdev, variance
from typing import NamedTuple, TypeVar

from specdemo.events import Stats
from specdemo.events.speedup import SpeedUp, TimedRound, with_speedup
from specdemo.events.trace import Trace

S, P, T = TypeVar("S"), TypeVar("P"), TypeVar("T")
Place = tuple[str, int]  # a prompt: its kind of work, and its number there

FEWEST_TURNS = 8  # of which an interval of the turns is told
FEWEST_PROMPTS, FEWEST_TURNS_OF_PROMPTS = 3, 6  # of which one of the prompts is told
TRIMMED = 0.2  # of the turns, at each end
# Student's t for 90%, by degrees of freedom; between two rows that of the lower one.
STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 7: 1.895, 9: 1.833, 12: 1.782, 16: 1.746}
STUDENT |= {24: 1.711, 40: 1.684}


def measure(
    settings: Callable[[P], Sequence[S]],
    prompts: Iterable[P],
    sample: Callable[[S, P], T],
    take: Callable[[P, list[T]], None] = lambda prompt, samples: None,
) -> Iterator[tuple[S, P]]:
    """Takes a sample of each setting on each prompt. Yields both before each sample. On each prompt another
    setting begins, so that none is always first. settings: those of a prompt, asked when its turn comes, by
    which time some may be out of the running. take: is given the samples of a prompt, in the settings'
    order."""
    for at, prompt in enumerate(prompts):
        running = list(settings(prompt))
        samples = dict[int, T]()
        for offset in range(len(running)):
            index = (at + offset) % len(running)
            yield running[index], prompt
            samples[index] = sample(running[index], prompt)
        if running:
            take(prompt, [samples[index] for index in range(len(running))])


@dataclass(frozen=True, slots=True)
class TimedTurn:
    """A few rounds of each side, timed right after each other: `fast` of the run, `slow` of the target alone
    on the same stretch of text."""

    slow: Sequence[TimedRound]
    fast: Sequence[TimedRound]

    @property
    def plain_ms(self) -> float:
        return fmean(one.ms for one in self.slow)


@dataclass(frozen=True, slots=True)
class TimedText:
    """Numbers of a text, and the turns in which it was timed."""

    tokens: int
    rounds: int
    drafted: int
    turns: Sequence[TimedTurn]


class Text(NamedTuple):
    """One text of a setting. turns: none where it was not made in turns with plain rounds."""

    trace: Trace
    turns: Sequence[TimedTurn] = ()


def timed_text(stats: Stats, turns: Sequence[TimedTurn]) -> TimedText:
    return TimedText(stats.tokens, stats.rounds, stats.drafted or 0, turns)


class Costs:
    """What the rounds of one setting take, in plain rounds. A round is taken to last the longer, the more it
    drafts, by a straight line through the rounds of all turns. So turns with long drafts can be trimmed, and
    rounds count that were not timed. What a text's turns are off by that, on a trimmed mean of logarithms,
    holds for all of its rounds. parts: tokens and cost of each text. error: the standard error of the
    logarithm of all cost. kept: how many turns are not trimmed."""

    def __init__(self, texts: Mapping[Hashable, TimedText]):
        turns = [(turn, turn.plain_ms) for text in texts.values() for turn in text.turns]
        drafted = [one.drafted for turn, _ in turns for one in turn.fast]
        costs = [one.ms / plain_ms for turn, plain_ms in turns for one in turn.fast]
        try:
            slope, intercept = linear_regression(drafted, costs)
        except StatisticsError:  # all drafts have the same length
            slope, intercept = 0.0, fmean(costs)

        def usual(drafted: float) -> float:
            return max(intercept + slope * drafted, 0.1 * fmean(costs))

        self.parts: dict[Hashable, tuple[int, float]] = {}
        self.kept, spread, weights = 0, list[float](), list[tuple[float, int]]()
        for key, text in texts.items():
            off = sorted(
                log(fmean(one.ms for one in turn.fast) / turn.plain_ms)
                - log(usual(fmean(one.drafted for one in turn.fast)))
                for turn in text.turns
            )
            cut = int(TRIMMED * len(off))
            kept = off[cut : len(off) - cut]
            mean = fmean(kept) if kept else 0.0
            cost = text.rounds * usual(text.drafted / text.rounds) * exp(mean)
            self.parts[key] = text.tokens, cost
            self.kept += len(kept)
            if off:
                spread += [part - mean for part in ([kept[0]] * cut + kept + [kept[-1]] * cut)]
                weights.append((cost, len(kept) ** 2 / len(off)))
        self.tokens, self.cost = map(sum, zip(*self.parts.values(), strict=True))
        error = sqrt(sum((cost / self.cost) ** 2 / count for cost, count in weights))
        self.error = error * stdev(spread) if len(spread) > 1 else 0.0

    def log_speed_up(self, left_out: Hashable = None) -> float:
        """The logarithm of the speed-up; left_out: of the others than this text."""
        tokens, cost = self.parts.get(left_out, (0, 0.0))
        return log((self.tokens - tokens) / (self.cost - cost))


def speed_up_in_turns(texts: Sequence[TimedText]) -> SpeedUp | None:
    """How many times as fast as the target alone these texts of one setting were written, with the interval
    of the turns. None for fewer than FEWEST_TURNS turns."""
    if sum(len(one.turns) for one in texts) < FEWEST_TURNS:
        return None
    costs = Costs(dict(enumerate(texts)))
    return _with_ends(costs.log_speed_up(), student(costs.kept) * costs.error)


def speed_up_on_prompts(
    own: Mapping[Place, TimedText], other: Mapping[Place, TimedText] | None = None
) -> SpeedUp | None:
    """How many times as fast one setting is as the target alone, or as another setting on the prompts of
    both, with the interval of the prompts, within each kind of work. None where too little was measured."""
    places = [place for place in own if other is None or place in other]
    sides = [{place: side[place] for place in places} for side in (own, other) if side is not None]
    if len(places) < FEWEST_PROMPTS:
        return None
    if any(sum(len(text.turns) for text in side.values()) < FEWEST_TURNS_OF_PROMPTS for side in sides):
        return None
    costs = list(map(Costs, sides))

    def factor(left_out: Place | None = None) -> float:
        own, *others = (one.log_speed_up(left_out) for one in costs)
        return own - sum(others)

    without: dict[str, list[float]] = defaultdict(list)
    for place in places:
        without[place[0]].append(factor(place))
    if len(places) == len(without):  # one prompt of each
        return None
    parts = ((len(some) - 1) ** 2 / len(some) * variance(some) for some in without.values() if len(some) > 1)
    return _with_ends(factor(), student(len(places) - len(without) + 1) * sqrt(sum(parts)))


def _with_ends(value: float, half: float) -> SpeedUp:
    """By their logarithms."""
    return SpeedUp(exp(value), exp(value - half), exp(value + half))


def student(count: int) -> float:
    """Student's t for 90% of a mean of so many values, at least two."""
    return STUDENT[max(freedom for freedom in STUDENT if freedom < count)]


def after_turns(stats: Stats, turns: Sequence[TimedTurn]) -> Stats:
    """Adds the speed-up of turns that were timed after the run, if there are enough. Its times stay, so the
    target's step is told at the run's pace: it takes as long as the speed-up says."""
    found = speed_up_in_turns([timed_text(stats, turns)])
    if found is None:
        return stats
    step_ms = found.value * stats.run_ms / stats.tokens
    return with_speedup(stats, found, step_ms, [one.ms for turn in turns for one in turn.slow])
