"""DFlash and DSpark heads as a pair's drafter."""

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials
from specdemo.drafters.dflash.drafter import DFlashDrafter
from specdemo.drafters.dflash.head import CachedDFlash, DFlashHead
from specdemo.drafters.head_kind import HeadKind
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes


class DFlashKind(HeadKind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, DFlashHead)

    def build(self, given: Materials) -> DFlashDrafter:
        run_step, gamma, is_over, _ = given.how_to_draft
        return DFlashDrafter(given.drafter, given.target, given.sampler, run_step, gamma, is_over)

    def cost(self, model: Module, target: PreTrainedModel) -> DraftingCost:
        read = weight_bytes(target)
        return DraftingCost(token=model.bytes_of_a_token / read, draft=model.bytes_of_a_block / read)

    def longest_draft(self, model: Module) -> int:
        return model.config.places

    def compared(self, whole: CachedDFlash, cached: CachedDFlash, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What a DFlash head says in blocks after ids [N], once when the text is read at once, and once in
        parts with rejected blocks between them: logits [places, V]."""
        n, beginning = len(ids) - 1, torch.tensor(0, device=whole.device)
        whole.grow(n)
        whole.read(beginning, n)
        for start in range(0, n, 3):
            _of_block(cached, ids.flip(0), start)  # a rejected block
            cached.read(beginning + start, min(3, n - start))
        return _of_block(whole, ids, n), _of_block(cached, ids, n)


def _of_block(cached: CachedDFlash, ids: Tensor, at: int) -> Tensor:
    """The logits [places, V] of a block whose anchor is ids[at]."""
    size = cached.model.config.block_size
    cached.grow(at + size)
    anchor = ids[at : at + 1].to(cached.device)
    _, logits = cached.block(anchor, torch.tensor(at, device=cached.device), size)
    return cached.model.for_target(logits)
