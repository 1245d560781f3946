"""How long a measurement will take, as the page says before it begins."""

from dataclasses import replace
from pathlib import Path

import pytest

from specdemo.bench.methods import WARM_UP_TOKENS
from specdemo.events import METHODS
from specdemo.events.speedup import estimates
from specdemo.events.trace import Trace
from specdemo.ui.view.durations import GAMMAS, IN_TURNS, SET_SIZE, seconds

TRACE = Trace.load(Path(__file__).resolve().parents[2] / "assets" / "traces" / "first.json")
FOUND = estimates(TRACE.rounds, TRACE.stats)


def test_a_race_is_two_runs_after_two_warm_ups():
    stats = TRACE.stats
    both_ms = 2 * stats.prefill_ms + stats.run_ms + stats.tokens * stats.target_step_ms
    warm_up = WARM_UP_TOKENS / stats.tokens
    assert warm_up < 1 and seconds(TRACE, FOUND)["race"] == pytest.approx((1 + warm_up) * both_ms / 1000)


def test_more_runs_take_longer():
    times = seconds(TRACE, FOUND)
    # Between all at twice the target's speed and all at half of it, with plain rounds in turns.
    for kind, settings, texts in (
        ("gamma", len(GAMMAS) + 1, SET_SIZE),
        ("compare", len(METHODS) + 2, IN_TURNS),
        ("set", len(METHODS) + 2, SET_SIZE),
    ):
        runs = settings * texts / 2 * 1.5
        assert runs / 2 < times[kind] / times["race"] < 2 * runs


def test_draft_lengths_have_no_time_without_estimates_and_a_run_without_rounds_has_none():
    assert set(seconds(TRACE, [])) == {"race", "compare", "set"}
    assert seconds(replace(TRACE, stats=replace(TRACE.stats, rounds=0)), FOUND) == {}


def test_a_trace_can_name_a_kind_of_drafter_that_is_gone():
    older = replace(TRACE, pair=replace(TRACE.pair, drafter_kind="medusa"))
    assert seconds(older, FOUND)["compare"] < seconds(TRACE, FOUND)["compare"], "it is asked for no trees"
