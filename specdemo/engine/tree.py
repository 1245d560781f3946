"""Trees of drafts: several guesses at each place, which one forward of the target reads, and the rule that
keeps one path of them (SpecInfer, Miao et al. 2024; Sequoia, Chen et al. 2024)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.draft import Draft, one_hot_draft
from specdemo.engine.rules import Decision
from specdemo.engine.sampling import Sampler, Settings, draw, most_likely, one_hot, probabilities
from specdemo.events import Params
from specdemo.events.params import GROWN, Grown
from specdemo.runtime.attention import Branches
from specdemo.runtime.cuda import to_device


@dataclass(frozen=True)
class Tree:
    """A tree of N drafted tokens. children: how many each token has, and the text before them, by depth
    (Params.tree).

    Its tokens are numbered as they are drafted: depth by depth, and at each depth parent by parent."""

    children: tuple[int, ...]

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Counts the tokens at each depth."""
        return tuple(accumulate(self.children, mul))

    @property
    def size(self) -> int:
        return sum(self.widths)

    @property
    def depth(self) -> int:
        return len(self.children)

    @property
    def most(self) -> int:
        """Counts the children of a token, at most."""
        return max(self.children, default=0)

    @property
    def shown(self) -> list[int]:
        """Counts the rows of predictions that each depth is drawn from."""
        return [1, *self.widths[:-1]]

    def in_room(self, room: int) -> "Tree":
        """Gives what is drafted where the text has room for so many tokens: the first depths."""
        return Tree(self.children[: max(0, room)])

    def first(self, size: int) -> "Tree":
        """Gives the first depths, which have `size` tokens together."""
        return self.in_room([0, *accumulate(self.widths)].index(size))


@dataclass(frozen=True)
class GrownTree(Grown):
    """A tree that grows where its drafter is sure (EAGLE-2, Li et al. 2024). At each depth the `most`
    likeliest tokens are shown to the drafter, each of which then has as many children; the others have none.
    What is shown needs no more rows of the drafter's cache than there are tokens."""

    def __post_init__(self) -> None:
        assert self.most * (self.depth - 1) <= self.size

    @property
    def shown(self) -> list[int]:
        return [1] + [self.most] * (self.depth - 1)

    def in_room(self, room: int) -> "GrownTree | Tree":
        """Grows as ever where the text has room for any token; the verifier drops what is too deep."""
        return self if room > 0 else Tree(())

    def first(self, size: int) -> "GrownTree | Tree":
        return self.in_room(size)


AnyTree = Tree | GrownTree


def tree_of(params: Params) -> AnyTree | None:
    """Says what is drafted in each round of a run with a tree; None in plain decoding."""
    if params.draft_with == "none":
        return None
    return Tree(params.tree) if isinstance(params.tree, tuple) else GrownTree(**asdict(GROWN))


@dataclass(frozen=True)
class Nodes:
    """How N drafted tokens follow each other. Row 0 of the target's forward is that of the text's last token,
    and row i + 1 that of token i. branches: of that forward; None: they are a chain. most: children of a
    token, at most."""

    rows: Tensor  # [N] int64: the row of each token's parent
    path: Tensor  # [N+1, N] bool: which tokens the text has up to each row: those before it, and its own
    branches: Branches | None = None
    most: int = 1

    @classmethod
    def of_chain(cls, size: int, device: torch.device) -> "Nodes":
        path = torch.ones(size + 1, size, dtype=torch.bool, device=device).tril(-1)
        return cls(torch.arange(size, device=device), path)

    @classmethod
    def of(cls, parents: Tensor, tree: AnyTree) -> "Nodes":
        """parents [N] int64: the number of the token before each, which is smaller than its own; -1: the
        text. tree: no token stands deeper, or has more children. Nothing here waits for the device."""
        size, rows = len(parents), parents + 1
        numbers = torch.arange(size + 1, device=parents.device)
        before, upwards = pad(rows, (1, 0)), [numbers]  # [N+1]: the row before each; those 0, 1, ... steps up
        for _ in range(tree.depth - 1):
            upwards.append(before[upwards[-1]])
        path = torch.zeros(size + 1, size + 1, dtype=torch.bool, device=parents.device)
        path = path.scatter_(1, torch.stack(upwards, 1), True)[:, 1:]
        branches = Branches(path.sum(1), ~pad(path, (1, 0), value=True))
        return cls(rows, path, branches, tree.most)

    def no_drafts(self, ends: Tensor, room: Tensor) -> Tensor:
        """Says which tokens are no drafts: those after one that ends the text [N], or out of its room."""
        if self.branches is None:  # in a step that is captured each operation counts
            return ends.cumsum(0) > ends
        return (self.path[self.rows] & ends).any(1) | (self.path[1:].sum(1) > room)

    def up_to_each(self, counts: Tensor) -> Tensor:
        """counts [N, V], of each token -> those of the tokens that the text has up to each row [N+1, V]."""
        return self.path.to(counts.dtype) @ counts


@dataclass(frozen=True)
class Shown:
    """The P tokens of one depth that a drafter is shown, to say what follows each.

    parents: the row of the token before each, among the rows of the call before; 0 at the first depth.
    branches: of a forward over them, whose cache has the rows of all calls since the first one after the
    text's, one after another. Both are None of a chain, whose only token follows the one before."""

    tokens: Tensor  # [P] int64, in the target's ids
    parents: Tensor | None = None  # [P] int64
    branches: Branches | None = None

    def of_parents(self, rows: Tensor) -> Tensor:
        """Picks, from what the rows of the call before gave, that of each token's parent: [P, ...]."""
        return rows if self.parents is None else rows.index_select(0, self.parents)

    @classmethod
    def after(cls, before: "Shown | None", tokens: Tensor, parents: Tensor) -> "Shown":
        others = ~torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)
        if before is None or before.branches is None:
            return cls(tokens, parents, Branches(torch.zeros_like(tokens), others))
        depths, hidden = before.branches.depths, before.branches.hidden
        depths = torch.cat([depths, (depths[-1:] + 1).expand(len(tokens))])
        return cls(tokens, parents, Branches(depths, torch.cat([hidden[parents], others], 1)))


def draft_tree(
    predict: Callable[[Shown | None], Tensor],
    u: Tensor,
    tree: AnyTree,
    sampler: Sampler,
    settings: Settings,
    seen: Tensor | None,
    of_graph: Tensor | None = None,
) -> Draft:
    """Drafts the tokens of a tree, depth by depth: a token for each of u [N].

    predict: is given the tokens of a depth that are shown, None at first, and returns the logits after each
    [P, V]; those after the text [1, V] at first. Of the last depth none is shown. seen: that of the text
    before, see Sampler.seen. of_graph: the logits of a graph, one after another, which the tokens are drawn
    from in place of those predicted; these are the draft's.

    A tree that grows does so by the drafter's probabilities. Its children are a token's likeliest ones. A
    token is as likely as the product of the probabilities on its path; the likeliest are shown at each depth,
    and the likeliest of all are the draft. It is lossless: the children are chosen and not drawn, so that the
    tree follows from the text alone, and q is one-hot at each of them. A tree whose shape depended on tokens
    that were drawn would not be."""
    device = settings.temperature.device
    grows = isinstance(tree, GrownTree)
    u_depths = iter(u.split(tree.widths) if isinstance(tree, Tree) else ())
    seen = None if seen is None else seen[None]  # [P, V]
    shown, score = None, settings.temperature.new_zeros(1)  # [P]: log of how likely each token shown is
    numbers = torch.full((1,), -1, device=device)  # [P]: of the tokens shown; the text has -1
    tokens, qs, scores, parents, rows_of, predicted, shown_numbers = ([] for _ in range(7))
    for depth in range(tree.depth):
        prediction, first, count = predict(shown), sum(map(len, predicted)), sum(map(len, tokens))
        predicted.append(prediction)
        logits = prediction if of_graph is None else of_graph[first : first + len(prediction)]
        adjusted = sampler.adjusted(logits, settings, seen).float()
        if grows:
            children, log_probs = _likeliest_children(adjusted, tree.most, sampler, settings)  # [P, C]
            scores.append((score[:, None] + log_probs).flatten())
        else:
            probs = sampler.probabilities(logits, settings, seen)
            u_depth = next(u_depths).view(len(logits), -1)
            children, q = draw_children(probs, adjusted, u_depth)  # [P, C], [P, C, V]
            qs.append(q.flatten(0, 1))
        rows = torch.arange(len(logits), device=device)[:, None].expand_as(children).flatten()  # [P * C]
        tokens.append(children.flatten())
        parents.append(numbers[rows])
        rows_of.append(first + rows)
        if depth == tree.depth - 1:
            break
        best = slice(None)  # those that are shown
        if grows:
            best = scores[-1].argsort(descending=True, stable=True)[: tree.most]
            score = scores[-1][best]
        numbers = torch.arange(count, count + len(rows), device=device)[best]
        shown_numbers.append(numbers)
        if seen is not None:
            seen = seen[rows[best]] + one_hot(tokens[-1][best], seen.shape[1])
        shown = Shown.after(shown, tokens[-1][best], rows[best])
    ids, after, rows, logits = map(torch.cat, (tokens, parents, rows_of, predicted))
    raw_q = probabilities(logits if of_graph is None else of_graph)
    if not grows:
        return Draft(len(ids), ids, torch.cat(qs), raw_q[rows], parents=after, logits=logits)
    # Of two that are as likely the first one is kept, which a token's parent is.
    kept = torch.cat(scores).argsort(descending=True, stable=True)[: tree.size].sort().values  # [N]
    is_kept = torch.zeros(len(ids), dtype=torch.bool, device=device).index_fill_(0, kept, True)
    renumbered = pad(is_kept.cumsum(0) - 1, (1, 0), value=-1)  # after the text's own number
    fed, in_turn = torch.full_like(ids, -1), torch.cat(shown_numbers)
    fed.index_copy_(0, in_turn, torch.arange(len(in_turn), device=device))
    q = one_hot(ids[kept], logits.shape[1])
    after = renumbered[after[kept] + 1]
    return Draft(len(kept), ids[kept], q, raw_q[rows[kept]], parents=after, fed=fed[kept], logits=logits)


def _likeliest_children(
    adjusted: Tensor, count: int, sampler: Sampler, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Finds the likeliest tokens after each of P, by adjusted logits [P, V]: ids and logarithms of their
    probabilities [P, C], which stay apart at a temperature at which all but the likeliest are 0.

    A probability is the drafter's at the temperature at which it would draw, with biases and penalties but
    unfiltered; when greedy, at temperature 1."""
    temperature = torch.ones_like(settings.temperature) if sampler.greedy else settings.temperature
    likeliest = adjusted.topk(min(count, adjusted.shape[1]))  # [P, C]
    highest = likeliest.values[:, :1]
    mass = ((adjusted - highest) / temperature).exp().sum(-1, keepdim=True, dtype=torch.float64)  # [P, 1]
    return likeliest.indices, (likeliest.values - highest).double() / temperature - mass.log()


def draw_children(probs: Tensor, preferred: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draws C different tokens from each of P distributions, one after another, without those drawn before:
    probs [P, V], u [P, C] -> tokens [P, C], and what each was drawn from, [P, C, V].

    Where nothing is left of a distribution (it is one-hot when greedy, and a nucleus can be as narrow), the
    next token is the one with the largest of the numbers `preferred` [P, V] among the others, and q is
    one-hot at it. For a temperature that goes to 0, sampling without replacement does the same."""
    # What a head cannot draft has -inf, too, and comes before what was drawn.
    preferred = preferred.clamp(min=torch.finfo(preferred.dtype).min)
    tokens, qs, left = [], [], probs
    for rank, u_rank in enumerate(u.unbind(1)):
        q = left
        if rank:
            mass = left.sum(-1, keepdim=True)  # [P, 1]
            q = torch.where(mass > 0, left / mass, one_hot(most_likely(preferred), probs.shape[1]))
        token = draw(q, u_rank)  # [P]
        tokens.append(token)
        qs.append(q)
        left = left.scatter(1, token[:, None], 0.0)
        preferred = preferred.scatter(1, token[:, None], -torch.inf)
    return torch.stack(tokens, 1), torch.stack(qs, 1)


def listed_draft(
    following: Callable[[list[int], int], list[int]],
    tree: Tree | None,
    k: int,
    vocab_size: int,
    device: torch.device,
) -> Draft:
    """Drafts at most k tokens that are looked up, with q one-hot at each: a tree; None: a chain.

    following: is given tokens drafted after the text and a number, and returns as many different tokens that
    can come after them, the best first, or fewer. Then the tree is smaller. It is lossless because nothing is
    drawn: which tokens are drafted follows from the text before."""
    ids: list[int] = []
    parents: list[int] = []
    known: list[tuple[int, list[int]]] = [(-1, [])]  # of one depth: each token, and its path
    for count in (1,) * k if tree is None else tree.first(k).children:
        before, known = known, []
        for number, path in before:
            for token in following(path, count):
                known.append((len(ids), [*path, token]))
                ids.append(token)
                parents.append(number)
    draft = one_hot_draft(ids, vocab_size, device)
    if tree is None or not ids:
        return draft
    return replace(draft, parents=to_device(parents, torch.long, device))


def speculative_tree(
    nodes: Nodes, p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor
) -> Decision:
    """Rejection without replacement (Miao et al. 2024, section 4.3; Chen et al. 2024, "Sequoia"). A token's
    children are judged one after another. A child x is accepted with probability min(1, p(x)/q(x)), where q
    is what x was drawn from; after a rejection the next child is judged by norm(max(p - q, 0)) in place of p.
    The first accepted child is followed. Where all are refused, the next token is drawn from what is then
    left of p. Lossless, as each step of it is the speculative rule on what is left.

    p [N+1, V]: the target's, by rows. q [N, V]: what each token was drawn from, given its earlier siblings.
    drafted [N], u_accept [N], u_next [1]. Tokens that are no drafts have q = 0 and u = inf."""
    size, numbers = len(drafted), torch.arange(len(drafted), device=p.device)
    # [N, N]: siblings before each
    earlier = (nodes.rows[:, None] == nodes.rows) & (numbers[:, None] > numbers)
    is_draft, rank = u_accept < torch.inf, earlier.sum(1)  # [N]
    judged_by = p[pad(nodes.rows, (0, 1))]  # [N+1, V]; left has a row more, for what does not count
    left, masses = pad(p, (0, 0, 0, 1)), p.new_ones(size + 1, dtype=torch.float64)  # left: [N+2, V]
    # The first children of all tokens at once, then the second ones, and so on: a token whose rank is r has r
    # siblings before it, so that they are no more than N / (r + 1).
    for turn in range(min(nodes.most, size)):
        tokens = (rank - turn).abs().argsort(stable=True)[: size // (turn + 1)]
        counts = rank[tokens] == turn
        rows, judged_rows = nodes.rows[tokens], torch.where(counts, tokens, size)
        before = left[rows]  # [P, V]: what the earlier siblings have left
        judged_by.index_copy_(0, judged_rows, before)
        residual = (before - q[tokens]).clamp_(min=0.0)
        sums = residual.sum(-1, dtype=torch.float64)  # [P]
        masses.index_copy_(0, judged_rows, sums)
        # Where p = q to the last bit the residual is 0, and any draw from p is right.
        rows = torch.where(counts & is_draft[tokens] & (sums > 0), rows, size + 1)
        left.index_copy_(0, rows, residual / sums[:, None].to(p.dtype))
    p_drafted = judged_by[:size].gather(1, drafted[:, None])[:, 0].double()
    accept_prob = (p_drafted / q.gather(1, drafted[:, None])[:, 0]).clamp(max=1.0)
    passes = u_accept < accept_prob
    is_first = ~(earlier & passes).any(1)  # of its siblings that pass, or none before it does
    follows = passes & is_first  # if the path comes to its parent
    judged = is_draft & is_first & (follows | ~nodes.path[nodes.rows]).all(1)
    path = (follows | ~nodes.path[1:]).all(1)
    end = ((numbers + 1) * path).amax()
    last = ((numbers + 1) * (judged & ~passes & (nodes.rows == end))).amax() - 1
    refused = torch.where(last < 0, size, last)
    masses[size].fill_(1.0)
    rows = torch.cat([nodes.rows, end[None]])
    return Decision(
        accept_prob=accept_prob,
        accepted=path.sum(),
        next=draw(left[end[None]], u_next)[0],
        residual_mass=masses[refused[None]][0],
        judged=judged,
        on_path=path,
        masses=masses[:size],
        refused=refused,
        by_place=(rows, torch.where(pad(judged, (0, 1))[:, None], judged_by, p[rows])),
    )
