"""The numbers of a run: several rounds added up, and plain rounds beside them."""

from functools import reduce

import pytest

from specdemo.events import Judged, Next, Round, Stats
from specdemo.events.speedup import after_plain_rounds
from specdemo.events.trace import after_round


def judged(token_id, fate, distance=None):
    u, accept_prob = (None, None) if fate == "discarded" else (0.1, 1.0)
    return Judged(token_id, "", 0.5, 0.5, 0.5, 0.5, u, accept_prob, fate, (), distance)


def a_round(*fates, own_id=305, draft_ms=0.0, verify_ms=0.0, index=0):
    draft = tuple(judged(i, fate) for i, fate in enumerate(fates))
    emitted = tuple(token.id for token in draft if token.fate == "accepted")
    source = "resampled" if "rejected" in fates else "bonus" if fates else "sampled"
    own = None if own_id is None else Next(own_id, "", source, 0.7, None, 0.6, None, 0.5, None, ())
    return Round(index, draft, own, emitted if own is None else (*emitted, own_id), draft_ms, verify_ms)


def folded(*rounds, forwards=1, prefill_ms=5.0, plain_ms=()):
    stats = reduce(after_round, rounds, Stats(target_forwards=forwards, prefill_ms=prefill_ms))
    return after_plain_rounds(stats, rounds, plain_ms)


PLAIN_MS = [2.7, 2.8, 2.9, 3.0, 3.2, 2.9, 2.8, 3.1]


def test_plain_rounds_give_the_target_step_and_the_speed_up():
    rounds = [a_round("accepted", "rejected", draft_ms=1.2, verify_ms=3.4, index=i) for i in range(12)]
    stats = folded(*rounds, plain_ms=PLAIN_MS)
    assert stats.target_step_ms == pytest.approx(sum(PLAIN_MS) / 8)
    assert stats.target_step_spread == (pytest.approx(2.77), pytest.approx(3.13))
    assert stats.cost_ratio == pytest.approx(0.6 / stats.target_step_ms)
    assert stats.speedup == pytest.approx(stats.target_step_ms * 24 / (12 * 4.6))
    low, high = stats.speedup_interval
    assert 0.9 * stats.speedup < low < stats.speedup < high < 1.1 * stats.speedup


@pytest.mark.parametrize(("count", "plain_ms"), [(11, PLAIN_MS), (12, PLAIN_MS[1:])])
def test_a_run_of_fewer_than_24_tokens_or_8_plain_rounds_has_no_speed_up(count, plain_ms):
    rounds = [a_round("accepted", draft_ms=1, verify_ms=4, index=i) for i in range(count)]
    stats = folded(*rounds, plain_ms=plain_ms)
    assert stats.target_step_ms is stats.target_step_spread is stats.cost_ratio is None
    assert stats.speedup is stats.speedup_interval is None and stats.drafter_step_ms == 1


def test_several_rounds_add_up():
    rounds = [
        a_round("accepted", "accepted", draft_ms=1, verify_ms=4),
        a_round("rejected", "discarded", draft_ms=2, verify_ms=5, index=1),
        a_round(draft_ms=0, verify_ms=3, index=2),
        a_round("accepted", own_id=None, draft_ms=1, verify_ms=4, index=3),
    ]
    stats = folded(*rounds, forwards=2, prefill_ms=10.0)
    assert (stats.tokens, stats.rounds, stats.drafted, stats.accepted, stats.rejected) == (6, 4, 5, 3, 1)
    assert (stats.acceptance_rate, stats.mean_tokens_per_round, stats.target_forwards) == (3 / 4, 6 / 4, 6)
    assert (stats.draft_ms, stats.verify_ms) == (4, 16)
    assert stats.ttft_ms == 15, "prefill and first round only"
    assert stats.tokens_per_second == 1000 * 6 / 20, "prefill is not part of it"
    after_the_end = a_round("accepted", "discarded", "discarded", own_id=None)  # these were judged, too
    assert folded(after_the_end).acceptance_rate == 1.0


def test_dropped_tokens_take_time_and_are_not_drafted():
    stats = folded(*[a_round("accepted", draft_ms=3.0, verify_ms=5.0)] * 12, plain_ms=[6.0] * 8)
    assert (stats.drafter_step_ms, stats.cost_ratio) == (3.0, 0.5), "draft_ms / drafted"
    dropped = folded(*[a_round(draft_ms=3.0, verify_ms=5.0)] * 24, plain_ms=[3.0] * 8)
    assert (dropped.drafter_step_ms, dropped.cost_ratio, dropped.speedup) == (None, None, 3 / 8)


def test_nothing_over_nothing_is_none():
    empty = folded()
    assert empty.acceptance_rate is empty.mean_tokens_per_round is empty.cost_ratio is None
    assert empty.ttft_ms is empty.tokens_per_second is None
    plain = folded(*[a_round(verify_ms=2.0)] * 24, plain_ms=[2.0] * 8)
    assert plain.acceptance_rate is plain.cost_ratio is plain.drafter_step_ms is None
    assert (plain.mean_tokens_per_round, plain.target_step_ms, plain.tokens_per_second) == (1.0, 2.0, 500.0)
    assert folded(a_round()).tokens_per_second is None, "no time was measured"


def test_the_distance_of_a_lossy_run_counts_the_places_of_its_tokens_only():
    """A stop string can end a text inside the accepted drafts: what follows it is in no text."""

    ended = Round(0, (judged(1, "accepted", 0.9), judged(1, "rejected", 0.7)), None, (1,), 1.0, 1.0)
    stats = after_round(Stats(), ended)
    assert stats.distance == 0.9
    own = Next(2, "", "resampled", 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, ())
    whole = Round(1, (judged(1, "accepted", 0.1), judged(1, "rejected", 0.2)), own, (1, 2), 1.0, 1.0)
    assert after_round(stats, whole).distance == pytest.approx((0.9 + 0.1 + 0.2) / 3)
