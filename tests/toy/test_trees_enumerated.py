"""The rule for trees over all drafts, verdicts and next tokens of four tokens: what it emits, exactly."""

from collections import Counter
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
import torch

from specdemo.engine import tree as engine
from specdemo.engine.rules import speculative
from specdemo.engine.tree import Tree, draw_children, speculative_tree

V = 4
CPU = torch.device("cpu")


def trees_of(size):
    """All trees of up to so many tokens, none of which has more than V children."""
    found = [(count,) for count in range(1, V + 1)]
    for tree in found:
        found += [(*tree, count) for count in range(1, V + 1) if Tree((*tree, count)).size <= size]
    return [tree for tree in found if Tree(tree).size <= size]


SMALL, LARGE = trees_of(4), trees_of(7)


def models(seed, depth, sharpness=1.5):
    """p and q after each text of up to `depth` tokens: they depend on all of it."""
    random = np.random.default_rng(seed)

    def some(weights):
        weights = weights**sharpness
        return weights / weights.sum()

    texts = [text for length in range(depth + 1) for text in product(range(V), repeat=length)]
    p = {text: some(random.exponential(size=V)) for text in texts}
    q = {text: some(0.5 * p[text] + random.exponential(0.5, size=V)) for text in texts}
    return p, q


def without(q, drawn):
    left = q.copy()
    left[list(drawn)] = 0
    return left / left.sum()


def drafts(tree, q):
    """Every draft with its probability: (the texts up to each token, what each was drawn from)."""
    found = [((), (), 1.0)]
    for parent in tree.parents:
        longer = []
        for texts, qs, chance in found:
            before = () if parent is None else texts[parent]
            drawn = [text[-1] for text in texts if text[:-1] == before]
            own = without(q[before], drawn)
            longer += [
                ((*texts, (*before, x)), (*qs, own), chance * own[x]) for x in range(V) if x not in drawn
            ]
        found = longer
    return found


def outcomes(children, p, q, captured, padding=0):
    """{text: probability} of one round. padding: rows without a draft, as a captured step has them."""
    found, tree = Counter(), Tree(children)
    kept = tree.cut(len(children) - padding)
    size, on = tree.size, tree.on(CPU)
    for texts, qs, chance in drafts(kept, q):
        more = size - len(texts)
        ps = torch.tensor(np.stack([p[text] for text in ((), *texts)] + [np.eye(V)[0]] * more))
        q_rows = torch.tensor(np.stack([*qs, *[np.zeros(V)] * more]))
        drafted = torch.tensor([*(text[-1] for text in texts), *[0] * more])

        def judged(passing, ps=ps, q_rows=q_rows, drafted=drafted, more=more):
            u = [0.0 if token in passing else 1 - 2**-53 for token in range(size - more)]
            u = torch.tensor(u + [torch.inf] * more, dtype=torch.float64)
            return speculative_tree(ps, q_rows, drafted, on, u, u[:1])

        probs = judged(()).accept_prob.tolist()
        for end in (None, *range(len(texts))):
            path = [*kept.path_to(end)]
            # Every sibling before a token of the path was refused, and so were all children of its end.
            parents = [kept.parents[token] for token in path]
            refused = [
                token
                for token, parent in enumerate(kept.parents)
                if token not in path
                and (
                    parent == end
                    or any(
                        parent == up and token < on_path for on_path, up in zip(path, parents, strict=True)
                    )
                )
            ]
            verdict = prod(probs[token] for token in path) * prod(1 - probs[token] for token in refused)
            if verdict < 1e-14:
                continue
            decision = judged(path)
            assert [*decision.accepted.nonzero()[:, 0].tolist()] == sorted(path)
            assert [*decision.judged.nonzero()[:, 0].tolist()] == sorted([*path, *refused])
            assert int(decision.refused) == max((t for t in refused if kept.parents[t] == end), default=size)
            following = captured[-1][0].double()
            text = () if end is None else texts[end]
            for token, share in enumerate((following / following.sum()).tolist()):
                found[*text, token] += chance * verdict * share
    return found


def joint(found, p, length):
    """The distribution of the first `length` tokens, when the target goes on alone after the round."""
    whole = Counter()
    for text, probability in found.items():
        for rest in product(range(V), repeat=length - len(text)):
            going_on = [p[(*text, *rest[:i])][x] for i, x in enumerate(rest)]
            whole[(*text, *rest)] += probability * np.prod(going_on)
    return whole


def farthest(children, seed, captured, padding=0):
    p, q = models(seed, len(children))
    length = len(children) + 1
    emitted = joint(outcomes(children, p, q, captured, padding), p, length)
    texts = product(range(V), repeat=length)
    return max(abs(emitted[t] - np.prod([p[t[:i]][x] for i, x in enumerate(t)])) for t in texts)


@pytest.fixture
def captured(monkeypatch):
    """What the rule has drawn from."""
    weights = []

    def draw(given, u):
        weights[:] = [given]
        return torch.zeros(1, dtype=torch.long)

    monkeypatch.setattr(engine, "draw", draw)
    return weights


@pytest.mark.parametrize("children", SMALL, ids=str)
def test_a_tree_emits_what_the_target_would(children, captured):
    assert farthest(children, 1, captured) < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("children", [one for one in LARGE if one not in SMALL], ids=str)
def test_a_larger_tree_emits_what_the_target_would(children, captured):
    assert farthest(children, 2, captured) < 1e-9


@pytest.mark.parametrize("children", [(2, 2), (1, 3), (2, 1, 1)], ids=str)
def test_rows_without_a_draft_change_nothing(children, captured):
    assert farthest(children, 3, captured, padding=1) < 1e-9


def test_a_chain_is_judged_as_by_the_speculative_rule():
    random = torch.Generator().manual_seed(1)
    tree = Tree((1, 1, 1)).on(CPU)
    for _ in range(200):
        p = torch.rand(4, V, generator=random).softmax(-1)
        q = torch.rand(3, V, generator=random).softmax(-1)
        drafted = torch.randint(V, (3,), generator=random)
        u = torch.rand(4, generator=random, dtype=torch.float64)
        chain = speculative(p, q, drafted, u[:3], u[3:])
        said = speculative_tree(p, q, drafted, tree, u[:3], u[3:])
        assert said.accepted.sum() == chain.accepted == said.end and said.next == chain.next
        assert torch.equal(said.accept_prob, chain.accept_prob)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_children_are_drawn_without_replacement(temperature):
    """The exact distribution of ordered draws, by integrating over a fine grid of uniform numbers."""
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]) if temperature else torch.eye(V)[:1]
    preferred = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    grid = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    u = torch.cartesian_prod(grid, grid, grid)
    tokens, qs = draw_children(probs.expand(len(u), -1), preferred.expand(len(u), -1), u)
    seen = Counter(map(tuple, tokens.tolist()))
    if not temperature:
        assert seen == {(0, 1, 2): len(u)} and torch.equal(qs[0], torch.eye(V)[:3])
        return
    for order in permutations(range(3)):
        expected = prod(without(probs[0].numpy(), order[:i])[x] for i, x in enumerate(order))
        assert seen[order] / len(u) == pytest.approx(expected, abs=0.02)
    assert sum(seen[order] for order in permutations(range(3))) == len(u)
    assert torch.allclose(
        qs.gather(2, tokens[..., None])[:, 1, 0],
        torch.tensor([without(probs[0].numpy(), [row[0]])[row[1]] for row in tokens.tolist()]),
    )


def test_what_is_exhausted_goes_on_with_what_is_preferred():
    """A nucleus of two tokens, of which four are drawn."""
    probs = torch.tensor([[0.25, 0.75, 0.0, 0.0]])
    tokens, qs = draw_children(probs, torch.tensor([[1.0, 2.0, 0.1, 0.5]]), torch.full((1, 4), 0.9))
    assert tokens.tolist() == [[1, 0, 3, 2]]
    assert torch.equal(qs[0, 1:], torch.eye(V)[[0, 3, 2]])
