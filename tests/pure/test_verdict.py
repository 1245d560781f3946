"""Whether speculation paid, in words: every number in the sentence is one of the run's."""

import re
from dataclasses import replace

import pytest

from specdemo.events import Round, metrics
from specdemo.events.theory import break_even, expected_tokens
from specdemo.events.verdict import verdict


def stats(step=(10.0, 10.5, 11.0, 11.5), **more):
    numbers = {"tokens": 100, "rounds": 40, "drafted": 160, "accepted": 60, "rejected": 30}
    numbers |= {"acceptance_rate": 2 / 3, "draft_ms": 100.0, "verify_ms": 500.0} | more
    drafter_step = numbers["draft_ms"] / numbers["drafted"] if numbers["drafted"] else None
    return metrics.after_plain_rounds(replace(metrics.fresh(), **numbers, drafter_step_ms=drafter_step), step)


def test_faster():
    found = verdict(stats(), "eos", ())
    assert found.tone == "faster"
    assert found.text == (
        "100 tokens in 40 target forwards; the target alone needs 100. "
        "Measured here: 1.79 × faster (between 1.69 × and 1.89 ×)."
    )


def test_slower_says_why_and_from_which_acceptance_rate_it_pays():
    slow = stats(draft_ms=900.0, verify_ms=900.0)
    found = verdict(slow, "length", ())
    assert found.tone == "slower" and found.text.startswith("0.60 ×: slower here")
    assert "Drafting takes 50% of the time and 67% of the judged drafts are accepted" in found.text
    needed = int(re.search(r"it pays from (\d+)% on", found.text)[1]) / 100
    # A round takes 45 ms and a plain one 10.75, so it has to bring as many tokens as that.
    assert expected_tokens(needed, 4) == pytest.approx(45 / 10.75, rel=0.02)


def test_slower_beyond_all_hope():
    found = verdict(stats(draft_ms=3000.0), "length", ())
    assert "it would not pay even if all were" in found.text


def test_as_fast_as_the_target_alone():
    found = verdict(stats(draft_ms=500.0, step=(9.0, 9.5, 10.5, 11.0)), "length", ())
    assert found.tone == "neutral" and "about as fast as the target alone" in found.text


def test_noise_is_said_and_no_speed_up_is_told():
    found = verdict(stats(step=(5.0, 9.0, 14.0, 19.0)), "length", ())
    assert "Too noisy to say" in found.text and found.tone == "neutral"
    assert f"{stats(step=(5.0, 9.0, 14.0, 19.0)).speedup:.2f} ×" not in found.text


def test_a_run_that_was_disturbed_itself_is_noise_too():
    quiet, loud = (Round(0, (), None, (), 0.0, verify_ms) for verify_ms in (10.0, 30.0))
    assert verdict(stats(), "length", [quiet] * 8).tone == "faster"
    assert verdict(stats(), "length", [quiet] * 4 + [loud] * 4).text.startswith("100 tokens in 40")
    assert "Too noisy to say" in verdict(stats(), "length", [quiet] * 4 + [loud] * 4).text


def test_plain_decoding_is_measured_against_itself():
    alone = stats(
        rounds=100, drafted=0, accepted=0, rejected=0, acceptance_rate=None, draft_ms=0.0, verify_ms=1075.0
    )
    text = verdict(alone, "length", ()).text
    assert text.startswith("100 tokens in 100 target forwards: nothing was drafted.")
    assert "against itself: 1.00 ×" in text


def test_drafts_that_were_all_dropped_are_not_nothing():
    """The drafter ran in each round, so the run is compared with the target alone."""
    dropped = Round(0, (), None, (), 4.0, 11.0, gamma=4, ended_by="confidence", made=1)
    none = {"rounds": 100, "drafted": 0, "accepted": 0, "rejected": 0, "acceptance_rate": None}
    times = {"draft_ms": 400.0, "verify_ms": 1075.0}
    found = verdict(stats(**none, **times), "length", [dropped] * 100)
    assert found.tone == "slower"
    assert found.text == (
        "0.73 ×: slower here (between 0.69 × and 0.77 ×). Drafting takes 27% of the time. 100 tokens in 100 "
        "target forwards: every draft was dropped, because the drafter was never sure enough."
    )
    level = verdict(stats(**none | times | {"draft_ms": 1.0}), "length", [dropped] * 100)
    assert level.tone == "neutral" and "about as fast as the target alone" in level.text
    assert "against itself" not in level.text + found.text


@pytest.mark.parametrize(
    ("finish", "why"),
    [
        ("cancelled", "it was stopped"),
        ("error", "it failed"),
        ("eos", "too few plain rounds were timed after it"),
    ],
)
def test_what_was_not_measured_is_said(finish, why):
    assert verdict(stats(step=()), finish, ()).text.endswith(f"No speed-up was measured: {why}.")


def test_while_it_goes_on_and_with_nothing():
    assert verdict(stats(step=()), None, ()).text == "100 tokens in 40 target forwards so far."
    assert verdict(metrics.fresh(), None, ()).text == ""
    assert verdict(metrics.fresh(), "cancelled", ()).text == "No token was generated."
    one = stats(step=(), tokens=1, rounds=1)
    assert verdict(one, None, ()).text == "1 token in 1 target forward so far."


@pytest.mark.parametrize("gamma", [1, 3.5, 8])
def test_breaking_even(gamma):
    for alpha in (0.0, 0.3, 0.9):
        assert break_even(gamma, expected_tokens(alpha, gamma)) == pytest.approx(alpha, abs=1e-9)
    assert break_even(gamma, gamma + 1.01) is None


def test_a_lossy_run_says_so_first_and_how_far_it_was_from_the_target():
    exact, lossy = (verdict(replace(stats(), distance=distance), "eos", ()) for distance in (None, 0.1236))
    assert lossy.text == f"Lossy: 0.124 from the target's distribution on average. {exact.text}"
    assert (exact.tone, lossy.tone) == ("faster", "lossy")
