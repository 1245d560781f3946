"""The numbers of a run, added up round by round, and the speed-ups that follow from them."""

from dataclasses import replace

from specdemo.events.rounds import Round, Stats


def fresh(target_step_ms: float | None = None, drafter_step_ms: float | None = None) -> Stats:
    """The numbers of a run before its first round. The step times are the pair's, measured when it was
    loaded."""
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
        target_step_ms=target_step_ms,
        drafter_step_ms=drafter_step_ms,
        cost_ratio=ratio(drafter_step_ms, target_step_ms),
    )


def after_prefill(stats: Stats, forwards: int, prefill_ms: float) -> Stats:
    return replace(stats, target_forwards=forwards, prefill_ms=prefill_ms)


def after_round(stats: Stats, a_round: Round) -> Stats:
    """Adds one round. The acceptance rate counts judged drafts only: accepted / (accepted + rejected)."""
    fates = [token.fate for token in a_round.draft]
    tokens = stats.tokens + len(a_round.emitted)
    rounds = stats.rounds + 1
    accepted = stats.accepted + fates.count("accepted")
    rejected = stats.rejected + fates.count("rejected")
    draft_ms = stats.draft_ms + a_round.draft_ms
    verify_ms = stats.verify_ms + a_round.verify_ms
    return replace(
        stats,
        tokens=tokens,
        rounds=rounds,
        drafted=stats.drafted + len(fates),
        accepted=accepted,
        rejected=rejected,
        acceptance_rate=ratio(accepted, accepted + rejected),
        mean_tokens_per_round=ratio(tokens, rounds),
        target_forwards=stats.target_forwards + 1,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        ttft_ms=stats.prefill_ms + draft_ms + verify_ms if rounds == 1 else stats.ttft_ms,
        tokens_per_second=ratio(1000 * tokens, draft_ms + verify_ms),
    )


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def implied_speedup(stats: Stats, cost_ratio: float | None) -> float | None:
    """Speed-up over plain decoding by Leviathan et al. 2023, theorem 3.8, with the run's measured tokens per
    round and drafts per round. It assumes that verifying a draft takes no longer than one target step."""
    if stats.mean_tokens_per_round is None or (stats.drafted and cost_ratio is None):
        return None
    return stats.mean_tokens_per_round / (stats.drafted / stats.rounds * (cost_ratio or 0) + 1)


def measured_speedup(stats: Stats) -> float | None:
    """Speed-up over a target that takes `target_step_ms` for every token."""
    if stats.tokens_per_second is None or stats.target_step_ms is None:
        return None
    return stats.tokens_per_second * stats.target_step_ms / 1000
