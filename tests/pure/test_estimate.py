"""What other draft lengths would bring: against runs of a model whose acceptance is known by construction."""

from dataclasses import replace
from functools import reduce
from random import Random

import pytest

from specdemo.events import Judged, Next, Round, Stats
from specdemo.events.speedup import (
    after_plain_rounds,
    best_gamma,
    checks,
    claimed,
    estimates,
    expected_speedup,
    expected_tokens,
)
from specdemo.events.trace import after_round

STEP, DRAFT, ADDED = 10.0, 1.0, 0.5  # ms: a plain round, a drafted token, a token more to verify


def token(prob, u):
    judged = None if u is None else prob
    fate = "discarded" if u is None else "accepted" if u < prob else "rejected"
    return Judged(1, "", prob, 1.0, prob, 1.0, u, judged, fate, ())


def simulated(gamma, acceptance, count=2500, seed=0):
    """Rounds of a drafter whose drafts are accepted with probability acceptance(place)."""
    dice, rounds = Random(seed), []
    for index in range(count):
        draft, alive = [], True
        for place in range(gamma):
            u = dice.random() if alive else None
            draft.append(token(acceptance(place), u))
            alive = alive and u < acceptance(place)
        kept = sum(one.fate == "accepted" for one in draft)
        source = "sampled" if not gamma else "bonus" if kept == gamma else "resampled"
        own = Next(2, "", source, 0.5, None, 0.5, None, 0.5, None, ())
        times = (gamma * DRAFT, STEP + gamma * ADDED)
        rounds.append(Round(index, tuple(draft), own, (1,) * kept + (2,), *times))
    return rounds


def stats_of(rounds, step=STEP):
    counted = reduce(after_round, rounds, Stats())
    return after_plain_rounds(counted, rounds, [step] * 10 if step else [])


def test_the_estimates_of_drafts_made_at_once_are_what_runs_of_other_lengths_measure():
    """A draft takes as long however many tokens it has."""

    def at_once(gamma, seed=0):
        rounds = simulated(gamma, lambda place: 0.8, seed=seed)
        return [replace(one, draft_ms=2.5 * DRAFT if one.draft else 0.0) for one in rounds]

    rounds = at_once(6)
    found = estimates(rounds, stats_of(rounds), 6, 16, at_once=True)
    for gamma in (0, 1, 4):
        other = stats_of(at_once(gamma, seed=gamma + 1))
        assert found[gamma].speedup == pytest.approx(other.speedup, rel=0.04)
    limited = estimates(rounds, stats_of(rounds), 6, 6, at_once=True)
    assert limited == found[:7], "none that the drafter cannot make"


@pytest.mark.parametrize("acceptance", [lambda place: 0.8, lambda place: 0.9 - 0.1 * place])
def test_the_estimates_of_one_run_are_what_runs_of_other_lengths_measure(acceptance):
    rounds = simulated(6, acceptance)
    found = estimates(rounds, stats_of(rounds), 6, 16)
    assert [one.gamma for one in found] == list(range(17))
    for gamma in (0, 1, 4):
        other = stats_of(simulated(gamma, acceptance, seed=gamma + 1))
        assert found[gamma].tokens == pytest.approx(other.mean_tokens_per_round, rel=0.03)
        assert found[gamma].speedup == pytest.approx(other.speedup, rel=0.03)


def test_an_estimate_is_as_sure_as_the_speed_up_of_its_run():
    rounds = simulated(4, lambda place: 0.7, count=80)
    stats = stats_of(rounds)
    stats = replace(stats, speedup_interval=(0.9 * stats.speedup, 1.2 * stats.speedup))
    alone, *others = estimates(rounds, stats, 4, 16)
    assert (alone.speedup, alone.interval) == (1.0, None)
    own, ninth = others[3], others[8]
    assert (own.speedup, *own.interval) == pytest.approx((stats.speedup, *stats.speedup_interval))
    assert ninth.interval == pytest.approx((0.9 * ninth.speedup, 1.2 * ninth.speedup))
    unsure = claimed(replace(stats, speedup_interval=(0.8 * stats.speedup, 1.6 * stats.speedup)))
    assert {(one.speedup, one.interval) for one in estimates(rounds, unsure, 4, 16)} == {(None, None)}


def test_tokens_a_round_grow_with_the_draft_length_to_the_runs_own_and_beyond_by_less_and_less():
    """However few rounds it has and lucky they were, and where the text's end left the last one no room."""
    for seed in range(20):
        rounds = simulated(4, lambda place: 0.6, count=12, seed=seed)
        rounds = [replace(one, gamma=4) for one in rounds[:-1]] + [replace(rounds[-1], draft=(), gamma=0)]
        stats = stats_of(rounds)
        tokens = [one.tokens for one in estimates(rounds, stats, 4, 16)]
        assert tokens[4] == pytest.approx(stats.mean_tokens_per_round), "as both stand next to each other"
        gains = [after - before for before, after in zip(tokens, tokens[1:], strict=False)]
        assert min(gains) >= 0 and gains == pytest.approx(sorted(gains, reverse=True))


def test_the_best_is_the_shortest_within_a_hundredth_of_the_largest():
    rounds = simulated(4, lambda place: 0.7, count=2000)
    found = estimates(rounds, stats_of(rounds), 4, 16)
    best, largest = best_gamma(found), max(one.speedup for one in found)
    assert found[best].speedup >= 0.99 * largest > found[best - 1].speedup


def test_what_is_not_known_has_no_estimate():
    """Without a target step there are tokens and no speed-ups; without an acceptance rate, as of a server
    that does not tell how much it drafts, none beyond the run's own length."""
    rounds = simulated(4, lambda place: 0.7, count=50)
    found = estimates(rounds, stats_of(rounds, step=None), 4, 16)
    assert all(one.speedup is None for one in found)
    assert found[4].tokens > 2 and best_gamma(found) is None
    untold = replace(stats_of(rounds, step=None), drafted=None, rejected=None, acceptance_rate=None)
    assert estimates(rounds, untold, 4, 16) == found[:5]
    assert estimates(rounds, stats_of(rounds), None, 16) == [], "chosen round by round"
    plain = simulated(0, lambda place: 0.5, count=20)
    assert estimates(plain, stats_of(plain), 4, 16) == []


def test_a_longer_draft_is_never_faster_than_the_runs_own():
    """Where its rounds were faster than plain ones, by chance or by a file's say."""
    rounds = [
        replace(one, draft_ms=0.0, verify_ms=0.8 * STEP) for one in simulated(1, lambda place: 0.7, 200)
    ]
    stats = stats_of(rounds)
    beyond = estimates(rounds, stats, 1, 16)[1:]
    assert all(one.speedup == pytest.approx(one.tokens / 0.8) for one in beyond)


# The formulas of the theory, against sums written out.


@pytest.mark.parametrize(("alpha", "cost", "gamma", "speedup"), [(0.8, 0.05, 8, 3.09), (0.6, 0.2, 2, 1.40)])
def test_the_best_gamma_and_its_speedup(alpha, cost, gamma, speedup):
    by_gamma = {g: expected_speedup(alpha, g, cost) for g in range(17)}
    assert max(by_gamma, key=by_gamma.get) == gamma
    assert by_gamma[gamma] == pytest.approx(speedup, abs=0.005)
    assert by_gamma[0] == 1.0
    for length in (0, 1, 16):  # one token is certain; the i-th draft is accepted if all before it were
        told = expected_tokens(alpha, length)
        assert told == pytest.approx(sum(alpha**i for i in range(length + 1)), rel=1e-12)
    assert expected_tokens(1.0, 16) == 17 and expected_tokens(0.0, 4) == 1


def test_checks_of_full_drafts_stand_beside_plain_rounds_of_the_same_run():
    rounds, times = simulated(4, lambda place: 0.8, 60), [11.0, 12.0, 13.0] * 20
    rounds = [replace(one, verify_ms=ms) for one, ms in zip(rounds, times, strict=True)]
    stats = stats_of(rounds)
    found = checks(stats, 4)
    assert (found.rows, found.plain_ms, found.draft_ms) == (5, STEP, 4 * DRAFT)
    assert found.verify_ms == pytest.approx(12.0)
    low, high = found.interval
    assert found.ratio == pytest.approx(1.2) and low < 1.2 < high
    assert high / low == pytest.approx(stats.speedup_interval[1] / stats.speedup_interval[0])
    shorter = stats_of([replace(one, draft=one.draft[:3]) for one in rounds])
    assert checks(shorter, 4) is checks(stats_of(rounds, step=None), 4) is checks(stats, None) is None
