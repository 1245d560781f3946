"""The numbers of a run, added up round by round."""

from dataclasses import replace
from typing import Any, TypeVar

from specdemo.events import Round, Stats, is_tree

N = TypeVar("N", int, float)


def after_round(stats: Stats, a_round: Round) -> Stats:
    """Adds one round. The acceptance rate counts judged drafts only: accepted / (accepted + rejected). In a
    tree these are all tokens that the path has come to, several at a place, so that its rate is lower than
    that of a chain which keeps as many tokens; `drafted` counts all of its tokens."""
    fates, is_told = [token.fate for token in a_round.draft], a_round.drafts_told
    tokens, rounds = stats.tokens + len(a_round.emitted), stats.rounds + 1
    accepted = stats.accepted + fates.count("accepted")
    rejected = total(stats.rejected, fates.count("rejected") if is_told else None)
    drafted = total(stats.drafted, len(fates) if is_told else None)
    return replace(
        stats,
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        rejected=rejected,
        acceptance_rate=ratio(accepted, total(accepted, rejected)),
        mean_tokens_per_round=ratio(tokens, rounds),
        target_forwards=stats.target_forwards + a_round.target_forwards,
        distance=_distance(stats, a_round),
        **_times(stats, a_round, tokens, drafted),
    )


def _times(stats: Stats, a_round: Round, tokens: int, drafted: int | None) -> dict[str, Any]:
    """The times with one more round, by name. tokens, drafted: with this round's. A server's first round
    comes after the network and the prefill; the others give the speed."""
    is_first = stats.rounds == 0
    if a_round.arrival_ms is not None:
        if is_first:
            untold = dict.fromkeys(("prefill_ms", "draft_ms", "verify_ms"))
            return untold | {"ttft_ms": a_round.arrival_ms, "arrival_ms": 0.0}
        arrival_ms = (stats.arrival_ms or 0.0) + a_round.arrival_ms
        return {"arrival_ms": arrival_ms, "tokens_per_second": ratio(1000 * (tokens - 1), arrival_ms)}
    draft_ms, verify_ms = total(stats.draft_ms, a_round.draft_ms), total(stats.verify_ms, a_round.verify_ms)
    run_ms = total(draft_ms, verify_ms)
    return {
        "draft_ms": draft_ms,
        "verify_ms": verify_ms,
        "ttft_ms": total(stats.prefill_ms, run_ms) if is_first else stats.ttft_ms,
        "tokens_per_second": ratio(1000 * tokens, run_ms),
        # A tree's tokens come several to a forward.
        "drafter_step_ms": None if is_tree(a_round.draft) else ratio(draft_ms, drafted),
    }


def total(a: N | None, b: N | None) -> N | None:
    """a + b, or None where either is unknown."""
    return None if a is None or b is None else a + b


def _distance(stats: Stats, a_round: Round) -> float | None:
    """The mean distance over all tokens so far. A token that the target drew after a rejection has the
    distance of the rejected one's place; a bonus has none, because it is drawn from p."""
    of_places = [token.distance for token in a_round.draft[: len(a_round.emitted)]]
    known = [distance for distance in of_places if distance is not None]
    if not known and stats.distance is None:
        return None
    before = (stats.distance or 0.0) * stats.tokens
    return (before + sum(known)) / (stats.tokens + len(a_round.emitted))


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None
