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
    assert right_tail(0.0, freedom) == right_tail(3.0, 0) == 1.0 and right_tail(float("inf"), freedom) == 0.0


def test_goodness_of_fit_is_scipys_where_nothing_is_pooled():
    random = np.random.default_rng(3)
    p = random.dirichlet([5] * 6)
    counts = random.multinomial(2000, random.dirichlet([40] * 6))
    found = goodness_of_fit(dict(enumerate(counts.tolist())), dict(enumerate(p.tolist())))
    expected = stats.chisquare(counts, 2000 * p)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-300)
    assert found.freedom == 5


def test_homogeneity_is_scipys_contingency_table():
    one, other = {"a": 50, "b": 30, "c": 20}, {"a": 110, "b": 50, "c": 45}
    found = homogeneity(one, other)
    expected = stats.chi2_contingency([list(one.values()), list(other.values())], correction=False)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.freedom == expected.dof == 2
    assert homogeneity({}, {0: 3}).p_value == homogeneity({0: 2}, {0: 3}).p_value == 1.0


def test_right_counts_have_p_values_that_are_uniform_and_wrong_ones_do_not():
    random = np.random.default_rng(5)
    p = random.dirichlet([0.4] * 30)  # many rare cells, which have to be pooled
    exact = dict(enumerate(p.tolist()))

    def drawn(count, p=p):
        return dict(enumerate(random.multinomial(count, p).tolist()))

    for p_values in (
        [goodness_of_fit(drawn(3000), exact).p_value for _ in range(200)],
        [homogeneity(drawn(300), drawn(400)).p_value for _ in range(200)],
    ):
        assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    wrong = (p + 1 / 30) / 2
    assert goodness_of_fit(drawn(3000, wrong), exact).p_value < 1e-6
    assert homogeneity(drawn(3000, wrong), drawn(3000)).p_value < 1e-6


def test_what_is_impossible_is_a_certain_no_and_what_is_too_rare_is_pooled():
    assert goodness_of_fit({0: 5, 1: 1}, {0: 1.0, 1: 0.0}).p_value == 0.0
    assert goodness_of_fit({0: 5}, {0: 1.0, 1: 0.0}).p_value == 1.0
    assert goodness_of_fit({}, {0: 0.5, 1: 0.5}).p_value == 1.0, "nothing was seen"
    assert goodness_of_fit({0: 99, 1: 1}, {0: 0.98, 1: 0.02}).freedom == 0, "one cell would expect 2"
    cells = pooled([(1, 1.0), (9, 8.0), (2, 3.0), (4, 4.5), (20, 20.0)])
    assert [sum(column) for column in zip(*cells, strict=True)] == [36, pytest.approx(36.5)]
    assert all(expected >= FEWEST for _, expected in cells) and len(cells) == 3
    assert pooled([(1, 1.0), (1, 2.0)]) == [(2, 3.0)], "too few for one cell"


def test_the_total_variation_distance_and_what_it_is_by_chance():
    assert total_variation({0: 1.0}, {1: 1.0}) == 1 and shares_of({}) == {}
    assert total_variation(shares_of({0: 3, 1: 1}), {0: 0.5, 1: 0.5}) == pytest.approx(0.25)
    random = np.random.default_rng(4)
    p = random.dirichlet([1] * 20)
    due = dict(enumerate(p.tolist()))
    seen = [shares_of(dict(enumerate(counts.tolist()))) for counts in random.multinomial(500, p, 400)]
    mean = np.mean([total_variation(one, due) for one in seen])
    assert distance_by_chance(due, 500) == pytest.approx(mean, rel=0.05)
    assert distance_by_chance({1: 1.0}, 500) == distance_by_chance(due, 0) == 0.0
