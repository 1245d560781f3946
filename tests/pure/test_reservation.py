"""How long a run on ZeroGPU asks for the GPU, by what the runs of its pair took before."""

from dataclasses import replace

import pytest

from specdemo.events import Params
from specdemo.zero import KEPT, Spent

PARAMS = Params(gamma=4, max_new_tokens=200)


def spent_on(params=PARAMS, is_new=True, prepared=4.0, later=2.0, rounds=100):
    spent = Spent()
    spent.add(params, is_new, prepared, later, rounds)
    return spent


@pytest.mark.parametrize("tokens, seconds", [(1, 6), (200, 15), (1000, 55), (30_000, 60)])
def test_what_no_run_has_shown_is_estimated(tokens, seconds):
    assert Spent().seconds_for(replace(PARAMS, max_new_tokens=tokens)) == seconds


def test_what_runs_took_counts_with_a_margin_a_floor_and_a_limit():
    assert spent_on().seconds_for(PARAMS) == 10, "1.25 x (4 + 200 x 0.02)"
    assert spent_on(prepared=0.1, later=0.1).seconds_for(PARAMS) == 3
    assert spent_on(later=200.0).seconds_for(PARAMS) == 60
    assert spent_on(is_new=False).seconds_for(PARAMS) == 10, "5 + 1.25 x 200 x 0.02: no new process yet"


def test_a_text_of_which_no_draft_is_accepted_is_reckoned_with():
    spent = spent_on(is_new=False, later=3.0, rounds=100)  # of 500 tokens, perhaps
    assert spent.seconds_for(replace(PARAMS, max_new_tokens=1000)) >= 5 + 1000 * 0.03


def test_the_slowest_of_the_last_runs_counts():
    spent = spent_on(prepared=8.0, later=4.0)
    for _ in range(KEPT - 1):
        spent.add(PARAMS, True, 2.0, 1.0, 100)
    assert spent.seconds_for(PARAMS) == 20
    spent.add(PARAMS, False, 0.1, 1.0, 100)  # a process that was there already says nothing of a new one
    assert spent.seconds_for(PARAMS) == 13
    spent.add(PARAMS, True, 2.0, 1.0, 100)
    assert spent.seconds_for(PARAMS) == 5


def test_what_matters_has_its_own_and_what_hardly_matters_shares_what_is_known():
    for field in ({"seed": 3}, {"temperature": 0.5}, {"top_k": 20}, {"regex": "a"}):
        assert spent_on().seconds_for(replace(PARAMS, **field)) == 10
    for field in ({"draft_with": "lookup"}, {"gamma": 8}, {"tree": (2, 1)}, {"temperature": 0.0}):
        assert spent_on().seconds_for(replace(PARAMS, **field)) == 15, "1.25 x 4 + 200 x 0.05"
    for fields in ({"draft_with": "none"}, {"tree": (2, 1)}):
        used = replace(PARAMS, **fields)
        assert spent_on(used).seconds_for(replace(used, gamma=8)) == 10, "a draft length that is not used"


@pytest.mark.parametrize("rounds", [1, 199])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_run_that_was_cut_asks_for_more_the_next_time(rounds, is_new):
    spent = spent_on()
    had = spent.seconds_for(PARAMS)
    spent.add(PARAMS, is_new, 1.0, had - 1.0, rounds)
    assert spent.seconds_for(PARAMS) > had
    unprepared = spent_on()
    unprepared.add(PARAMS, True, had, 0.0, 0)
    assert unprepared.seconds_for(PARAMS) > had
