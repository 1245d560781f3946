"""The numbers of a run: the worked example of the trace format, and several rounds added up."""

from dataclasses import replace

import pytest

from specdemo.events import Judged, Next, Round, metrics


def judged(token_id, fate):
    was_judged = fate != "discarded"
    return Judged(
        token_id, "", 0.5, 0.5, 0.5, 0.5, 0.1 if was_judged else None, 1.0 if was_judged else None, fate, ()
    )


def a_round(*fates, own_id=305, draft_ms=0.0, verify_ms=0.0, index=0):
    draft = tuple(judged(i, fate) for i, fate in enumerate(fates))
    emitted = tuple(token.id for token in draft if token.fate == "accepted")
    source = "resampled" if "rejected" in fates else "bonus" if fates else "sampled"
    own = None if own_id is None else Next(own_id, "", source, 0.7, None, 0.6, None, 0.5, None, ())
    return Round(index, draft, own, emitted if own is None else (*emitted, own_id), draft_ms, verify_ms)


def folded(*rounds, forwards=1, prefill_ms=5.0, plain_ms=()):
    stats = metrics.after_prefill(metrics.fresh(), forwards, prefill_ms)
    for one in rounds:
        stats = metrics.after_round(stats, one)
    return metrics.after_plain_rounds(stats, list(plain_ms))


def test_the_example_of_the_trace_format():
    example = a_round("accepted", "rejected", "discarded", draft_ms=1.2, verify_ms=3.4)
    stats = folded(example, plain_ms=[2.7, 2.8, 2.9, 3.0, 3.2])
    assert (stats.tokens, stats.rounds, stats.drafted, stats.accepted, stats.rejected) == (2, 1, 3, 1, 1)
    assert (stats.acceptance_rate, stats.mean_tokens_per_round, stats.target_forwards) == (0.5, 2.0, 2)
    assert (stats.prefill_ms, stats.draft_ms, stats.verify_ms) == (5.0, 1.2, 3.4)
    assert stats.ttft_ms == pytest.approx(9.6)
    assert stats.tokens_per_second == pytest.approx(434.8, abs=0.05)
    assert (stats.target_step_ms, stats.drafter_step_ms) == (pytest.approx(2.9), pytest.approx(0.4))
    assert stats.target_step_spread == (pytest.approx(2.74), pytest.approx(3.12))
    assert stats.cost_ratio == pytest.approx(0.138, abs=0.0005)
    assert stats.speedup == pytest.approx(1.26, abs=0.005)
    low, high = metrics.speedup_spread(stats)
    assert (low, high) == (pytest.approx(2.74 * 2 / 4.6), pytest.approx(3.12 * 2 / 4.6))
    assert not metrics.is_noisy(stats, ())


def test_too_few_plain_rounds_give_no_speed_up():
    stats = folded(a_round("accepted", draft_ms=1, verify_ms=4), plain_ms=[3.0] * (metrics.FEWEST - 1))
    assert stats.target_step_ms is stats.target_step_spread is stats.speedup is stats.cost_ratio is None
    assert stats.drafter_step_ms == 1 and metrics.speedup_spread(stats) is None


def test_a_wide_spread_is_noise():
    assert metrics.is_noisy(folded(a_round(verify_ms=3.0), plain_ms=[1.0, 1.1, 2.9, 3.0]), ())


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
    assert (stats.draft_ms, stats.verify_ms, stats.ttft_ms) == (4, 16, 15), (
        "time to the first token: prefill and first round only"
    )
    assert stats.tokens_per_second == 1000 * 6 / 20, "prefill is not part of it"


def test_discarded_ones_do_not_count_for_the_rate():
    """Not even those that were judged: they come after the end of the text."""
    assert folded(a_round("accepted", "discarded", "discarded", own_id=None)).acceptance_rate == 1.0


def test_dropped_tokens_take_time_and_are_not_drafted():
    stats = folded(replace(a_round("accepted", draft_ms=3.0, verify_ms=5.0), made=3), plain_ms=[6.0] * 4)
    assert (stats.drafted, stats.made) == (1, 3)
    assert (stats.drafter_step_ms, stats.cost_ratio) == (3.0, 0.5), "draft_ms / drafted"
    assert metrics.implied_speedup(stats) == pytest.approx(2 / 1.5)


def test_a_run_whose_drafts_were_all_dropped_implies_no_speed_up():
    dropped = folded(replace(a_round(draft_ms=3.0, verify_ms=5.0), made=2), plain_ms=[3.0] * 4)
    assert (dropped.drafter_step_ms, metrics.implied_speedup(dropped)) == (None, None)
    assert metrics.implied_speedup(folded(a_round(verify_ms=3.0), plain_ms=[3.0] * 4)) == 1


def test_nothing_over_nothing_is_none():
    empty = folded()
    assert (
        empty.acceptance_rate
        is empty.mean_tokens_per_round
        is empty.ttft_ms
        is empty.tokens_per_second
        is empty.cost_ratio
        is None
    )
    plain = folded(a_round(verify_ms=2.0), plain_ms=[2.0] * 4)
    assert plain.acceptance_rate is plain.cost_ratio is plain.drafter_step_ms is None
    assert (plain.mean_tokens_per_round, plain.target_step_ms, plain.tokens_per_second) == (1.0, 2.0, 500.0)
    assert folded(a_round()).tokens_per_second is None, "no time was measured"


def test_the_stats_of_before_are_left_alone():
    before = folded()
    metrics.after_round(before, a_round("accepted"))
    assert before == folded()


def test_one_disturbed_plain_round_makes_no_speed_up_outside_its_own_interval():
    stats = folded(a_round("accepted", verify_ms=20.0), plain_ms=[10.0] * 29 + [160.0])
    low, high = metrics.speedup_spread(stats)
    assert low <= stats.speedup <= high and stats.speedup == 1


def test_the_distance_of_a_lossy_run_counts_the_places_of_its_tokens_only():
    """A stop string can end a text inside the accepted drafts: what follows it is in no text."""

    def judged(fate, distance):
        return Judged(1, "", 0.5, 0.5, 0.5, 0.5, 0.1, 1.0, fate, (), distance)

    ended = Round(0, (judged("accepted", 0.9), judged("rejected", 0.7)), None, (1,), 1.0, 1.0)
    stats = metrics.after_round(metrics.fresh(), ended)
    assert stats.distance == 0.9
    own = Next(2, "", "resampled", 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, ())
    whole = Round(1, (judged("accepted", 0.1), judged("rejected", 0.2)), own, (1, 2), 1.0, 1.0)
    assert metrics.after_round(stats, whole).distance == pytest.approx((0.9 + 0.1 + 0.2) / 3)
