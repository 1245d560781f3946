"""How many times as fast one way of decoding is as another, and how sure that is; and what draft lengths
bring, as the theory expects it (Leviathan et al. 2023) and estimated from one run. Verdict, race, gamma,
compare, trace and API all ask here. Standard library only.

The statistic is the same on both sides: time per token, over all rounds. So a stall counts wherever it
happens, plain decoding reads 1 against itself, and the figure follows from the times that stand beside it.

The interval comes from resampling the rounds of both sides (Efron's bootstrap) in stretches, because times
drift: on an idle machine the mean of 60 rounds varied by half as much as a single round did, and not by an
eighth. So a run counts as fewer stretches than it has, the fewer the more alike neighbours are (Kish's
effective sample size).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, sqrt
from random import Random
from statistics import StatisticsError, fmean, linear_regression, quantiles

from specdemo.events import Round, Stats, ratio

SHORTEST = 24  # tokens of a run for which a speed-up is claimed
FEWEST_PLAIN = 8  # plain rounds that are timed after such a run, at least
WIDE = 1.6  # where an interval's ends differ by more than this factor, no speed-up is claimed
NARROW = 1.15  # where they differ by less, nothing is timed again
STRETCH = 4  # rounds, where a run has enough of them for
FEWEST_STRETCHES, MOST_STRETCHES = 4, 64  # of one run
SURE = 2  # standard errors by which neighbours are taken to be more alike than they were seen to be
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class TimedRound:
    """What a speed-up needs of a round. drafted: how many tokens were drafted, for which a round takes
    longer."""

    tokens: int
    drafted: int
    ms: float


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A speed-up. value: how many times as fast. low, high: the ends of its 90% interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


def timed(rounds: Sequence[Round]) -> list[TimedRound]:
    """The timed rounds of a run. A server's first one is left out, since it holds the prompt's time, too."""
    counted = rounds[1:] if rounds and rounds[0].arrival_ms is not None else rounds
    return [TimedRound(len(one.emitted), len(one.draft), one.ms) for one in counted]


def plain(times_ms: Sequence[float]) -> list[TimedRound]:
    """Rounds of one token, with nothing drafted."""
    return [TimedRound(1, 0, ms) for ms in times_ms]


def is_wide(interval: tuple[float, float]) -> bool:
    """Whether it is too wide for a speed-up to be claimed."""
    low, high = interval
    return high >= WIDE * low  # also of two zeros, which a file can hold


def speed_up(slow: Sequence[Sequence[TimedRound]], fast: Sequence[Sequence[TimedRound]]) -> SpeedUp | None:
    """How many times as fast `fast` is as `slow`, which is the target alone as a rule. Each side is the
    rounds of its runs. None for fewer than SHORTEST tokens of `fast` or FEWEST_PLAIN rounds of `slow`,
    and without times.

    Which tokens were accepted is taken as it was: the interval says how well the two were timed, and not what
    another text would bring."""
    if sum(map(len, slow)) < FEWEST_PLAIN or sum(one.tokens for run in fast for one in run) < SHORTEST:
        return None
    slow_ms, fast_ms = _ms_per_token(slow), _ms_per_token(fast)
    if not slow_ms or not fast_ms:
        return None
    value, dice, sides = slow_ms / fast_ms, Random(0), (_off_their_usual(slow), _off_their_usual(fast))
    runs = [run for side in sides for run in side]
    off, alike = [part for run in runs for part in run], _alike(runs)
    slow_count, fast_count = (_independent(side, alike) for side in sides)
    known = len(off) - 2  # each side's mean is taken from the stretches themselves

    def resampled() -> float:
        """The logarithm of how much the value is off."""
        # So few stretches leave open how much they vary: hence Student's t.
        spread = sqrt(len(off) / dice.gammavariate(known / 2, 2))
        return spread * (fmean(dice.choices(off, k=slow_count)) - fmean(dice.choices(off, k=fast_count)))

    low, *_, high = quantiles((resampled() for _ in range(RESAMPLES)), n=20)
    # exp of the two ends only: of a single resample it can overflow.
    return SpeedUp(value, value * exp(min(low, 0.0)), value * exp(max(high, 0.0)))


def after_plain_rounds(stats: Stats, rounds: Sequence[Round], times_ms: Sequence[float]) -> Stats:
    """Adds the target step and the speed-up. times_ms: those of plain rounds, which were timed right after
    the run. Where no speed-up is claimed, both stay unknown."""
    measured = speed_up([plain(times_ms)], [timed(rounds)])
    return stats if measured is None else with_speedup(stats, measured, fmean(times_ms), times_ms)


def with_speedup(stats: Stats, measured: SpeedUp, step_ms: float, times_ms: Sequence[float]) -> Stats:
    """step_ms: what the target's step took at the run's pace; times_ms: plain rounds, at whatever pace."""
    low, high = _deciles(times_ms)
    pace = step_ms / fmean(times_ms)
    return claimed(
        replace(
            stats,
            target_step_ms=step_ms,
            target_step_spread=(low * pace, high * pace),
            cost_ratio=ratio(stats.drafter_step_ms, step_ms),
            speedup=measured.value,
            speedup_interval=measured.interval,
        )
    )


def claimed(stats: Stats) -> Stats:
    """Without a speed-up that was measured beside so much else that its interval is wide. The target's step
    stays, which tells it from one that was not measured."""
    if stats.speedup_interval is None or not is_wide(stats.speedup_interval):
        return stats
    return replace(stats, speedup=None, speedup_interval=None)


def _ms_per_token(runs: Sequence[Sequence[TimedRound]]) -> float:
    tokens = sum(one.tokens for run in runs for one in run)
    return sum(one.ms for run in runs for one in run) / max(1, tokens)


def _off_their_usual(runs: Sequence[Sequence[TimedRound]]) -> list[list[float]]:
    """How much longer than usual the rounds of each run and stretch took, as a part of a mean round. Usual is
    what rounds with as many drafts take on this side."""
    rounds = [one for run in runs for one in run]
    mean_ms = fmean(one.ms for one in rounds)
    try:
        slope, intercept = linear_regression([one.drafted for one in rounds], [one.ms for one in rounds])
    except StatisticsError:  # all drafts have the same length
        slope, intercept = 0.0, mean_ms

    def off(stretch: Sequence[TimedRound]) -> float:
        return fmean(one.ms - intercept - slope * one.drafted for one in stretch) / mean_ms

    return [[off(stretch) for stretch in _stretches(run)] for run in runs]


def _stretches(run: Sequence[TimedRound]) -> list[Sequence[TimedRound]]:
    count = min(max(FEWEST_STRETCHES, len(run) // STRETCH), MOST_STRETCHES, len(run))
    return [run[at * len(run) // count : (at + 1) * len(run) // count] for at in range(count)]


def _alike(of_runs: Sequence[Sequence[float]]) -> float:
    """How alike neighbouring stretches of a run are, from 0 to 1: their autocorrelation, at the upper end of
    what so few of them allow."""
    pairs = [pair for of_run in of_runs for pair in pairwise(of_run)]
    squares = [part * part for of_run in of_runs for part in of_run]
    if not pairs or not (variance := fmean(squares)):
        return 1.0
    seen = fmean(one * other for one, other in pairs) / variance
    # Each run's mean is its own, so `seen` is too small by about this much (Kendall 1954).
    lost = (1 + 4 * max(0.0, seen)) * len(of_runs) / len(squares)
    return min(1.0, max(0.0, seen + lost + SURE / sqrt(len(squares))))


def _independent(of_runs: Sequence[Sequence[float]], alike: float) -> int:
    """How many independent stretches a side is worth."""
    counts = [len(of_run) for of_run in of_runs if of_run]
    return max(1, round(sum(count / (1 + (count - 1) * alike) for count in counts)))


def expected_tokens(alpha: float, gamma: float) -> float:
    """Tokens per round at an acceptance rate `alpha`: (1 - alpha^(gamma+1)) / (1 - alpha), equation 1. It
    assumes that drafts are accepted independently of each other."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


@dataclass(frozen=True)
class DraftingCost:
    """What drafting costs, in parts of the target's forward: each drafted token, and a draft, however long it
    is. experts: of a target that has some, those that a token goes through, in parts of all weights that are
    read for it; chosen: which share of a layer's experts they are."""

    token: float = 0.0
    draft: float = 0.0
    experts: float = 0.0
    chosen: float = 1.0

    def of_a_draft(self, gamma: int) -> float:
        """What a draft of gamma tokens costs, with the experts that its check reads besides a token's own, as
        if each row chose its experts independently of the others."""
        by_all = (1 - (1 - self.chosen) ** (gamma + 1)) / self.chosen  # experts of all rows, in those of one
        return gamma * self.token + self.draft + self.experts * (by_all - 1)


NO_COST = DraftingCost()


def expected_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """How much faster than one token per target forward, theorem 3.8. A drafter step costs `cost_ratio` of a
    target step; a verifying forward is assumed to cost no more than a one-token forward."""
    return expected_tokens(alpha, gamma) / (gamma * cost_ratio + 1)


def break_even(gamma: float, tokens: float) -> float | None:
    """The acceptance rate from which rounds of gamma drafts yield that many tokens on average, by equation 1;
    None if they cannot."""
    if tokens > gamma + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < tokens else (low, middle)
    return high


@dataclass(frozen=True)
class Estimate:
    """What a draft length would bring. tokens: a round. speedup, interval: None where the run's own are;
    interval: as much about the speed-up as the run's own is."""

    gamma: int
    tokens: float
    speedup: float | None
    interval: tuple[float, float] | None


def estimates(
    rounds: Sequence[Round], stats: Stats, own: int | None, longest: int, at_once: bool = False
) -> list[Estimate]:
    """The estimates for gamma 0 to `longest`, or to the run's own where no acceptance rate is known; empty if
    no draft was judged. own: the run's draft length; None where it was chosen round by round, or is not
    known, and of trees, so that nothing is estimated. at_once: whether drafts are made in one forward, and so
    take as long whatever their length.

    Up to `own`, tokens a round are counted: each round's, cut to that length. Beyond it, each token more
    brings the last one's gain times the acceptance rate. A round takes the longer the longer its draft, from
    a plain round on. So at `own` all is as the run has measured it."""
    own, rate, step_ms = min(own or 0, longest), stats.acceptance_rate, stats.target_step_ms
    if not own or not (stats.accepted or stats.rejected):
        return []
    tokens = [fmean(min(len(one.emitted), gamma + 1) for one in rounds) for gamma in range(own + 1)]
    while rate is not None and len(tokens) <= longest:
        tokens.append(tokens[-1] + rate * (tokens[-1] - tokens[-2]))
    if not step_ms or not stats.run_ms or not stats.speedup or not stats.speedup_interval:
        return [Estimate(gamma, expected, None, None) for gamma, expected in enumerate(tokens)]
    draft_ms, verify_ms = (stats.draft_ms or 0.0) / stats.rounds, (stats.verify_ms or 0.0) / stats.rounds
    ends, rows = [end / stats.speedup for end in stats.speedup_interval], []
    for gamma, expected in enumerate(tokens):
        part = gamma / own
        ms = step_ms + draft_ms * ((gamma > 0) if at_once else part) + part * (verify_ms - step_ms)
        if gamma > own:
            ms = max(ms, draft_ms + verify_ms)  # a longer draft is not faster
        speedup = expected * step_ms / ms
        interval = (speedup * ends[0], speedup * ends[1]) if gamma else None
        rows.append(Estimate(gamma, expected, speedup, interval))
    return rows


def best_gamma(rows: Sequence[Estimate]) -> int | None:
    """The shortest draft length whose estimated speed-up is within 1 % of the largest."""
    known = [(one.gamma, one.speedup) for one in rows if one.speedup is not None]
    largest = max((speedup for _, speedup in known), default=0.0)
    return next((gamma for gamma, speedup in known if speedup >= 0.99 * largest), None)


FULL = 0.8  # of all places of a run's drafts: the least that hold a token where its means are of full drafts


@dataclass(frozen=True)
class Checks:
    """What the target took to check drafts, beside its plain rounds. rows: the tokens that the check of a
    full draft feeds. *_ms: means. ratio: how many plain rounds a check took; interval: of that."""

    rows: int
    plain_ms: float
    draft_ms: float
    verify_ms: float
    ratio: float
    interval: tuple[float, float]


def checks(stats: Stats, own: int | None) -> Checks | None:
    """The checks of a run's drafts, as its sums have them. own: their length; None where it was chosen round
    by round, of trees, and where text was fed again. None also where no speed-up is known, and where drafts
    were shorter."""
    step_ms, draft_ms, verify_ms = stats.target_step_ms, stats.draft_ms, stats.verify_ms
    if not (own and step_ms and draft_ms and verify_ms and stats.speedup and stats.speedup_interval):
        return None
    if (stats.drafted or 0) < FULL * own * stats.rounds:
        return None
    draft_ms, verify_ms = draft_ms / stats.rounds, verify_ms / stats.rounds
    ratio = verify_ms / step_ms
    low, high = (ratio * stats.speedup / end for end in reversed(stats.speedup_interval))
    return Checks(own + 1, step_ms, draft_ms, verify_ms, ratio, (low, high))


def _deciles(times_ms: Sequence[float]) -> tuple[float, float]:
    deciles = quantiles(times_ms, n=10, method="inclusive")
    return deciles[0], deciles[-1]
