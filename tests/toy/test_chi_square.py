"""The chi-square tests against scipy's."""

import numpy as np
import pytest
from scipy import stats

from specdemo.trials.chi_square import (
    FEWEST,
    distance_by_chance,
    goodness_of_fit,
    homogeneity,
    pooled,
    right_tail,
    shares_of,
    total_variation,
)


@pytest.mark.parametrize("freedom", [1, 2, 7, 200])
def test_the_right_tail_is_scipys(freedom):
    for quantile in (1e-12, 1e-4, 0.2, 0.5, 0.8, 1 - 1e-3, 1 - 1e-9):
        statistic = float(stats.chi2.ppf(quantile, freedom))
        assert right_tail(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-9)
    for statistic in (0.001, freedom + 1.9, freedom + 2.1, 10 * freedom, 600.0):
        expected = stats.chi2.sf(statistic, freedom)
        assert right_tail(statistic, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_the_right_tail_at_its_ends():
    assert right_tail(0.0, 4) == right_tail(3.0, 0) == 1.0
    assert right_tail(float("inf"), 4) == 0.0


def test_goodness_of_fit_is_scipys_where_nothing_is_pooled():
    random = np.random.default_rng(3)
    p = random.dirichlet([5] * 6)
    counts = random.multinomial(2000, random.dirichlet([40] * 6))
    found = goodness_of_fit(dict(enumerate(counts.tolist())), dict(enumerate(p.tolist())))
    expected = stats.chisquare(counts, 2000 * p)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-300)
    assert found.freedom == 5


def test_right_counts_have_p_values_that_are_uniform_and_wrong_ones_do_not():
    random = np.random.default_rng(5)
    p = random.dirichlet([0.4] * 30)  # many rare cells, which have to be pooled
    exact = dict(enumerate(p.tolist()))
    draws = (dict(enumerate(random.multinomial(3000, p).tolist())) for _ in range(200))
    p_values = [goodness_of_fit(seen, exact).p_value for seen in draws]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    other = dict(enumerate(random.multinomial(3000, (p + 1 / 30) / 2).tolist()))
    assert goodness_of_fit(other, exact).p_value < 1e-6


def test_what_is_impossible_is_a_certain_no():
    assert goodness_of_fit({0: 5, 1: 1}, {0: 1.0, 1: 0.0}).p_value == 0.0
    assert goodness_of_fit({0: 5}, {0: 1.0, 1: 0.0}).p_value == 1.0
    assert goodness_of_fit({}, {0: 0.5, 1: 0.5}).p_value == 1.0, "nothing was seen"
    assert goodness_of_fit({0: 99, 1: 1}, {0: 0.98, 1: 0.02}).freedom == 0, "one cell would expect 2"


def test_pooling_joins_the_rarest_until_each_expects_enough():
    cells = pooled([(1, 1.0), (9, 8.0), (2, 3.0), (4, 4.5), (20, 20.0)])
    assert sum(count for count, _ in cells) == 36
    assert sum(expected for _, expected in cells) == pytest.approx(36.5)
    assert all(expected >= FEWEST for _, expected in cells) and len(cells) == 3
    assert pooled([(1, 1.0), (1, 2.0)]) == [(2, 3.0)], "too few for one cell"


def test_homogeneity_is_scipys_contingency_table():
    one, other = {"a": 50, "b": 30, "c": 20}, {"a": 110, "b": 50, "c": 45}
    found = homogeneity(one, other)
    expected = stats.chi2_contingency([list(one.values()), list(other.values())], correction=False)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.freedom == expected.dof == 2


def test_two_samples_of_one_distribution_have_uniform_p_values():
    random = np.random.default_rng(6)
    p = random.dirichlet([0.4] * 40)
    pairs = [[dict(enumerate(random.multinomial(n, p).tolist())) for n in (300, 400)] for _ in range(200)]
    p_values = [homogeneity(one, other).p_value for one, other in pairs]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert homogeneity({0: 200, 1: 100}, {0: 100, 1: 200}).p_value < 1e-6
    assert homogeneity({}, {0: 3}).p_value == homogeneity({0: 2}, {0: 3}).p_value == 1.0


def test_the_total_variation_distance():
    assert total_variation({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}) == 0
    assert total_variation({0: 1.0}, {1: 1.0}) == 1
    assert total_variation(shares_of({0: 3, 1: 1}), {0: 0.5, 1: 0.5}) == pytest.approx(0.25)
    assert shares_of({}) == {}


def test_the_distance_by_chance_is_what_samples_have_on_average():
    random = np.random.default_rng(4)
    p = random.dirichlet([1] * 20)
    due = dict(enumerate(p.tolist()))
    seen = [shares_of(dict(enumerate(counts.tolist()))) for counts in random.multinomial(500, p, 400)]
    mean = np.mean([total_variation(one, due) for one in seen])
    assert distance_by_chance(due, 500) == pytest.approx(mean, rel=0.05)
    pairs = zip(seen[::2], seen[1::2], strict=True)
    assert distance_by_chance(due, 250) == pytest.approx(
        np.mean([total_variation(*two) for two in pairs]), rel=0.07
    )
    assert distance_by_chance({1: 1.0}, 500) == distance_by_chance(due, 0) == 0.0
