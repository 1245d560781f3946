"""The rule on cases made by hand, several drafts long. That it is exact is shown in
tests/toy/test_exact_table.py."""

import pytest
import torch

from specdemo.engine.rules import Lenient, block, rule_of, speculative, typical
from specdemo.events import RULES, Params

A, B, C = [1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]


def judge(p, q, draft, coins, next_u):
    def tensor(rows):
        return torch.tensor(rows, dtype=torch.float64)

    return speculative(
        tensor(p),
        tensor(q).reshape(-1, len(p[0])),
        torch.tensor(draft, dtype=torch.long),
        tensor(coins),
        tensor([next_u]),
    )


def test_the_first_refusal_ends_it():
    p = [[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0.5, 0.5, 0], C]
    q = [[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0.5, 0.5, 0]]
    decision = judge(
        p, q, [1, 0, 1], [0.9, 0.5, 0.0], 0.5
    )  # 0.5 is not below 0.5; the third coin would have accepted
    assert decision.accept_prob.tolist() == [1, 0.5, 1]
    assert decision.accepted == 1
    assert (decision.next, decision.residual_mass) == (2, 0.25)  # max(p - q, 0) = (0, 0, 1/4)


@pytest.mark.parametrize("coin", [0.0, 1 - 2**-53])
def test_one_hot_and_disjoint(coin):
    same, other = judge([A, B], [A], [0], [coin], 0.5), judge([A, B], [B], [1], [coin], 0.5)
    assert (same.accepted, same.next) == (1, 1)
    assert (other.accept_prob.item(), other.accepted, other.next, other.residual_mass) == (0, 0, 0, 1)


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
def test_typical_acceptance_asks_for_less_where_the_target_is_unsure(sharpness):
    """Cai et al. 2024: p > min(0.09, 0.3 exp(-H)), H the entropy. Both sides of the minimum decide here."""
    torch.manual_seed(3)
    p = torch.rand(40, 61).double().pow(sharpness)
    p /= p.sum(-1, keepdim=True)
    entropy = -(p * p.log()).sum(-1)
    by_entropy = 0.3 * torch.exp(-entropy[:-1])
    drafted = torch.multinomial(p[:-1], 1)[:, 0]
    coins = torch.full((39,), 0.5).double()
    q = torch.full((39, 61), 1 / 61).double()
    decision = typical(p, q, drafted, coins, coins[:1])
    chosen = p[torch.arange(39), drafted]
    assert torch.equal(decision.accept_prob, (chosen > by_entropy.clamp(max=0.09)).double())
    assert (by_entropy < 0.09).any()


@pytest.mark.parametrize("next_u", [0.0, 1 - 2**-53])
def test_no_residual_falls_back_to_p(next_u):
    """p = q is never refused, but were it, no token of probability 0 may come of it."""
    p = [0, 0.5, 0.5]
    decision = judge([p, A], [p], [1], [1.0], next_u)
    assert (decision.accepted, decision.residual_mass) == (0, 0)
    assert decision.next in (1, 2)


def test_a_rule_changes_none_of_its_arguments_and_gives_the_same_again():
    p, q = torch.tensor([[0.2, 0.8], [0.5, 0.5]]).double(), torch.tensor([[0.9, 0.1]]).double()
    arguments = [p, q, torch.tensor([0]), torch.tensor([0.4]).double(), torch.tensor([0.4]).double()]
    copies = [a.clone() for a in arguments]
    first, again = speculative(*arguments), speculative(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))
    assert first.next == again.next and first.accepted == again.accepted


def test_every_rule_that_params_offers_is_there():
    rules = [rule_of(Params(rule=name)) for name in RULES]
    assert rules == [speculative, block, typical, Lenient(0.5)]
    assert rule_of(Params(rule="lenient", lenience=0.3)) == Lenient(0.3)
