"""What other draft lengths would have brought, estimated from the stored p and q of one run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from specdemo.events.metrics import is_noisy, made_in, made_of, ratio
from specdemo.events.params import LIMITS
from specdemo.events.rounds import Round, ServerStats, Stats
from specdemo.events.theory import expected_speedup, expected_tokens

FEWEST = 5  # judged drafts at a place; places with fewer are taken to be like all places together


@dataclass(frozen=True)
class Estimate:
    """One draft length. `formula`: by Leviathan et al. 2023 (equation 1, theorem 3.8) from the run's p and q;
    it takes all places of a draft alike and verifying for as long as a plain round, and has no speed-up where
    drafted tokens were dropped, because it knows none. `seen`: by the share of
    drafts that were accepted at each place and the times that this run had, so that its own draft length gets
    its own figures. Speed-ups are None where the run has no target step, or a noisy one; the formula's
    figures where a server has not told p and q."""

    gamma: int
    formula_tokens: float | None  # a round
    formula_speedup: float | None
    seen_tokens: float
    seen_speedup: float | None


def estimates(rounds: Sequence[Round], stats: Stats, rule: str = "speculative") -> list[Estimate]:
    """For gamma 0 to the largest that Params allows, or to the longest draft where p and q are not known;
    empty if nothing was judged. rule: the run's."""
    by_place = _verdicts_by_place(rounds, rule)
    judged = [verdict for verdicts in by_place for verdict in verdicts]
    if not judged:
        return []
    if stats.target_step_spread is None or is_noisy(stats, rounds):
        stats = replace(stats, target_step_ms=None, cost_ratio=None)
    known = [probability for probability, _ in judged if probability is not None]
    alpha = mean(known) if len(known) == len(judged) else None
    everywhere = mean(accepted for _, accepted in judged)
    kept_at = _share_of_rounds_with([len(one.draft) for one in rounds], rounds)
    made_at = _share_of_rounds_with([made_in(one) for one in rounds], rounds)
    tokens, kept, made, going_on = 1.0, 0.0, 0.0, 1.0
    alone = _speedup(stats, tokens, kept, made)
    some_dropped = made_of(stats) != stats.drafted
    plain = None if alpha is None else 1.0
    found = [Estimate(0, plain, None if some_dropped else alone, 1.0, alone)]
    longest = int(LIMITS["gamma"][2]) if alpha is not None else len(by_place)
    for gamma in range(1, longest + 1):
        verdicts = by_place[gamma - 1] if gamma <= len(by_place) else []
        going_on *= mean(accepted for _, accepted in verdicts) if len(verdicts) >= FEWEST else everywhere
        with_draft = kept_at[min(gamma, len(kept_at)) - 1]
        tokens += with_draft * going_on
        kept += with_draft
        made += made_at[min(gamma, len(made_at)) - 1]
        formula_tokens = None if alpha is None else expected_tokens(alpha, gamma)
        formula_speedup = None
        if alpha is not None and stats.cost_ratio is not None and not some_dropped:
            formula_speedup = expected_speedup(alpha, gamma, stats.cost_ratio)
        seen_speedup = _speedup(stats, tokens, kept, made)
        found.append(Estimate(gamma, formula_tokens, formula_speedup, tokens, seen_speedup))
    return found


def counted_estimates(server: ServerStats | None) -> list[Estimate]:
    """The same from a server's own counters, where its rounds do not tell how much was drafted: tokens a
    round, which need only the share of drafts that were accepted up to each place."""
    if server is None or not server.drafts or not server.accepted_by_place:
        return []
    found = [Estimate(0, None, None, 1.0, None)]
    for gamma, accepted in enumerate(server.accepted_by_place, 1):
        found.append(Estimate(gamma, None, None, found[-1].seen_tokens + accepted / server.drafts, None))
    return found


def best_gamma(found: Sequence[Estimate]) -> int | None:
    """The shortest draft length whose estimated speed-up is within 1 % of the largest."""
    known = [(one.gamma, one.seen_speedup) for one in found if one.seen_speedup is not None]
    if not known:
        return None
    largest = max(speedup for _, speedup in known)
    return next(gamma for gamma, speedup in known if speedup >= 0.99 * largest)


def _verdicts_by_place(rounds: Sequence[Round], rule: str) -> list[list[tuple[float | None, bool]]]:
    """accept_prob of the drafts up to a round's rejection, and whether they were accepted, by their place in
    the draft. What block verification compares u with is not for one token alone: min(1, p/q) is taken. A
    server tells whether, and no accept_prob; empty where it does not tell what was rejected."""
    places: list[list[tuple[float | None, bool]]] = []
    if not all(one.drafts_told for one in rounds):
        return places
    for one in rounds:
        for place, token in enumerate(one.draft):
            of_server = one.arrival_ms is not None
            was_judged = token.fate != "discarded" if of_server else None not in (token.accept_prob, token.u)
            if not was_judged:
                break
            if place == len(places):
                places.append([])
            by_token = ratio(token.p, token.q) if rule == "block" else None
            alone = token.accept_prob if by_token is None else min(1.0, by_token)
            places[place].append((alone, token.fate != "rejected"))
            if token.fate == "rejected":
                break
    return places


def _share_of_rounds_with(lengths: Sequence[int], rounds: Sequence[Round]) -> list[float]:
    """By place, how many of the rounds that could draft so many have a token there: all for a drafter model
    that is always sure enough, while a lookup may find less. lengths: how many tokens each round has. The
    last round does not count: the end of the text may leave it without room for a draft."""
    drafts = [(length, one.gamma) for length, one in zip(lengths, rounds, strict=True)]
    drafts = drafts[:-1] or drafts
    longest = max(length for length, _ in drafts)
    return [
        mean(length > place for length, gamma in drafts if gamma is None or gamma > place)
        for place in range(longest)
    ] or [0.0]


def _speedup(stats: Stats, tokens: float, kept: float, made: float) -> float | None:
    """With this run's times: a token that the drafter makes costs its drafting, and one that is kept costs
    what it adds to the target's forward."""
    drafting_ms = ratio(stats.draft_ms, made_of(stats))
    if stats.target_step_ms is None or not stats.drafted or drafting_ms is None or stats.verify_ms is None:
        return None
    added_ms = max(0.0, (stats.verify_ms - stats.rounds * stats.target_step_ms) / stats.drafted)
    return tokens * stats.target_step_ms / (stats.target_step_ms + made * drafting_ms + kept * added_ms)
