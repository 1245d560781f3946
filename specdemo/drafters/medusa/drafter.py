"""Medusa heads draft a token for each place at once (see head.py)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.head_drafter import HeadDrafter
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.medusa.head import CachedMedusa, MedusaHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes


@dataclass(eq=False)
class MedusaDrafter(HeadDrafter):
    """Drafts all places of a round at once, at most as many as there are heads, from the target's hidden
    state at the position before the text's last token. q of a place does not depend on the tokens drafted
    before it, except through a penalty of the sampler's."""

    head: CachedMedusa

    @property
    def places(self) -> int:
        return self.head.model.config.heads

    def longest(self, ids: list[int]) -> float:
        return self.places if len(ids) > 1 else 0

    def start(self, ids: list[int]) -> None:
        """The heads keep nothing of the text."""

    def begins_at(self, ids: list[int], rows: int) -> int:
        return len(ids) - 2

    @property
    def buffers(self) -> tuple[int, ...]:
        return self.target.buffer_epoch, self.head.reads.buffer_epoch

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        logits = self.head.places(value.position[:1].long(), self.depth_of(value))[0]  # [K, V]
        return self.at_once(logits, value, told)


class MedusaKind(HeadKind[MedusaHead, CachedMedusa]):
    drafter = MedusaDrafter

    def is_one(self, model: Module) -> bool:
        return isinstance(model, MedusaHead)

    def cost(self, model: MedusaHead, target: PreTrainedModel) -> DraftingCost:
        """Each place reads its own head."""
        return DraftingCost(token=weight_bytes(model) / model.config.heads / weight_bytes(target))

    def longest_draft(self, model: MedusaHead) -> int:
        return model.config.heads

    def compared(self, whole: CachedMedusa, cached: CachedMedusa, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads say at all positions of ids [N] at once, and at one after another: logits
        [(N - 1) * heads, V]."""
        rows = torch.arange(len(ids) - 1, device=whole.reads.states.device)
        count = whole.model.config.heads
        each = [cached.places(row, count) for row in rows.split(1)]
        return whole.places(rows, count).flatten(0, 1), torch.cat(each).flatten(0, 1)
