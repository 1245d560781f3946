"""The estimator of every speed-up: its value from the times beside it, and an interval that holds it."""

from dataclasses import replace
from math import exp, sqrt
from random import Random
from statistics import median

import pytest

from specdemo.events import Stats
from specdemo.events.speedup import FEWEST_PLAIN, SHORTEST, TimedRound, plain, speed_up
from specdemo.measure.samples import (
    FEWEST_TURNS,
    TimedText,
    TimedTurn,
    after_turns,
    speed_up_in_turns,
    speed_up_on_prompts,
)

SPANS = (1, 4, 16, 64, 256)  # rounds over which parts of the noise last


def noise(dice: Random, count: int, size: float) -> list[float]:
    """Factors of a machine whose speed drifts over all spans alike, as a shared one's does."""
    levels = [dice.gauss(0, 1) for _ in SPANS]
    factors = []
    for _ in range(count):
        for at, span in enumerate(SPANS):
            keep = 1 - 1 / span
            levels[at] = keep * levels[at] + sqrt(1 - keep * keep) * dice.gauss(0, 1)
        factors.append(exp(size * sum(levels) / sqrt(len(SPANS))))
    return factors


def measured(seed: int, rounds: int, plain_rounds: int, size: float, gamma: int = 0):
    """A run whose rounds take 10 ms and 2 for each draft, right behind it plain rounds of 10 ms, and how many
    times as fast the run would have been on a steady machine."""
    dice = Random(seed)
    factors = noise(dice, rounds + plain_rounds, size)
    own = [TimedRound(dice.randint(1, gamma + 1), gamma, (10 + 2 * gamma) * f) for f in factors[:rounds]]
    alone = plain([10 * f for f in factors[rounds:]])
    truth = 10 * sum(one.tokens for one in own) / ((10 + 2 * gamma) * rounds)
    return speed_up([alone], [own]), truth


def test_the_value_is_the_ratio_of_the_times_of_a_token_and_turns_round_with_its_sides():
    slow, fast = plain([10.0, 12.0] * 20), [TimedRound(3, 4, ms) for ms in (15.0, 21.0) * 20]
    found, turned = speed_up([slow], [fast]), speed_up([fast], [slow])
    assert found.value == pytest.approx(11 / (18 / 3))
    assert turned.value == pytest.approx(1 / found.value)
    assert turned.low == pytest.approx(1 / found.high, rel=0.02)
    assert turned.high == pytest.approx(1 / found.low, rel=0.02)
    assert speed_up([slow], [fast]) == found, "the same again: it is seeded"


@pytest.mark.parametrize(("rounds", "plain_rounds", "size", "gamma"), [(24, 8, 0.3, 4), (60, 24, 0.04, 0)])
def test_nine_in_ten_intervals_hold_the_truth_where_times_drift(rounds, plain_rounds, size, gamma):
    held, widths = 0, []
    for seed in range(60):
        found, truth = measured(seed, rounds, plain_rounds, size, gamma)
        held += found.low <= truth <= found.high
        widths.append(found.high / found.low)
    assert held >= 51, held  # of 60; 54 expected
    assert sorted(widths)[30] < exp(8 * size), "and say something"


def test_what_is_too_short_has_none():
    enough, few = plain([10.0] * SHORTEST), plain([10.0] * (SHORTEST - 1))
    assert speed_up([plain([10.0] * FEWEST_PLAIN)], [enough]).value == pytest.approx(1)
    assert speed_up([plain([10.0] * (FEWEST_PLAIN - 1))], [enough]) is None
    assert speed_up([enough], [few]) is None and speed_up([], [enough]) is None
    assert speed_up([enough], [[TimedRound(24, 23, 10.0)]]).value == pytest.approx(24), "one long round"
    assert speed_up([enough], [plain([0.0] * SHORTEST)]) is None
    assert speed_up([few, enough], [few, [], enough]).value == pytest.approx(1)


@pytest.mark.parametrize("rounds", [1, 8])
def test_nine_in_ten_intervals_of_short_runs_hold_the_truth(rounds):
    """Of a slow model that accepts much."""
    held, widths = 0, []
    for seed in range(60):
        factors = noise(Random(seed), rounds + 8, 0.3)
        run = [TimedRound(24 // rounds, 8, 30.0 * f) for f in factors[:rounds]]
        found = speed_up([plain([10.0 * f for f in factors[rounds:]])], [run])
        held += found.low <= 10 * 24 / (30 * rounds) <= found.high
        widths.append(found.high / found.low)
    assert held >= 51, held  # of 60; 54 expected
    assert sorted(widths)[30] < 4


ALIKE = [TimedRound(3, 4, 0.0)] * 30  # the rounds of a run


def in_turns(turns, rounds=ALIKE):
    tokens, drafted = (sum(getattr(one, name) for one in rounds) for name in ("tokens", "drafted"))
    return speed_up_in_turns([TimedText(tokens, len(rounds), drafted, turns)])


def turns_of(seed: int, count: int, quotient: float = 2.0, size: float = 0.1, drift: float = 0.0):
    """Turns in which a round of the run takes `quotient` plain ones. drift: of both sides between turns."""
    dice, pace, found = Random(seed), 1.0, []
    for _ in range(count):
        pace *= exp(dice.gauss(0, drift))
        slow = [TimedRound(1, 0, pace * dice.lognormvariate(0, size)) for _ in range(8)]
        fast = [TimedRound(3, 4, pace * quotient * dice.lognormvariate(0, size)) for _ in range(4)]
        found.append(TimedTurn(slow, fast))
    return found


@pytest.mark.parametrize(("unlike", "size"), [(0.0, 0.3), (0.15, 0.1)])
def test_nine_in_ten_intervals_of_prompts_hold_the_truth(unlike, size):
    """unlike: how much the cost of a round varies between prompts."""

    def text(seed: int) -> TimedText:
        quotient = 2 * exp(Random(-seed).gauss(0, unlike))
        return TimedText(90, 30, 120, turns_of(seed, 8, quotient, size))

    found = [
        speed_up_on_prompts({("work", at): text(10 * seed + at) for at in range(6)}) for seed in range(100)
    ]
    assert 80 <= sum(one.low <= 1.5 <= one.high for one in found) <= 99


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_nine_in_ten_intervals_of_turns_hold_the_truth_and_are_narrow_where_both_sides_drift(drift):
    found = [in_turns(turns_of(seed, 16, drift=drift)) for seed in range(100)]
    assert 80 <= sum(one.low <= 1.5 <= one.high for one in found) <= 99
    assert median(one.high / one.low for one in found) < 1.08


def test_a_stall_within_a_turn_moves_the_speed_up_of_turns_by_little():
    steady = turns_of(1, 20)
    stalled = [*steady[:-1], TimedTurn(steady[-1].slow, [TimedRound(3, 4, 500.0)])]
    before, after = (in_turns(turns) for turns in (steady, stalled))
    assert after.value == pytest.approx(before.value, rel=0.03) and after.high < 1.15 * after.low


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_long_drafts_that_are_rare_count_with_their_time_as_with_their_tokens(share):
    """A drafter that looks things up: most rounds draft nothing and take a plain one, some draft 16 tokens
    and take three. Turns with these are few enough to be trimmed."""
    dice, turns = Random(3), []
    hit, miss = TimedRound(17, 16, 3.0), TimedRound(1, 0, 1.0)
    for _ in range(40):
        fast = [hit if dice.random() < share else miss for _ in range(4)]
        slow = [replace(miss, ms=dice.lognormvariate(0, 0.02)) for _ in range(8)]
        turns.append(TimedTurn(slow, fast))
    rounds = [hit] * round(100 * share) + [miss] * round(100 - 100 * share)
    truth = sum(one.tokens for one in rounds) / sum(one.ms for one in rounds)
    found = in_turns(turns, rounds)
    assert found.value == pytest.approx(truth, rel=0.03) and found.low <= truth <= found.high


def test_after_turns_the_figures_of_a_run_still_follow_from_each_other():
    """The run's own times stay as they were, and it took twice as long then."""
    stats = replace(
        Stats(), tokens=90, rounds=30, drafted=120, draft_ms=36.0, verify_ms=84.0, drafter_step_ms=0.3
    )
    after = after_turns(stats, turns_of(2, 16))
    assert in_turns(turns_of(2, FEWEST_TURNS - 1)) is None
    assert (after.draft_ms, after.verify_ms) == (36.0, 84.0)
    assert after.speedup == pytest.approx(1.5, rel=0.05)
    assert after.speedup == pytest.approx(after.target_step_ms * after.tokens / after.run_ms)
    assert after.cost_ratio == pytest.approx(after.drafter_step_ms / after.target_step_ms)
    low, high = after.target_step_spread
    assert low < after.target_step_ms < high
