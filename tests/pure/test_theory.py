"""The formulas of the theory, against sums written out."""

import pytest

from specdemo.events.speedup import expected_speedup, expected_tokens


@pytest.mark.parametrize(("alpha", "cost", "gamma", "speedup"), [(0.8, 0.05, 8, 3.09), (0.6, 0.2, 2, 1.40)])
def test_the_best_gamma_and_its_speedup(alpha, cost, gamma, speedup):
    by_gamma = {g: expected_speedup(alpha, g, cost) for g in range(17)}
    assert max(by_gamma, key=by_gamma.get) == gamma
    assert by_gamma[gamma] == pytest.approx(speedup, abs=0.005)
    assert by_gamma[0] == 1.0


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 4), (0.3, 0), (0.8, 1), (0.999, 16), (1.0, 16)])
def test_expected_tokens_add_up_the_chances_of_each_place(alpha, gamma):
    """One token is certain; the i-th draft is accepted if all before it were."""
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)), rel=1e-12)


def test_a_drafter_that_costs_as_much_as_the_target_cannot_win():
    assert all(expected_speedup(1.0, gamma, 1.0) == 1.0 for gamma in range(1, 17))
    assert all(expected_speedup(0.9, gamma, 1.0) < 1.0 for gamma in range(1, 17))
