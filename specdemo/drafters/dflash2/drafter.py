"""A DFlash 2 head drafts a block in one forward, and then draws its tokens in turn (see head.py)."""

import torch
from torch import Tensor
from torch.nn import Module

from specdemo.drafters.dflash.drafter import DFlashDrafter, DFlashKind
from specdemo.drafters.dflash2.head import DFlash2Head
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown


class DFlash2Drafter(DFlashDrafter):
    """A DFlashDrafter whose q of a place depends on the token drafted before it, and is 0 but for the place's
    candidates."""

    def drafted(
        self, value: DraftInput, anchor: Tensor, hidden: Tensor, logits: Tensor, told: Tensor | None
    ) -> Draft:
        model = self.head.model
        assert isinstance(model, DFlash2Head)
        selector = model.candidate_selector
        found = selector.candidates(model.drafting_rows(hidden), logits, self._told_of_places(value, told))
        places = zip(*(part.split(1) for part in found), strict=True)

        def predict(shown: Shown | None) -> Tensor:
            before = anchor if shown is None else shown.tokens
            return selector(before, *(part.expand(len(before), -1) for part in next(places)))

        return self.in_turn(predict, value, told)

    def _told_of_places(self, value: DraftInput, told: Tensor | None) -> Tensor | None:
        """What is told of one row of each place [k, V], as all of a place have the same candidates."""
        shape = self.shape_of(value)
        if told is None or shape is None:
            return told
        return torch.stack([rows[0] for rows in told.split(shape.shown)])


class DFlash2Kind(DFlashKind):
    drafter = DFlash2Drafter

    def is_one(self, model: Module) -> bool:
        return isinstance(model, DFlash2Head)
