"""The heart of speculative decoding in float64: a drafted token that stands, or else the residual, is
distributed as p: q*a + (1 - sum(q*a)) * residual = p. Everything is read off the rule's own outputs."""

import numpy as np
import pytest
import torch

from specdemo.engine.rules import speculative

EYE = np.eye(6)
RANDOM = np.random.default_rng(5)


def judge(p, q, token, coin, next_u):
    """The rule on a draft of one token; the row after it is never needed here."""
    numbers = (torch.tensor([number], dtype=torch.float64) for number in (coin, next_u))
    return speculative(torch.tensor(np.stack([p, p])), torch.tensor(q[None]), torch.tensor([token]), *numbers)


def accept_probs(p, q):
    return np.array([judge(p, q, x, 0.0, 0.0).accept_prob.item() if q[x] > 0 else 0.0 for x in range(len(q))])


def residual(p, q):
    """The distribution after a rejection, to the last bits: where the token that a number draws changes, by
    bisection. The coin 1 is above every accept_prob, so even a sure acceptance is refused."""
    token = int(q.argmax())

    def drawn(u):
        decision = judge(p, q, token, 1.0, u)
        assert decision.accepted == 0
        return decision.next.item()

    ends = []  # ends[x]: the smallest u that draws a token after x
    for x in range(len(p) - 1):
        low, high = 0.0, 1.0
        if drawn(0.0) > x:
            high = 0.0
        while np.nextafter(low, 1.0) < high and high - low > 1e-16:
            middle = (low + high) / 2
            low, high = (low, middle) if drawn(middle) > x else (middle, high)
        ends.append(high)
    return np.diff([0.0, *ends, 1.0])


def some_distribution():
    weights = RANDOM.exponential(size=6) ** RANDOM.choice([0.5, 1, 8])  # flat, middling, peaked
    weights[RANDOM.random(6) < RANDOM.choice([0, 0.5])] = 0  # as filters leave it
    weights[RANDOM.integers(6)] += 1e-3
    return weights / weights.sum()


def speck(mass):
    return np.array([1 - mass, 0, 0, 0, 0, mass])


A, B = np.array([0.5, 0.3, 0.2, 0, 0, 0]), np.array([0, 0, 0, 0.1, 0.2, 0.7])
CASES = {
    "equal": (A, A),
    "disjoint": (A, B),
    "disjoint, the other way round": (B, A),
    "p one-hot, inside q": (EYE[1], A),
    "p one-hot, outside q": (EYE[5], A),
    "q one-hot, inside p": (A, EYE[0]),
    "q one-hot, outside p": (A, EYE[5]),
    "both one-hot, the same": (EYE[2], EYE[2]),
    "both one-hot, different": (EYE[2], EYE[4]),
    "q wider than p": (A, np.full(6, 1 / 6)),
    "q narrower than p": (np.full(6, 1 / 6), B),
    "a speck": (speck(1e-12), speck(1e-12)[::-1].copy()),
    "smaller than any normal number": (speck(5e-324), speck(5e-324)[::-1].copy()),
} | {f"random {i}": (some_distribution(), some_distribution()) for i in range(9)}


@pytest.mark.parametrize("case", CASES)
def test_accepted_or_resampled_is_p(case):
    p, q = CASES[case]
    a, r = accept_probs(p, q), residual(p, q)
    assert np.allclose(q * a + (1 - (q * a).sum()) * r, p, rtol=0, atol=1e-12)
    # Only what the target likes more may replace a draft.
    assert np.array_equal(r > 0, p > q) or np.array_equal(p, q)
    mass = judge(p, q, int(q.argmax()), 1.0, 0.0).residual_mass.item()
    assert mass == pytest.approx(1 - (q * a).sum(), abs=1e-12)


def test_equal_but_for_rounding():
    """The residual is nothing but rounding then: what is drawn from it, practically never, must still be
    possible."""
    p = some_distribution()
    q = p * (1 + 1e-15 * RANDOM.normal(size=6))
    q /= q.sum()
    a = accept_probs(p, q)
    assert np.all(a[p > 0] > 1 - 1e-13)
    assert np.allclose(q * a + (1 - (q * a).sum()) * residual(p, q), p, rtol=0, atol=1e-12)


def test_enumerated_by_hand():
    """p = (1/2, 1/4, 1/4), q = (1/4, 3/4, 0): every number is exact in binary but 1/3."""
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75, 0.0])
    assert accept_probs(p, q).tolist() == [1.0, 1 / 3, 0.0]
    assert judge(p, q, 1, 1.0, 0.0).residual_mass == 0.5  # max(p - q, 0) = (1/4, 0, 1/4)
    assert residual(p, q) == pytest.approx([0.5, 0, 0.5], abs=1e-15)
    assert judge(p, q, 1, np.nextafter(1 / 3, 0), 0.0).accepted == 1
    assert judge(p, q, 1, 1 / 3, 0.0).accepted == 0, "accepted exactly when the coin is below"
    # 1/4 * 1 + 1/2 * 1/2 = 1/2;  3/4 * 1/3 + 0 = 1/4;  0 + 1/2 * 1/2 = 1/4
