"""A smaller model drafts a tree: several tokens after each, depth by depth."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdemo.drafters.model.drafter import DraftInput, ModelDrafter
from specdemo.engine.draft import Draft
from specdemo.engine.sampling import one_hot, probabilities
from specdemo.engine.tree import Tree, draw_children


@dataclass(eq=False)
class TreeDrafter(ModelDrafter):
    """Drafts a tree, by one forward for each depth over all tokens of the depth before, each of which sees
    the text and the tokens on its own path. The tree is cut where there is no room for its depth."""

    def room(self, ids: list[int], k: int) -> int:
        return self._tree.first(k).cut(int(min(k, self.context - len(ids) + 1))).size

    @property
    def _tree(self) -> Tree:
        assert self.tree is not None, "kind.py gives one"
        return self.tree

    def keep(self, ids: list[int], path: list[int]) -> None:
        # The tokens of the last depth were not fed. What is copied of their rows is overwritten: a path with
        # such a token ends with it, and the next draft feeds it first.
        self.lm.keep(len(ids), path)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        tree = self._tree.first(len(value.u))
        shape = tree.on(self.lm.device)
        slot, last, seen = value.position[0].long(), value.last.long(), value.seen
        own = self.lm.forward(last, slot)[-1:]
        slot = slot + len(last)
        seen = None if seen is None else seen[None]  # [P, V], like the next ones
        parts, shown = value.u.split(tree.widths), [1, *tree.widths[:-1]]
        told_parts = [None] * len(parts) if told is None else told.split(shown)
        drafted, qs, exacts, predicted = [], [], [], []
        for depth, (u, count) in enumerate(zip(parts, tree.children, strict=True)):
            own = self.in_targets_ids(own)
            predicted.append(own)
            logits = own if (given := told_parts[depth]) is None else given
            probs, exact = self.sampler.probabilities(logits, value.settings, seen)
            preferred = self.sampler.adjusted(logits, value.settings, seen).float()
            tokens, q = draw_children(probs, preferred, u.view(-1, count))  # [P, C], [P, C, V]
            drafted.append(tokens.flatten())
            qs.append(q.flatten(0, 1))
            if exact is not None:
                exacts.append(exact)
            if depth == len(shape.levels):
                break
            if seen is not None:
                seen = seen[:, None].expand(-1, count, -1).flatten(0, 1)
                seen = seen + one_hot(drafted[-1], self.vocab_size)
            own = self.lm.forward(self.in_own_ids(drafted[-1]), slot, shape.levels[depth])
            slot = slot + len(drafted[-1])
        logits, ids = torch.cat(predicted), torch.cat(drafted)
        draft = Draft(len(ids), ids, torch.cat(qs), probabilities(logits)[shape.rows], logits=logits)
        return replace(draft, exact=torch.cat(exacts)[shape.rows]) if exacts else draft
