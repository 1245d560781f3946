"""The numbers of a run, added up round by round, and the speed-ups that follow from them."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import TypeVar

from specdemo.events.rounds import Round, Stats

N = TypeVar("N", int, float)
FEWEST = 4  # plain rounds that make a target step
NOISY = 2  # a spread whose ends differ by more than this factor says nothing


def fresh() -> Stats:
    """The numbers of a run before its first round."""
    return Stats(
        tokens=0,
        rounds=0,
        drafted=0,
        accepted=0,
        rejected=0,
        acceptance_rate=None,
        mean_tokens_per_round=None,
        target_forwards=0,
        prefill_ms=0.0,
        draft_ms=0.0,
        verify_ms=0.0,
        ttft_ms=None,
        tokens_per_second=None,
        target_step_ms=None,
        drafter_step_ms=None,
        cost_ratio=None,
    )


def after_prefill(stats: Stats, forwards: int, prefill_ms: float) -> Stats:
    return replace(stats, target_forwards=forwards, prefill_ms=prefill_ms)


def after_round(stats: Stats, a_round: Round) -> Stats:
    """Adds one round. The acceptance rate counts judged drafts only: accepted / (accepted + rejected)."""
    fates = [token.fate for token in a_round.draft]
    tokens = stats.tokens + len(a_round.emitted)
    rounds = stats.rounds + 1
    accepted = stats.accepted + fates.count("accepted")
    told = a_round.drafts_told
    rejected = total(stats.rejected, fates.count("rejected") if told else None)
    drafted = total(stats.drafted, len(fates) if told else None)
    counted = replace(
        stats,
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        rejected=rejected,
        acceptance_rate=ratio(accepted, total(accepted, rejected)),
        mean_tokens_per_round=ratio(tokens, rounds),
        target_forwards=stats.target_forwards + 1,
        distance=_distance(stats, a_round),
        made=total(made_of(stats), made_in(a_round) if told else None),
    )
    return _with_times(counted, a_round)


def _with_times(stats: Stats, a_round: Round) -> Stats:
    """The numbers after this round, with its times added."""
    if a_round.arrival_ms is not None:
        return _with_arrival(stats, a_round.arrival_ms)
    draft_ms = total(stats.draft_ms, a_round.draft_ms)
    verify_ms = total(stats.verify_ms, a_round.verify_ms)
    run_ms = total(draft_ms, verify_ms)
    return replace(
        stats,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        ttft_ms=total(stats.prefill_ms, run_ms) if stats.rounds == 1 else stats.ttft_ms,
        tokens_per_second=ratio(1000 * stats.tokens, run_ms),
        drafter_step_ms=ratio(draft_ms, stats.drafted),
    )


def _with_arrival(stats: Stats, arrival_ms: float) -> Stats:
    """The first round of a server comes after the network and the prefill; the others give the speed."""
    if stats.rounds == 1:
        untold = replace(stats, prefill_ms=None, draft_ms=None, verify_ms=None)
        return replace(untold, ttft_ms=arrival_ms, arrival_ms=0.0)
    timed = replace(stats, arrival_ms=(stats.arrival_ms or 0.0) + arrival_ms)
    return replace(timed, tokens_per_second=ratio(1000 * timed.timed_tokens, timed.run_ms))


def total(a: N | None, b: N | None) -> N | None:
    """a + b, or None where either is unknown."""
    return None if a is None or b is None else a + b


def made_in(a_round: Round) -> int:
    """Tokens that the drafter made in a round. An older trace does not say: those of its draft."""
    return len(a_round.draft) if a_round.made is None else a_round.made


def made_of(stats: Stats) -> int | None:
    """The same for all rounds so far; None where a server has not told it."""
    return stats.drafted if stats.made is None else stats.made


def _distance(stats: Stats, a_round: Round) -> float | None:
    """The mean over all tokens so far. A token that the target drew after a rejection has the distance of the
    rejected one's place; a bonus has none, because it is drawn from p."""
    of_places = [token.distance for token in a_round.draft[: len(a_round.emitted)]]
    known = [distance for distance in of_places if distance is not None]
    if not known and stats.distance is None:
        return None
    before = (stats.distance or 0.0) * stats.tokens
    return (before + sum(known)) / (stats.tokens + len(a_round.emitted))


def after_plain_rounds(stats: Stats, times_ms: list[float]) -> Stats:
    """Adds the target step, from plain rounds that were timed right after the run. Fewer than FEWEST leave
    it unknown."""
    if len(times_ms) < FEWEST:
        return stats
    deciles = quantiles(times_ms, n=10, method="inclusive")
    step_ms = median(times_ms)
    return replace(
        stats,
        target_step_ms=step_ms,
        target_step_spread=(deciles[0], deciles[-1]),
        cost_ratio=ratio(stats.drafter_step_ms, step_ms),
        speedup=ratio(step_ms * stats.tokens, stats.run_ms),
    )


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def speedup_spread(stats: Stats) -> tuple[float, float] | None:
    """The speed-ups for the ends of the target step's spread."""
    if stats.speedup is None or not stats.target_step_ms or stats.target_step_spread is None:
        return None
    low, high = (stats.speedup * end / stats.target_step_ms for end in stats.target_step_spread)
    return low, high


def is_noisy(stats: Stats, rounds: Sequence[Round]) -> bool:
    """Whether a spread is too wide for a speed-up to be told: that of the plain rounds, or that of the run's
    own rounds, which then had another load than the plain ones."""
    if stats.target_step_spread is None:
        return False
    usual = max(map(_length, rounds), default=0)
    times_ms = [one.verify_ms or 0.0 for one in rounds if _length(one) == usual]
    spreads = [stats.target_step_spread]
    if len(times_ms) >= FEWEST:
        deciles = quantiles(times_ms, n=10, method="inclusive")
        spreads.append((deciles[0], deciles[-1]))
    return any(high > NOISY * low for low, high in spreads)


def _length(one: Round) -> int:
    return len(one.draft)


def implied_speedup(stats: Stats) -> float | None:
    """Speed-up over plain decoding by Leviathan et al. 2023, theorem 3.8, with the run's own tokens per
    round, drafts per round and cost ratio. It assumes that verifying a draft takes no longer than a plain
    round. None where all that the drafter made was dropped."""
    if stats.mean_tokens_per_round is None or (made_of(stats) and stats.cost_ratio is None):
        return None
    if stats.drafted is None or stats.arrival_ms is not None:
        return None
    return stats.mean_tokens_per_round / (stats.drafted / stats.rounds * (stats.cost_ratio or 0) + 1)
