"""The rules over all drafts, verdicts and next tokens of small vocabularies: what they emit, exactly."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from specdemo.engine.rules import Lenient, block, speculative, typical
from tests.compiled import compiled
from tests.oracle import joint, random_models

V = 3
LOSSLESS = {"speculative": speculative, "block": block}
LOSSY = {"typical": typical, "lenient": Lenient(0.5)}
# Each in torch, in float64 here, and compiled, which rounds p and q to float32.
WAYS = {"torch": (lambda rule: rule, 1e-9), "compiled": (compiled, 1e-6)}


def texts_of(longest):
    return [text for length in range(longest + 1) for text in product(range(V), repeat=length)]


def verdicts(rule, p, q, k, padding=0):
    """Every draft with every number that it may keep: (the draft, how many are kept, how likely that is, the
    next token for a uniform number). padding: rows without a draft, as a captured step has them."""
    for draft in product(range(V), repeat=k):
        before = [draft[:i] for i in range(k + 1)]
        ps = np.stack([p[text] for text in before] + [np.eye(V)[0]] * padding)
        qs = np.stack([q[text] for text in before[:-1]] + [np.zeros(V)] * padding)
        drafted = np.prod([q[before[i]][x] for i, x in enumerate(draft)])
        if drafted == 0:
            continue

        def judged(u, next_u, ps=ps, qs=qs, draft=draft):
            return rule(
                torch.tensor(ps),
                torch.tensor(qs),
                torch.tensor([*draft, *[0] * padding]),
                torch.tensor([*u, *[np.inf] * padding], dtype=torch.float64),
                torch.tensor([next_u], dtype=torch.float64),
            )

        probs = judged([0.5] * k, 0.5).accept_prob[:k].tolist()
        for passes in product([True, False], repeat=k):  # each u is below its probability, or is not
            chance = np.prod([a if passed else 1 - a for a, passed in zip(probs, passes, strict=True)])
            u = [0.0 if passed else 1 - 2**-53 for passed in passes]
            if chance > 0:
                kept = int(judged(u, 0.5).accepted)
                yield draft, kept, drafted * chance, lambda next_u, u=u, j=judged: int(j(u, next_u).next)


def outcomes(rule, p, q, k, padding=0):
    """{text: probability} of one round, where the text is what was kept and the next token."""
    found, following = Counter(), {}
    for draft, kept, chance, next_token in verdicts(rule, p, q, k, padding):
        if (draft, kept) not in following:
            following[draft, kept] = drawn(next_token)
        for token, share in enumerate(following[draft, kept]):
            found[*draft[:kept], token] += chance * share
    return found


def drawn(token_of):
    """How likely each token is for a uniform number, by bisection."""
    ends = []
    for token in range(V - 1):
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if token_of(middle) > token else (middle, high)
        ends.append(high)
    return np.diff([0.0, *ends, 1.0])


def farthest(rule, p, q, k, padding=0):
    """The largest error of any text's probability."""
    emitted = joint(outcomes(rule, p, q, k, padding), p, k + 1)
    texts = product(range(V), repeat=k + 1)
    return max(abs(emitted[t] - np.prod([p[t[:i]][x] for i, x in enumerate(t)])) for t in texts)


def kept_on_average(rule, p, q, k):
    return sum(chance * kept for _, kept, chance, _ in verdicts(rule, p, q, k))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize(
    ("seed", "k", "padding", "sharpness"),
    [
        (1, 1, 0, 1.0),
        (2, 2, 0, 1.0),
        (3, 2, 2, 3.0),
        pytest.param(4, 3, 0, 1.0, marks=pytest.mark.long),
    ],
)
def test_a_lossless_rule_emits_what_the_target_would(way, rule, seed, k, padding, sharpness):
    of_rule, apart = WAYS[way]
    assert farthest(of_rule(LOSSLESS[rule]), *random_models(seed, V, k, sharpness), k, padding) < apart


@pytest.mark.parametrize("rule", LOSSY)
# Residuals of two tokens, and of one.
@pytest.mark.parametrize(("seed", "sharpness"), [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5), (0, 2.0)])
def test_the_distance_is_that_of_the_token_emitted(rule, seed, sharpness):
    p, q = random_models(seed, V, 1, sharpness)
    judge, emitted = LOSSY[rule], Counter()
    for text, probability in outcomes(judge, p, q, 1).items():
        emitted[text[0]] += probability
    real = sum(abs(emitted[token] - p[()][token]) for token in range(V)) / 2
    tensors = (torch.tensor(np.stack([p[()], p[0,]])), torch.tensor(q[()][None]), torch.tensor([0]))
    u = torch.tensor([0.5], dtype=torch.float64)
    decision = judge(*tensors, u, u)
    assert decision.distance.item() == pytest.approx(real, abs=1e-9) and real > 0


def test_lenience_never_emits_a_token_more_than_1_over_lenience_times_as_often():
    for seed in range(2):
        p, q = random_models(seed, V, 1, sharpness=3.0)
        emitted = Counter()
        for text, probability in outcomes(Lenient(0.5), p, q, 1).items():
            emitted[text[0]] += probability
        assert all(emitted[token] <= p[()][token] / 0.5 + 1e-9 for token in range(V))


def test_a_lenience_of_1_is_the_speculative_rule():
    assert farthest(Lenient(1.0), *random_models(2, V, 2), 2) < 1e-9


def test_block_verification_keeps_no_fewer_tokens():
    """And clearly more of some drafts."""
    more = []
    for seed in range(6):
        p, q = random_models(seed, V, 2, sharpness=2.0)
        by_token, by_block = (kept_on_average(rule, p, q, 2) for rule in (speculative, block))
        more.append(by_block - by_token)
    assert min(more) > -1e-9 and max(more) > 0.01, more
    p, q = random_models(5, V, 1)  # one draft is judged alike by both
    assert kept_on_average(block, p, q, 1) == pytest.approx(kept_on_average(speculative, p, q, 1))


def test_the_example_of_the_paper():
    """Sun et al. 2024, section 2: p = (1/3, 2/3) and q = (2/3, 1/3) everywhere, two drafts: 10/9 tokens are
    kept on average by token verification, 11/9 by block verification. (A third token with probability 0 is
    never drafted.)"""
    p = dict.fromkeys(texts_of(2), np.array([1 / 3, 2 / 3, 0]))
    q = dict.fromkeys(texts_of(2), np.array([2 / 3, 1 / 3, 0]))
    assert kept_on_average(speculative, p, q, 2) == pytest.approx(10 / 9)
    assert kept_on_average(block, p, q, 2) == pytest.approx(11 / 9)


@pytest.mark.parametrize("rule", [*LOSSLESS.values(), *map(compiled, LOSSLESS.values()), *LOSSY.values()])
def test_greedy_is_the_target_whatever_the_rule(rule):
    """One-hot p and q: kept while they agree, and then the target's token."""
    rows = torch.eye(V, dtype=torch.float64)
    for p_ids in product(range(V), repeat=3):
        for q_ids in product(range(V), repeat=2):
            decision = rule(
                rows[list(p_ids)],
                rows[list(q_ids)],
                torch.tensor(q_ids),
                torch.tensor([0.999, 0.999]),
                torch.tensor([0.5]),
            )
            agree = next((i for i in range(2) if p_ids[i] != q_ids[i]), 2)
            assert (decision.accepted, decision.next) == (agree, p_ids[agree])
            if decision.distance is not None:
                assert decision.distance[: agree + 1].abs().max() == 0


def test_the_first_refusal_ends_it():
    p = [[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0.5, 0.5, 0], [0, 0, 1]]
    q = [[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0.5, 0.5, 0]]
    p, q, u = (torch.tensor(one, dtype=torch.float64) for one in (p, q, [0.9, 0.5, 0.0]))
    decision = speculative(p, q, torch.tensor([1, 0, 1]), u, u[1:2])
    assert decision.accept_prob.tolist() == [1, 0.5, 1], "0.5 is not below 0.5"
    assert decision.accepted == 1, "the third would have been accepted"
    assert (decision.next, decision.residual_mass) == (2, 0.25)  # max(p - q, 0) = (0, 0, 1/4)


@pytest.mark.parametrize("next_u", [0.0, 1 - 2**-53])
def test_no_residual_falls_back_to_p(next_u):
    """p = q is never refused, but were it, no token of probability 0 may come of it."""
    p = torch.tensor([[0, 0.5, 0.5], [1, 0, 0]], dtype=torch.float64)
    u = torch.tensor([1.0, next_u], dtype=torch.float64)
    decision = speculative(p, p[:1], torch.tensor([1]), u[:1], u[1:])
    assert (decision.accepted, decision.residual_mass) == (0, 0) and decision.next in (1, 2)


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
def test_typical_acceptance_asks_for_less_where_the_target_is_unsure(sharpness):
    """Cai et al. 2024: p > min(0.09, 0.3 exp(-H)), H the entropy. Both sides of the minimum decide here."""
    torch.manual_seed(3)
    p = torch.rand(40, 61).double().pow(sharpness)
    p /= p.sum(-1, keepdim=True)
    by_entropy = 0.3 * torch.exp((p * p.log()).sum(-1)[:-1])
    drafted, q = torch.multinomial(p[:-1], 1)[:, 0], torch.full((39, 61), 1 / 61).double()
    u = torch.full((39,), 0.5).double()
    decision = typical(p, q, drafted, u, u[:1])
    chosen = p[torch.arange(39), drafted]
    assert torch.equal(decision.accept_prob, (chosen > by_entropy.clamp(max=0.09)).double())
    assert (by_entropy < 0.09).any()
