"""The rule for trees over all drafts, verdicts and next tokens of four tokens: what it emits, exactly."""

from collections import Counter
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
import torch

from specdemo.engine import tree as engine
from specdemo.engine.rules import speculative
from specdemo.engine.sampling import Sampler, Settings
from specdemo.engine.tree import GrownTree, Nodes, Tree, draft_tree, draw_children, speculative_tree
from specdemo.events import Params
from tests.oracle import joint, path_to, random_models

V = 4


def trees_of(size):
    """The parents of all trees of so many tokens, breadth first; -1: the text."""
    found = [()]
    for token in range(size):
        found = [
            (*one, parent)
            for one in found
            for parent in range(one[-1] if one else -1, token)
            if one.count(parent) < V
        ]
    return found


SMALL = [*(tree for size in range(1, 5) for tree in trees_of(size)), (-1, -1, 1, 2, 0)]


def bounds_of(parents):
    depth = max(len(path_to(parents, token)) for token in range(len(parents)))
    return Tree((max(map(parents.count, parents)),) * depth)


def without(q, drawn):
    left = q.copy()
    left[list(drawn)] = 0
    return left / left.sum()


def drafts(parents, q):
    """Every draft with its probability: (the texts up to each token, what each was drawn from)."""
    found = [((), (), 1.0)]
    for parent in parents:
        longer = []
        for texts, qs, chance in found:
            before = () if parent < 0 else texts[parent]
            drawn = [text[-1] for text in texts if text[:-1] == before]
            own = without(q[before], drawn)
            longer += [
                ((*texts, (*before, x)), (*qs, own), chance * own[x]) for x in range(V) if x not in drawn
            ]
        found = longer
    return found


def grown(tree, q):
    """The draft of a tree that grows where the drafter is sure: its parents, and what `drafts` has."""
    paths = [()]

    def predict(shown):
        if shown is not None:
            paths[:] = [
                (*paths[at], token)
                for at, token in zip(shown.parents.tolist(), shown.tokens.tolist(), strict=True)
            ]
        return torch.tensor(np.stack([q[path] for path in paths])).log()

    sampler = Sampler(Params(temperature=1.0, top_p=1.0))
    draft = draft_tree(predict, torch.zeros(tree.size), tree, sampler, Settings.on_host(sampler), None)
    parents, ids = draft.parents.tolist(), draft.ids.tolist()
    texts = [tuple(ids[one] for one in path_to(parents, token)) for token in range(len(ids))]
    return parents, [(texts, draft.q.double().numpy(), 1.0)]


def outcomes(parents, p, made, captured, padding=0):
    """{text: probability} of one round. made: its drafts. padding: rows without a draft, as a captured step
    has them."""
    found, size = Counter(), len(parents) + padding
    nodes = Nodes.of(torch.tensor([*parents, *[-1] * padding]), bounds_of(parents))
    for texts, qs, chance in made:
        ps = torch.tensor(np.stack([p[text] for text in ((), *texts)] + [np.eye(V)[0]] * padding))
        q_rows = torch.tensor(np.stack([*qs, *[np.zeros(V)] * padding]))
        drafted = torch.tensor([*(text[-1] for text in texts), *[0] * padding])

        def judged(passing, ps=ps, q_rows=q_rows, drafted=drafted):
            u = [0.0 if token in passing else 1 - 2**-53 for token in range(len(parents))]
            u = torch.tensor(u + [torch.inf] * padding, dtype=torch.float64)
            return speculative_tree(nodes, ps, q_rows, drafted, u, u[:1])

        probs = judged(()).accept_prob.tolist()
        for end in range(-1, len(texts)):
            path = path_to(parents, end)
            # Every sibling before a token of the path was refused, and so were all children of its end.
            refused = [
                token
                for token, parent in enumerate(parents)
                if token not in path
                and (parent == end or any(parent == parents[one] and token < one for one in path))
            ]
            verdict = prod(probs[token] for token in path) * prod(1 - probs[token] for token in refused)
            if verdict < 1e-14:
                continue
            decision = judged(path)
            assert [*decision.on_path.nonzero()[:, 0].tolist()] == path
            assert [*decision.judged.nonzero()[:, 0].tolist()] == sorted([*path, *refused])
            last = max((token for token in refused if parents[token] == end), default=size)
            assert int(decision.refused) == last
            following = captured[-1][0].double()
            text = () if end < 0 else texts[end]
            for token, share in enumerate((following / following.sum()).tolist()):
                found[*text, token] += chance * verdict * share
    return found


def farthest(parents, seed, captured, padding=0):
    p, q = random_models(seed, V, bounds_of(parents).depth, sharpness=1.5)
    return distance(parents, p, drafts(parents, q), captured, padding)


def distance(parents, p, made, captured, padding=0):
    """Between what a round emits, and what the target alone would write."""
    depth = bounds_of(parents).depth
    emitted = joint(outcomes(parents, p, made, captured, padding), p, depth + 1)
    texts = product(range(V), repeat=depth + 1)
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


@pytest.mark.parametrize("parents", SMALL, ids=str)
def test_a_tree_emits_what_the_target_would(parents, captured):
    assert farthest(parents, 1, captured) < 1e-9


@pytest.mark.parametrize("parents", [(-1, -1, 0, 0), (-1, 0, 0), (-1, -1, 1, 2)], ids=str)
def test_rows_without_a_draft_change_nothing(parents, captured):
    assert farthest(parents, 3, captured, padding=2) < 1e-9


def test_a_grown_tree_emits_what_the_target_would(captured):
    shapes = set()
    for seed in range(12):
        p, q = random_models(seed, V, 3, sharpness=3)
        parents, made = grown(GrownTree(size=5, depth=3, most=2), q)
        shapes.add(tuple(parents))
        assert distance(parents, p, made, captured) < 1e-9
    assert len(shapes) > 3, "its shape follows from q"


def test_a_chain_is_judged_as_by_the_speculative_rule():
    random = torch.Generator().manual_seed(1)
    nodes = Nodes.of(torch.tensor([-1, 0, 1]), Tree((1, 1, 1)))
    for _ in range(200):
        p = torch.rand(4, V, generator=random).softmax(-1)
        q = torch.rand(3, V, generator=random).softmax(-1)
        drafted = torch.randint(V, (3,), generator=random)
        u = torch.rand(4, generator=random, dtype=torch.float64)
        chain = speculative(p, q, drafted, u[:3], u[3:])
        said = speculative_tree(nodes, p, q, drafted, u[:3], u[3:])
        assert said.accepted == chain.accepted == said.by_place[0][-1] and said.next == chain.next
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
