"""Trees of drafts: several guesses at each place, which one forward of the target reads, and the rule that
keeps one path of them (SpecInfer, Miao et al. 2024; Sequoia, Chen et al. 2024)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from specdemo.engine.draft import Draft
from specdemo.engine.sampling import Sampler, Settings, draw, most_likely, one_hot, probabilities
from specdemo.runtime.attention import Branches


@dataclass(frozen=True)
class Tree:
    """A tree of N drafted tokens. children: how many each token has, and the text before them, by depth
    (Params.tree).

    Its tokens are numbered as they are drafted: depth by depth, and at each depth parent by parent. Row 0 of
    the target's forward is that of the text's last token, and row i + 1 that of token i."""

    children: tuple[int, ...]

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """How many tokens there are at each depth."""
        return tuple(accumulate(self.children, mul))

    @property
    def size(self) -> int:
        return sum(self.widths)

    def cut(self, depth: int) -> "Tree":
        """The tree's first `depth` depths."""
        return Tree(self.children[: max(0, depth)])

    def first(self, size: int) -> "Tree":
        """The tree's first depths, which have `size` tokens together."""
        return self.cut([0, *accumulate(self.widths)].index(size))

    @cached_property
    def parents(self) -> tuple[int | None, ...]:
        """The number of the token before each; None: the text."""
        known: list[int | None] = []
        before: Sequence[int | None] = [None]  # the tokens of the depth before
        for count in self.children:
            start = len(known)
            known += [parent for parent in before for _ in range(count)]
            before = range(start, len(known))
        return tuple(known)

    def path_to(self, token: int | None) -> Iterator[int]:
        """The token and those before it, the last first."""
        while token is not None:
            yield token
            token = self.parents[token]

    def on(self, device: torch.device) -> "TreeOnDevice":
        return _on_device(self, device)


@dataclass(frozen=True)
class TreeOnDevice:
    """A tree's shape as tensors. They are kept, since captured steps read them."""

    rows: Tensor  # [N] int64: the row of its parent
    path: Tensor  # [N+1, N] bool: which tokens the text has up to each row: those before it, and its own
    earlier: Tensor  # [N, N] bool: which tokens are siblings that were drawn before each
    # The first children, the second ones, and so on: their numbers [P], and their parents' rows [P].
    by_rank: tuple[tuple[Tensor, Tensor], ...]
    branches: Branches  # of the target's forward


@lru_cache(maxsize=256)  # more than steps are kept that read them
def _on_device(tree: Tree, device: torch.device) -> TreeOnDevice:
    size, parents = tree.size, tree.parents
    path = torch.zeros(size + 1, size, dtype=torch.bool)
    for token in range(size):
        path[token + 1, list(tree.path_to(token))] = True
    rows = torch.tensor([0 if parent is None else parent + 1 for parent in parents])
    ranks = [parents[:token].count(parent) for token, parent in enumerate(parents)]
    earlier = (rows[:, None] == rows) & (torch.arange(size)[:, None] > torch.arange(size))
    by_rank = [
        torch.tensor([token for token in range(size) if ranks[token] == rank])
        for rank in range(max(tree.children))
    ]
    depths = path.sum(1)  # [N+1]
    own_row = torch.cat([torch.ones(size + 1, 1, dtype=torch.bool), path], 1)  # [N+1, N+1]: what a row sees
    return TreeOnDevice(
        rows.to(device),
        path.to(device),
        earlier.to(device),
        tuple((tokens.to(device), rows[tokens].to(device)) for tokens in by_rank),
        Branches(depths.to(device), ~own_row.to(device)),
    )


@dataclass(frozen=True)
class Shown:
    """The P tokens of one depth that a drafter is shown, to say what follows each.

    parents: the row of the token before each, among the rows of the call before; 0 at the first depth.
    branches: of a forward over them, whose cache has the rows of all calls since the first one behind the
    text's, one after another."""

    tokens: Tensor  # [P] int64, in the target's ids
    parents: Tensor  # [P] int64
    branches: Branches


def draft_tree(
    predict: Callable[[Shown | None], Tensor],
    u: Tensor,
    tree: Tree,
    sampler: Sampler,
    settings: Settings,
    seen: Tensor | None,
    told: Tensor | None = None,
) -> Draft:
    """Drafts the tokens of a tree, depth by depth: a token for each of u [N].

    predict: is given the tokens of the depth that was drafted last, None at first, and returns the logits
    after each [P, V]; those after the text [1, V] at first. The last depth is not shown. seen: that of the
    text before, see Sampler.seen. told: logits, one after another, that the tokens are drawn from in place of
    those predicted, which are still the draft's."""
    widths, device = tree.widths, u.device
    told_at = [None] * len(widths) if told is None else told.split([1, *widths[:-1]])
    seen = None if seen is None else seen[None]  # [P, V], like the next ones
    drafted, qs, raw_qs, parents, exacts, predicted = [], [], [], [], [], []
    shown, first = None, -1  # the number of the first token shown; the text has -1
    path = torch.ones(1, 0, dtype=torch.bool, device=device)  # [P, W]: of the rows shown, what each follows
    depths = torch.zeros(0, dtype=torch.long, device=device)  # [W]
    for depth, (u_depth, count) in enumerate(zip(u.split(widths), tree.children, strict=True)):
        own = predict(shown)
        predicted.append(own)
        logits = own if (given := told_at[depth]) is None else given
        probs, exact = sampler.probabilities(logits, settings, seen)
        preferred = sampler.adjusted(logits, settings, seen).float()
        tokens, q = draw_children(probs, preferred, u_depth.view(-1, count))  # [P, C], [P, C, V]
        rows = torch.arange(len(own), device=device)[:, None].expand(-1, count).flatten()  # [P * C]
        drafted.append(tokens.flatten())
        qs.append(q.flatten(0, 1))
        raw_qs.append(probabilities(logits)[rows])
        parents.append(rows + first)
        if exact is not None:
            exacts.append(exact[rows])
        if depth == len(widths) - 1:
            break
        if seen is not None:
            seen = seen[rows] + one_hot(drafted[-1], seen.shape[1])
        path = torch.cat([path[rows], torch.eye(len(rows), dtype=torch.bool, device=device)], 1)
        depths = torch.cat([depths, torch.full_like(rows, depth)])
        shown = Shown(drafted[-1], rows, Branches(depths, ~path))
        first += len(own)
    return Draft(
        len(u),
        torch.cat(drafted),
        torch.cat(qs),
        torch.cat(raw_qs),
        torch.cat(exacts) if exacts else None,
        parents=torch.cat(parents),
        logits=torch.cat(predicted),
    )


def draw_children(probs: Tensor, preferred: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draws C different tokens from each of P distributions, one after another, without those drawn before:
    probs [P, V], u [P, C] -> tokens [P, C], and what each was drawn from, [P, C, V].

    Where nothing is left of a distribution (it is one-hot when greedy, and a nucleus can be as narrow), the
    next token is the one with the largest of the numbers `preferred` [P, V] among the others, and q is
    one-hot at it. For a temperature that goes to 0, sampling without replacement does the same."""
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


@dataclass(frozen=True)
class TreeDecision:
    """The verdict on a tree of N drafted tokens, on the device; nothing here waits for it.

    judged: those that the path comes to: all children of its tokens and of the text, up to the first one
    accepted of each family. p: what each was judged by, which is what its earlier siblings have left of the
    target's p; of a token that was not judged, the target's own p at its place; and in the last row, p after
    the path."""

    accept_prob: Tensor  # [N] float64: what u is compared with, if the token is judged
    judged: Tensor  # [N] bool
    accepted: Tensor  # [N] bool: the path
    end: Tensor  # [] int64: the row of the path's last token
    refused: Tensor  # [] int64: the token that was refused last, after the path's last one; N: there is none
    p: Tensor  # [N+1, V]
    next: Tensor  # [] int64: the target's own token after the path
    residual_mass: Tensor  # [] float64: of the residual where `next` was drawn


def speculative_tree(
    p: Tensor, q: Tensor, drafted: Tensor, tree: TreeOnDevice, u_accept: Tensor, u_next: Tensor
) -> TreeDecision:
    """Rejection without replacement (Miao et al. 2024, section 4.3; Chen et al. 2024, "Sequoia"). A token's
    children are judged one after another. A child x is accepted with probability min(1, p(x)/q(x)), where q
    is what x was drawn from; after a rejection the next child is judged by norm(max(p - q, 0)) in place of p.
    The first accepted child is followed. Where all are refused, the next token is drawn from what is then
    left of p. Lossless, as each step of it is the speculative rule on what is left.

    p [N+1, V]: the target's, by rows. q [N, V]: what each token was drawn from, given its earlier siblings.
    drafted [N], u_accept [N], u_next [1]. Tokens that are no drafts have q = 0 and u = inf."""
    is_draft = u_accept < torch.inf  # [N]
    left, judged_by, mass = p.clone(), p[tree.rows], torch.ones_like(u_accept)
    for tokens, rows in tree.by_rank:
        before = left[rows]  # [P, V]: what the earlier siblings have left
        judged_by = judged_by.index_copy(0, tokens, before)
        residual = (before - q[tokens]).clamp(min=0.0)
        sums = residual.sum(-1, dtype=torch.float64)  # [P]
        mass = mass.index_copy(0, tokens, sums)
        changes = is_draft[tokens] & (sums > 0)  # 0 where p = q to the last bit: any draw from p is right
        left = left.index_copy(
            0, rows, torch.where(changes[:, None], residual / sums[:, None].to(p.dtype), before)
        )
    p_drafted = judged_by.gather(1, drafted[:, None])[:, 0].double()
    accept_prob = (p_drafted / q.gather(1, drafted[:, None])[:, 0]).clamp(max=1.0)
    passes = u_accept < accept_prob
    follows = passes & ~(tree.earlier & passes).any(1)  # if the path comes to its parent
    accepted = (follows | ~tree.path[1:]).all(1)
    judged = is_draft & (follows | ~tree.path[tree.rows]).all(1) & ~(tree.earlier & passes).any(1)
    number = torch.arange(1, len(drafted) + 1, device=p.device)
    end = (number * accepted).amax()
    last = (number * (judged & ~passes & (tree.rows == end))).amax() - 1
    refused = torch.where(last < 0, len(drafted), last)
    judged_by = torch.where(judged[:, None], judged_by, p[tree.rows])
    return TreeDecision(
        accept_prob=accept_prob,
        judged=judged,
        accepted=accepted,
        end=end,
        refused=refused,
        p=torch.cat([judged_by, p[end[None]]]),
        next=draw(left[end[None]], u_next)[0],
        residual_mass=torch.cat([mass, mass.new_ones(1)])[refused[None]][0],
    )
