"""Numbers: what a run's rounds add up to, and what the theory of speculative decoding makes of them."""

from dataclasses import replace

from specdemo.events import Round, Stats


def fresh(target_step_ms: float | None = None, drafter_step_ms: float | None = None) -> Stats:
    """The numbers of a run in which nothing has happened yet; the step times are the pair's, measured apart."""
    return Stats(
        tokens=0, rounds=0, drafted=0, accepted=0, rejected=0, acceptance_rate=None, mean_tokens_per_round=None,
        target_forwards=0, prefill_ms=0.0, draft_ms=0.0, verify_ms=0.0, ttft_ms=None, tokens_per_second=None,
        target_step_ms=target_step_ms, drafter_step_ms=drafter_step_ms, cost_ratio=ratio(drafter_step_ms, target_step_ms),
    )  # fmt: skip


def after_prefill(stats: Stats, forwards: int, prefill_ms: float) -> Stats:
    return replace(stats, target_forwards=forwards, prefill_ms=prefill_ms)


def after_round(stats: Stats, round: Round) -> Stats:
    """One more round. Only judged drafts count for the acceptance rate: accepted / (accepted + rejected)."""
    fates = [token.fate for token in round.draft]
    tokens = stats.tokens + len(round.emitted)
    rounds = stats.rounds + 1
    accepted = stats.accepted + fates.count("accepted")
    rejected = stats.rejected + fates.count("rejected")
    draft_ms = stats.draft_ms + round.draft_ms
    verify_ms = stats.verify_ms + round.verify_ms
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
    """a / b, or None where that means nothing."""
    return a / b if a is not None and b else None


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round that an acceptance rate `alpha` gives: (1 - alpha^(gamma+1)) / (1 - alpha). Leviathan et al. 2023,
    eq. 1 (drafts accepted independently of each other)."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """How much faster than one token a target forward, when a drafter step costs `cost_ratio` of a target step and a
    verifying forward no more than a one-token one. Leviathan et al. 2023, theorem 3.8."""
    return expected_tokens(alpha, gamma) / (gamma * cost_ratio + 1)


def implied_speedup(stats: Stats, cost_ratio: float | None) -> float | None:
    """The same with what a run has measured in place of what a model of it expects: tokens per round, and drafts per round."""
    if stats.mean_tokens_per_round is None or (stats.drafted and cost_ratio is None):
        return None
    return stats.mean_tokens_per_round / (stats.drafted / stats.rounds * (cost_ratio or 0) + 1)


def measured_speedup(stats: Stats) -> float | None:
    """Against a target that takes `target_step_ms` for every token."""
    if stats.tokens_per_second is None or stats.target_step_ms is None:
        return None
    return stats.tokens_per_second * stats.target_step_ms / 1000
