"""Pearson's chi-square tests of counts, and the total variation distance."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

FEWEST = 5.0  # expected in a cell, or the statistic would not have the chi-square distribution


@dataclass(frozen=True)
class ChiSquare:
    """The result of a test. p_value: the probability that counts of the same distribution differ at least as
    much. freedom: the degrees of freedom; 0 where there is one cell only, so that nothing can differ."""

    statistic: float
    freedom: int
    p_value: float


def goodness_of_fit(seen: Mapping[Hashable, int], probabilities: Mapping[Hashable, float]) -> ChiSquare:
    """Whether counts come from a distribution, whose probabilities sum to 1. The rarest cells are pooled
    until each expects FEWEST. Something seen that has probability 0 is a certain no: p-value 0."""
    runs = sum(seen.values())
    possible = {cell: p for cell, p in probabilities.items() if p > 0}
    if any(count for cell, count in seen.items() if cell not in possible):
        return ChiSquare(math.inf, max(0, len(possible) - 1), 0.0)
    return _of_cells([(seen.get(cell, 0), runs * p) for cell, p in possible.items()])


def homogeneity(one: Mapping[Hashable, int], other: Mapping[Hashable, int]) -> ChiSquare:
    """Whether two counts come from the same distribution. The rarest cells are pooled until the smaller of
    the two samples expects FEWEST in each."""
    few, many = sorted((one, other), key=lambda seen: sum(seen.values()))
    runs, more = sum(few.values()), sum(many.values())
    if not runs:
        return ChiSquare(0.0, 0, 1.0)
    both = [(few.get(cell, 0), few.get(cell, 0) + many.get(cell, 0)) for cell in {**one, **other}]
    share = runs / (runs + more)
    # In each cell the larger sample is off by as much as the smaller one, and expects more / runs as much.
    return _of_cells([(count, total * share) for count, total in both if total], 1 + runs / more)


def _of_cells(cells: list[tuple[int, float]], factor: float = 1.0) -> ChiSquare:
    """cells: (count, expected) of each. factor: of the statistic."""
    cells = pooled(cells)
    statistic = factor * sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = max(0, len(cells) - 1)
    return ChiSquare(statistic, freedom, right_tail(statistic, freedom))


def pooled(cells: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """(count, expected) of each cell, the rarest joined until each expects FEWEST, or one is left."""
    rarest_first = sorted(cells, key=lambda cell: cell[1])
    done: list[tuple[int, float]] = []
    count, expected = 0, 0.0
    for more, expects in rarest_first:
        count, expected = count + more, expected + expects
        if expected >= FEWEST:
            done.append((count, expected))
            count, expected = 0, 0.0
    if expected:
        last = done.pop() if done else (0, 0.0)
        done.append((count + last[0], expected + last[1]))
    return done


def total_variation(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    """Half the sum of the differences of two distributions: 0 where they are equal, at most 1."""
    return sum(abs(one.get(cell, 0.0) - other.get(cell, 0.0)) for cell in {**one, **other}) / 2


def distance_by_chance(probabilities: Mapping[Hashable, float], runs: float) -> float:
    """About how far, in total variation, the shares of `runs` draws from these probabilities are from them on
    average: the mean of |X - np| is near sqrt(2 n p (1 - p) / pi), that of a normal variable."""
    spread = sum(math.sqrt(p * (1 - p)) for p in probabilities.values() if p < 1)
    return min(1.0, spread / math.sqrt(2 * math.pi * runs)) if runs else 0.0


def shares_of(seen: Mapping[Hashable, int]) -> dict[Hashable, float]:
    """The share of each cell; none where nothing was seen."""
    total = sum(seen.values())
    return {cell: count / total for cell, count in seen.items()} if total else {}


def right_tail(statistic: float, freedom: int) -> float:
    """The probability that a chi-square variable is at least as large as `statistic`: the regularised upper
    incomplete gamma function Q(freedom / 2, statistic / 2)."""
    if freedom == 0:
        return 1.0
    a, x = (torch.tensor(value / 2, dtype=torch.float64) for value in (freedom, statistic))
    return torch.special.gammaincc(a, x.clamp(min=0.0)).item()
