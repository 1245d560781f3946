"""Whether speculation paid: which sentences are said of a run, and that their numbers are the run's."""

from dataclasses import replace
from statistics import mean
from types import SimpleNamespace

import pytest

from specdemo.events import Params, Round, Stats
from specdemo.events.speedup import break_even, claimed, expected_tokens
from specdemo.events.verdict import verdict

PLAIN_MS = (10.0, 10.5, 11.0, 11.5) * 2
LEVEL = (9.0, 9.5, 10.5, 11.0)
NONE_DRAFTED = {"rounds": 100, "drafted": 0, "accepted": 0, "rejected": 0, "acceptance_rate": None}


def said(found, finish="eos", rounds=(), recorded_on="", settles=False, **params):
    """The tone, and by key the values of all that is said, in the order in which it was made."""
    parts = {}

    def speak(key, **values):
        parts[key] = values
        return key

    trace = SimpleNamespace(stats=found, rounds=rounds, params=Params(**params))
    made = verdict(trace, finish, speak, recorded_on, settles)
    assert made.text.startswith("lossy ") == (made.tone == "lossy")
    return made.tone, parts


def stats(step=PLAIN_MS, interval=(0.94, 1.06), **more):
    """interval: of the speed-up, in parts of it."""
    numbers = {"tokens": 100, "rounds": 40, "drafted": 160, "accepted": 60, "rejected": 30}
    numbers |= {"acceptance_rate": 2 / 3, "draft_ms": 100.0, "verify_ms": 500.0} | more
    drafter_step = numbers["draft_ms"] / numbers["drafted"] if numbers["drafted"] else None
    found = replace(Stats(), **numbers, drafter_step_ms=drafter_step)
    if not step:
        return found
    step_ms = mean(step)
    speedup = step_ms * found.tokens / found.run_ms
    ends = (interval[0] * speedup, interval[1] * speedup)
    return replace(found, target_step_ms=step_ms, speedup=speedup, speedup_interval=ends)


def test_faster_level_and_slower_beyond_all_hope():
    tone, told = said(stats())
    assert tone == "faster" and {"counted", "faster"} <= told.keys()
    assert told["as_fast"] | {"place": ""} == {"value": "1.79", "low": "1.68", "high": "1.90", "place": ""}
    assert told["tokens"]["count"] == 100 and told["forwards"]["count"] == 40
    tone, told = said(stats(draft_ms=500.0, step=LEVEL))
    assert tone == "neutral" and "unclear" in told
    tone, told = said(stats(draft_ms=3000.0))
    assert tone == "slower" and told["hopeless"]["rate"] == "67%"


def test_slower_says_why_and_from_which_acceptance_rate_it_pays():
    slow = stats(draft_ms=900.0, verify_ms=900.0)
    tone, told = said(slow, "length")
    assert tone == "slower" and told["as_fast"]["value"] == "0.60"
    assert (told["needs_more"]["share"], told["needs_more"]["rate"]) == ("50%", "67%")
    # A round takes 45 ms and a plain one 10.75, so it has to bring as many tokens as that.
    needed = int(told["needs_more"]["needed"].removesuffix("%")) / 100
    assert expected_tokens(needed, 4) == pytest.approx(45 / 10.75, rel=0.02)
    # After a pause no mean of its rounds is told as that of a draft.
    pause = Round(0, (), None, (1,), 0.0, 1.0, gamma=0, ended_by="pause")
    _, told = said(slow, "length", [pause])
    assert told["drafting_takes"] == {"share": "50%"} and "needs_more" not in told


def test_of_a_wide_interval_nothing_is_claimed_but_that_the_machine_was_busy():
    narrow = replace(stats(interval=(0.8, 1.27)), target_step_spread=(10.0, 11.5))
    assert claimed(narrow) == narrow
    for part in (0.0, 0.01, 1.0, 30.0):  # slower and faster alike, and what only a file can hold
        wide = claimed(stats(interval=(0.8 * part, 1.29 * part), target_step_spread=(10.0, 11.5)))
        assert wide.speedup is wide.speedup_interval is None and wide.target_step_ms == mean(PLAIN_MS)
        tone, told = said(wide)
        assert tone == "neutral" and {"counted", "unknown", "busy"} <= told.keys()
        assert "settles" in said(wide, settles=True)[1]


def test_a_recorded_run_says_where_the_figure_is_from():
    for more, key in (
        ({}, "faster_there"),
        ({"draft_ms": 500.0, "step": LEVEL}, "unclear_there"),
        ({"draft_ms": 3000.0}, "slower_there"),
        ({**NONE_DRAFTED, "draft_ms": 0.0, "verify_ms": 1075.0}, "itself_there"),
    ):
        assert said(stats(**more), recorded_on="a Xeon")[1][key]["place"] == "a Xeon"


def test_plain_decoding_is_measured_against_itself_and_drafts_that_were_all_dropped_are_not():
    """The drafter ran in each round, so the run is compared with the target alone."""
    tone, told = said(stats(**NONE_DRAFTED, draft_ms=0.0, verify_ms=1075.0))
    assert tone == "neutral" and "nothing_drafted" in told and told["itself"]["value"] == "1.00"
    one = Round(0, (), None, (), 4.0, 11.0, gamma=4, ended_by="confidence")
    for rounds, key in (
        ([one], "all_dropped"),
        ([replace(one, ended_by="drafter")], "nothing_drafted"),
    ):
        tone, told = said(stats(**NONE_DRAFTED, draft_ms=400.0, verify_ms=1075.0), rounds=rounds)
        assert tone == "slower" and key in told and told["drafting_takes"] == {"share": "27%"}
        assert "itself" not in said(stats(**NONE_DRAFTED, draft_ms=1.0, verify_ms=1075.0), rounds=rounds)[1]


def test_what_was_not_measured_is_said():
    for run, finish, why in (
        (stats(step=()), "cancelled", "cancelled"),
        (stats(step=()), "error", "failed"),
        (stats(step=()), "eos", "untimed"),
        (stats(step=(), tokens=23), "eos", "short"),
    ):
        assert said(run, finish)[1]["unknown"] == {"why": why}
    assert "so_far" in said(stats(step=()), None)[1]
    assert said(Stats(), None) == ("neutral", {}) and "none" in said(Stats(), "cancelled")[1]


def test_breaking_even():
    for gamma in (1, 3.5, 8):
        for alpha in (0.0, 0.3, 0.9):
            assert break_even(gamma, expected_tokens(alpha, gamma)) == pytest.approx(alpha, abs=1e-9)
        assert break_even(gamma, gamma + 1.01) is None


def test_a_lossy_run_says_so_first_and_how_far_it_was_from_the_target():
    tone, told = said(replace(stats(), distance=0.1236))
    assert tone == "lossy" and told["lossy"] == {"distance": "0.124"} and "faster" in told
