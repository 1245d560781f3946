"""A P-EAGLE head drafts all tokens of a round in one forward (see head.py)."""

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials
from specdemo.drafters.eagle3.drafter import Eagle3Drafter, Eagle3Kind
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.drafters.peagle.head import CachedPEagle, PEagleHead
from specdemo.engine.draft import Draft, draft_at_once
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes


class PEagleDrafter(Eagle3Drafter):
    """Drafts all tokens of a round at once. Each round begins as an EAGLE-3 head's does; what masks leave in
    the head's cache is replaced as what drafting leaves there."""

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
        assert isinstance(self.head, CachedPEagle)
        logits = self.head.block(value.last.long(), value.position[0].long(), len(value.u))  # [B, V]
        return draft_at_once(logits, value.u, self.sampler, value.settings, value.seen, told)


class PEagleKind(Eagle3Kind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, PEagleHead)

    def build(self, given: Materials) -> PEagleDrafter:
        return PEagleDrafter(given.drafter, given.target, given.sampler, *given.how_to_draft)

    def cost(self, model: DraftHead, target: PreTrainedModel) -> DraftingCost:
        return DraftingCost(draft=weight_bytes(model) / weight_bytes(target))
