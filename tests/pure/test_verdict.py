"""Whether speculation paid, in words: every number in the sentence is one of the run's."""

import re
from dataclasses import replace
from statistics import mean

import pytest

from specdemo.events import Next, Params, Round, metrics
from specdemo.events.speedup import break_even, claimed, expected_tokens
from specdemo.events.verdict import verdict as verdict_of

PLAIN_MS = (10.0, 10.5, 11.0, 11.5) * 2
NONE_DRAFTED = {"rounds": 100, "drafted": 0, "accepted": 0, "rejected": 0, "acceptance_rate": None}


def verdict(found, finish, rounds, **params):
    return verdict_of(found, finish, rounds, Params(**params))


def stats(step=PLAIN_MS, interval=(0.94, 1.06), **more):
    """interval: of the speed-up, in parts of it."""
    numbers = {"tokens": 100, "rounds": 40, "drafted": 160, "accepted": 60, "rejected": 30}
    numbers |= {"acceptance_rate": 2 / 3, "draft_ms": 100.0, "verify_ms": 500.0} | more
    drafter_step = numbers["draft_ms"] / numbers["drafted"] if numbers["drafted"] else None
    found = replace(metrics.fresh(), **numbers, drafter_step_ms=drafter_step)
    if not step:
        return found
    step_ms = mean(step)
    speedup = step_ms * found.tokens / found.run_ms
    ends = (interval[0] * speedup, interval[1] * speedup)
    return replace(found, target_step_ms=step_ms, speedup=speedup, speedup_interval=ends)


def test_faster():
    found = verdict(stats(), "eos", ())
    assert found.tone == "faster"
    assert found.text == (
        "100 tokens in 40 target forwards; the target alone needs 100. "
        "Measured: 1.79 × as fast as the target alone (1.68 to 1.90 ×, 90%)."
    )


def test_slower_says_why_and_from_which_acceptance_rate_it_pays():
    slow = stats(draft_ms=900.0, verify_ms=900.0)
    found = verdict(slow, "length", ())
    assert found.tone == "slower"
    assert found.text.startswith("Slower here: 0.60 × as fast as the target alone (0.56 to 0.63 ×, 90%). ")
    assert "Drafting takes 50% of the time and 67% of the judged drafts are accepted" in found.text
    needed = int(re.search(r"it is faster when at least (\d+)% are", found.text)[1]) / 100
    # A round takes 45 ms and a plain one 10.75, so it has to bring as many tokens as that.
    assert expected_tokens(needed, 4) == pytest.approx(45 / 10.75, rel=0.02)


def test_after_a_pause_no_mean_of_its_rounds_is_told_as_that_of_a_draft():
    pause = Round(0, (), None, (1,), 0.0, 1.0, gamma=0, ended_by="pause")
    found = verdict(stats(draft_ms=900.0, verify_ms=900.0), "length", [pause])
    assert "Drafting takes 50% of the time." in found.text and "at least" not in found.text


def test_slower_beyond_all_hope_and_as_fast_as_the_target_alone():
    slower = verdict(stats(draft_ms=3000.0), "length", ())
    assert "it would not pay even if all were" in slower.text
    level = verdict(stats(draft_ms=500.0, step=(9.0, 9.5, 10.5, 11.0)), "length", ())
    assert level.tone == "neutral"
    assert level.text.endswith(
        ": 1.00 × as fast as the target alone (0.94 to 1.06 ×, 90%), no clear difference."
    )


def test_of_a_wide_interval_nothing_is_claimed_but_that_the_machine_was_busy():
    narrow = replace(stats(interval=(0.8, 1.27)), target_step_spread=(10.0, 11.5))
    assert claimed(narrow) == narrow
    for part in (0.01, 1.0, 30.0):  # slower and faster alike
        wide = claimed(stats(interval=(0.8 * part, 1.29 * part), target_step_spread=(10.0, 11.5)))
        assert wide.speedup is wide.speedup_interval is None and wide.target_step_ms == mean(PLAIN_MS)
        found = verdict(wide, "length", ())
        assert found.tone == "neutral" and found.text == (
            "100 tokens in 40 target forwards; the target alone needs 100. "
            "No speed-up is known: the machine was too busy to time one."
        )
        still = verdict_of(wide, "length", (), Params(), settles=True)
        assert still.text.endswith("needs 100. Its speed-up is still being timed.")


def test_a_recorded_run_says_where_the_figure_is_from():
    def recorded(**more):
        return verdict_of(stats(**more), "eos", (), Params(), recorded_on="a Xeon, 2026-11-24").text

    assert " 100. Recorded on a Xeon, 2026-11-24: 1.79 × as fast as the target alone (" in recorded()
    level = recorded(draft_ms=500.0, step=(9.0, 9.5, 10.5, 11.0))
    assert " Recorded on a Xeon, 2026-11-24: 1.00 × as" in level and level.endswith(", no clear difference.")
    slower = recorded(draft_ms=3000.0)
    assert slower.startswith("Slower there: 0.31 × as")
    assert "). Recorded on a Xeon, 2026-11-24. Drafting takes" in slower
    alone = recorded(**NONE_DRAFTED, draft_ms=0.0, verify_ms=1075.0)
    assert " Measured against itself on a Xeon, 2026-11-24, which should give 1 ×: 1.00 ×" in alone


def test_plain_decoding_is_measured_against_itself():
    text = verdict(stats(**NONE_DRAFTED, draft_ms=0.0, verify_ms=1075.0), "length", ()).text
    assert text.startswith("100 tokens in 100 target forwards: nothing was drafted.")
    assert text.endswith("Measured against itself, which should give 1 ×: 1.00 × (0.94 to 1.06 ×, 90%).")


def test_drafts_that_were_all_dropped_are_not_nothing():
    """The drafter ran in each round, so the run is compared with the target alone."""
    dropped = Round(0, (), None, (), 4.0, 11.0, gamma=4, ended_by="confidence", made=1)
    found = verdict(stats(**NONE_DRAFTED, draft_ms=400.0, verify_ms=1075.0), "length", [dropped] * 100)
    assert found.tone == "slower"
    assert found.text == (
        "Slower here: 0.73 × as fast as the target alone (0.69 to 0.77 ×, 90%). Drafting takes 27% of the "
        "time. 100 tokens in 100 target forwards: every draft was dropped, because the drafter was never "
        "sure enough."
    )
    level = verdict(stats(**NONE_DRAFTED, draft_ms=1.0, verify_ms=1075.0), "length", [dropped] * 100)
    assert level.tone == "neutral" and "as fast as the target alone" in level.text
    forbidden = [replace(dropped, ended_by="grammar", made=0)] * 100
    by_grammar = verdict(stats(**NONE_DRAFTED, draft_ms=400.0, verify_ms=1075.0), "length", forbidden)
    assert by_grammar.tone == "slower" and "nothing was drafted" in by_grammar.text
    assert "itself" not in level.text + found.text + by_grammar.text


def test_what_was_not_measured_is_said():
    for run, finish, why in (
        (stats(step=()), "cancelled", "it was stopped"),
        (stats(step=()), "error", "it failed"),
        (stats(step=()), "eos", "the target alone was not timed after it"),
        (stats(step=(), tokens=23), "eos", "a run of fewer than 24 tokens is too short to be timed"),
        (replace(stats(), speedup_interval=None), "eos", "this trace is too old to have its interval"),
    ):
        assert verdict(run, finish, ()).text.endswith(f"No speed-up is known: {why}.")


def test_while_it_goes_on_and_with_nothing():
    assert verdict(stats(step=()), None, ()).text == "100 tokens in 40 target forwards so far."
    assert verdict(metrics.fresh(), None, ()).text == ""
    assert verdict(metrics.fresh(), "cancelled", ()).text == "No token was generated."
    one = stats(step=(), tokens=1, rounds=1)
    assert verdict(one, None, ()).text == "1 token in 1 target forward so far."


def test_breaking_even():
    for gamma in (1, 3.5, 8):
        for alpha in (0.0, 0.3, 0.9):
            assert break_even(gamma, expected_tokens(alpha, gamma)) == pytest.approx(alpha, abs=1e-9)
        assert break_even(gamma, gamma + 1.01) is None


def test_a_lossy_run_says_so_first_and_how_far_it_was_from_the_target():
    exact, lossy = (verdict(replace(stats(), distance=distance), "eos", ()) for distance in (None, 0.1236))
    assert lossy.text == f"Lossy: 0.124 from the target's distribution on average. {exact.text}"
    assert (exact.tone, lossy.tone) == ("faster", "lossy")


SCHEMA = '{"type": "object"}'


def written(*tokens):
    """Rounds of one token each: its text, and how many tokens the grammar allowed."""
    nexts = (
        Next(1, text, "sampled", 1.0, None, 1.0, None, 0.1, None, (), allowed) for text, allowed in tokens
    )
    return [Round(at, (), one, (1,), 0.0, 1.0) for at, one in enumerate(nexts)]


@pytest.mark.parametrize(
    ("finish", "tokens", "params", "said"),
    [
        ("length", [('{"a"', 9), (": 1", 9)], {"json_schema": SCHEMA}, "The JSON is cut"),
        ("stop", [('{"a": 1', 9), ("}", 9)], {"json_schema": SCHEMA, "stop": ("}",)}, "The JSON is cut"),
        ("length", [('{"a": 1', 9), ("}", 9)], {"json_schema": SCHEMA}, ""),
        ("length", [("so: ", None), ("{}", 9)], {"json_schema": SCHEMA}, ""),
        (
            "eos",
            [("Hm", None), ("", None)],
            {"json_schema": SCHEMA},
            "The text ended before the JSON schema applied.",
        ),
        ("eos", [("Hm", None)], {"regex": "a+"}, "The text ended before the regular expression applied."),
        ("length", [("aa", 9)], {"regex": "a+b"}, ""),
        ("length", [("aa", None)], {}, ""),
    ],
)
def test_a_text_that_ends_before_its_json_does_or_before_it_is_bound_says_so(finish, tokens, params, said):
    text = verdict(stats(), finish, written(*tokens), **params).text
    assert said in text and (said or not re.search("cut|ended before", text))
