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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import exp, sqrt
from operator import mul
from random import Random
from statistics import StatisticsError, fmean, linear_regression, mean, mode, quantiles

from specdemo.events import LIMITS, ExpertsRead, Round, Stats, is_tree
from specdemo.events.metrics import made_in, made_of, ratio

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
    return [
        [
            fmean(one.ms - intercept - slope * one.drafted for one in stretch) / mean_ms
            for stretch in _stretches(run)
        ]
        for run in runs
    ]


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


FEWEST_JUDGED = 5  # judged drafts at a place; places with fewer are taken to be like all places together


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
    """What a draft length would bring. `formula`: by Leviathan et al. 2023 from the run's acceptance rate;
    None where a server has not told p and q, and no speed-up where drafted tokens were dropped. `seen`: by
    the share of drafts that were accepted at each place and this run's times. Speed-ups are None where the
    run's is."""

    gamma: int
    formula_tokens: float | None  # a round
    formula_speedup: float | None
    seen_tokens: float
    seen_speedup: float | None
    seen_interval: tuple[float, float] | None  # as much about it as the run's own is about its speed-up


def estimates(
    rounds: Sequence[Round],
    stats: Stats,
    at_once: bool = False,
    longest_draft: int | None = None,
    run_gamma: int | None = None,
) -> list[Estimate]:
    """The estimates for gamma 0 to the largest that Params allows, or to the longest draft where p and q are
    not known; empty if nothing was judged, and of trees, whose places have several drafts. at_once: whether
    drafts were made in one forward, and so take as long whatever their length. longest_draft: the longest
    that the drafter can make. run_gamma: the draft length, None where it was chosen round by round or is not
    known. Up to it, tokens a round are counted: each round's, cut to that length; they grow with gamma, and
    at run_gamma they are the run's own."""
    if any(is_tree(one.draft) for one in rounds):
        return []
    by_place = _verdicts_by_place(rounds)
    judged = [verdict for verdicts in by_place for verdict in verdicts]
    if not judged:
        return []
    off: list[float] = []  # the ends of the run's interval, relative to its speed-up
    if stats.speedup and stats.speedup_interval:
        off = [end / stats.speedup for end in stats.speedup_interval]
    else:
        stats = replace(stats, target_step_ms=None, cost_ratio=None)
    of_server = any(one.arrival_ms is not None for one in rounds)
    alpha = None if of_server else stats.acceptance_rate  # as it is shown beside the formula's figures
    longest = int(LIMITS["gamma"].largest) if alpha is not None else len(by_place)
    longest = min(longest, longest_draft or longest)
    kept_at, made_at = (
        _share_of_rounds_with(lengths, rounds, run_gamma, longest)
        for lengths in ([len(one.draft) for one in rounds], [made_in(one) for one in rounds])
    )
    everywhere = mean(judged)
    if run_gamma is None:
        alive = [mean(one) if len(one) >= FEWEST_JUDGED else everywhere for one in by_place]
        alive += [everywhere] * (longest - len(alive))
        added = list(map(mul, kept_at, accumulate(alive, mul)))
    else:
        counted = range(1, min(run_gamma, longest) + 1)
        added = [mean(len(one.emitted) > gamma for one in rounds) for gamma in counted]
        added += [added[-1] * everywhere**more for more in range(1, longest - len(counted) + 1)]
    drafting_ms = [one.draft_ms for one in rounds if made_in(one) and one.draft_ms is not None]
    a_draft_ms = mean(drafting_ms) if at_once and drafting_ms else None
    some_dropped = made_of(stats) != stats.drafted
    sums = (accumulate(one, initial=start) for one, start in ((added, 1.0), (kept_at, 0.0), (made_at, 0.0)))
    rows = []
    for gamma, (tokens, kept, made) in enumerate(zip(*sums, strict=True)):
        at_once_ms = None if a_draft_ms is None else a_draft_ms * (gamma > 0)
        seen = _speedup(stats, tokens, kept, made, at_once_ms and at_once_ms * made_at[0])
        by_formula, formula = None if alpha is None else expected_tokens(alpha, gamma), None
        if by_formula is not None and stats.cost_ratio is not None and not some_dropped:
            cost = gamma * stats.cost_ratio
            if at_once_ms is not None and stats.target_step_ms:
                cost = at_once_ms / stats.target_step_ms
            formula = by_formula / (1 + cost)
        ends = (seen * off[0], seen * off[1]) if gamma and seen is not None and off else None
        rows.append(Estimate(gamma, by_formula, formula, tokens, seen, ends))
    return rows


def best_gamma(rows: Sequence[Estimate]) -> int | None:
    """The shortest draft length whose estimated speed-up is within 1 % of the largest."""
    known = [(one.gamma, one.seen_speedup) for one in rows if one.seen_speedup is not None]
    largest = max((speedup for _, speedup in known), default=0.0)
    return next((gamma for gamma, speedup in known if speedup >= 0.99 * largest), None)


def _verdicts_by_place(rounds: Sequence[Round]) -> list[list[bool]]:
    """Whether the drafts up to a round's rejection were accepted, by their place in the draft. Empty where a
    server does not tell what was rejected."""
    places = defaultdict[int, list[bool]](list)
    for one in rounds if all(one.drafts_told for one in rounds) else ():
        for place, token in enumerate(one.draft):
            of_server = one.arrival_ms is not None
            was_judged = token.fate != "discarded" if of_server else None not in (token.accept_prob, token.u)
            if not was_judged:
                break
            places[place].append(token.fate != "rejected")
            if token.fate == "rejected":
                break
    return [*places.values()]


def _share_of_rounds_with(
    lengths: Sequence[int], rounds: Sequence[Round], run_gamma: int | None, places: int
) -> list[float]:
    """The share of the rounds that have a token at each place: all for a drafter model that is always sure
    enough, while a lookup may find less; beyond the longest as at its last place. lengths: how many tokens
    each round has. Where the run has no draft length of its own, only rounds that could draft so many count,
    and not the last one: the end of the text may leave it without room for a draft."""
    drafts = [(length, one.gamma) for length, one in zip(lengths, rounds, strict=True)]
    if run_gamma is None:
        drafts = drafts[:-1] or drafts
    shares = [
        mean(length > place for length, gamma in drafts if run_gamma or gamma is None or gamma > place)
        for place in range(min(places, max(length for length, _ in drafts)))
    ] or [0.0]
    return shares + [shares[-1]] * (places - len(shares))


def experts_of_checks(rounds: Sequence[Round], gamma: int | str) -> tuple[int, ExpertsRead] | None:
    """How many rows the checks of full drafts feed, and how many experts of a layer they read, as means over
    them. None without such drafts, and of a target without experts."""
    length, full = _full_drafts(rounds, gamma)
    read = [one.experts_read for one in full if one.experts_read]
    if not read:
        return None
    return length + 1, ExpertsRead(fmean(one.check for one in read), fmean(one.row for one in read))


def _full_drafts(rounds: Sequence[Round], gamma: int | str) -> tuple[int, list[Round]]:
    """The length of full drafts, and the rounds that have one: of trees, and where gamma was chosen round by
    round, it is the length that came most often."""
    drafted = [one for one in rounds if one.draft]
    if isinstance(gamma, str) or any(is_tree(one.draft) for one in drafted):
        gamma = mode(len(one.draft) for one in drafted) if drafted else 0
    return gamma, [one for one in drafted if len(one.draft) == gamma]


FEWEST_CHECKS = 5  # of full drafts, of which a mean and a spread are told


@dataclass(frozen=True)
class Checks:
    """What the target took to check full drafts, beside its plain rounds. rows: the tokens that a check
    feeds. *_ms: means; *_spread: 10th and 90th percentile. ratio: how many plain rounds a check took."""

    rows: int
    plain_ms: float
    plain_spread: tuple[float, float]
    draft_ms: float
    draft_spread: tuple[float, float]
    verify_ms: float
    verify_spread: tuple[float, float]
    ratio: float
    interval: tuple[float, float]


def checks(rounds: Sequence[Round], stats: Stats, gamma: int | str) -> Checks | None:
    """The checks of full drafts, see _full_drafts. None where no speed-up is known, or fewer than
    FEWEST_CHECKS drafts were that long. Rounds do not count in which the target was fed more than the draft,
    or by more than one forward."""
    step_ms, spread, interval = stats.target_step_ms, stats.target_step_spread, stats.speedup_interval
    length, rounds = _full_drafts(rounds, gamma)
    full = [
        (one.draft_ms, one.verify_ms)
        for one in rounds
        if one.target_forwards == 1 and not one.fed_again
        if one.draft_ms is not None and one.verify_ms is not None
    ]
    if not (step_ms and spread and interval and stats.speedup) or len(full) < FEWEST_CHECKS:
        return None
    draft_ms, verify_ms = ([each[side] for each in full] for side in (0, 1))
    ratio = fmean(verify_ms) / step_ms
    low, high = (ratio * stats.speedup / end for end in reversed(interval))
    return Checks(
        length + 1,
        *(step_ms, spread),
        *(fmean(draft_ms), _deciles(draft_ms)),
        *(fmean(verify_ms), _deciles(verify_ms)),
        *(ratio, (low, high)),
    )


def _deciles(times_ms: Sequence[float]) -> tuple[float, float]:
    deciles = quantiles(times_ms, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def _speedup(
    stats: Stats, tokens: float, kept: float, made: float, drafting_ms: float | None = None
) -> float | None:
    """The speed-up with this run's times: a token that the drafter makes costs its drafting, unless
    drafting_ms is what all of them cost in a round, and one that is kept costs what it adds to the target's
    forward."""
    by_token_ms = ratio(stats.draft_ms, made_of(stats))
    if stats.target_step_ms is None or not stats.drafted or by_token_ms is None or stats.verify_ms is None:
        return None
    drafting_ms = made * by_token_ms if drafting_ms is None else drafting_ms
    added_ms = max(0.0, (stats.verify_ms - stats.rounds * stats.target_step_ms) / stats.drafted)
    return tokens * stats.target_step_ms / (stats.target_step_ms + drafting_ms + kept * added_ms)
