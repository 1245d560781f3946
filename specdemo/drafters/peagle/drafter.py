"""A P-EAGLE head drafts all tokens of a round in one forward (see head.py)."""

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.eagle3.drafter import Eagle3Kind
from specdemo.drafters.head_drafter import HeadDrafter
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.drafters.peagle.head import CachedPEagle, PEagleHead
from specdemo.engine.draft import Draft
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes


class PEagleDrafter(HeadDrafter):
    """Drafts all places of a round at once. What masks leave in the head's cache is replaced as what drafting
    leaves there."""

    head: CachedPEagle

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        tokens, start = value.last[1:].long(), value.position[0].long()
        return self.at_once(self.head.block(tokens, start, self.depth_of(value)), value, told)


class PEagleKind(Eagle3Kind):
    drafter = PEagleDrafter

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PEagleHead)

    def cost(self, model: DraftHead, target: PreTrainedModel) -> DraftingCost:
        return DraftingCost(draft=weight_bytes(model) / weight_bytes(target))
