"""A smaller model drafts a tree: several tokens after each, depth by depth."""

from dataclasses import dataclass

from torch import Tensor

from specdemo.drafters.model.drafter import DraftInput, ModelDrafter
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown, Tree, draft_tree


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
        slot, last = value.position[0].long(), value.last.long()

        def predict(shown: Shown | None) -> Tensor:
            nonlocal slot
            if shown is None:
                fed, logits = last, self.lm.forward(last, slot)[-1:]
            else:
                fed = shown.tokens
                logits = self.lm.forward(self.in_own_ids(fed), slot, shown.branches)
            slot = slot + len(fed)
            return self.in_targets_ids(logits)

        tree = self._tree.first(len(value.u))
        return draft_tree(predict, value.u, tree, self.sampler, value.settings, value.seen, told)
