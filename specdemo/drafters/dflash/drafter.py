"""A DFlash head drafts a whole block in one forward; a DSpark head corrects it token by token (see
head.py)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.dflash.head import CachedDFlash, DFlashHead
from specdemo.drafters.head_drafter import HeadDrafter
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import weight_bytes


@dataclass(eq=False)
class DFlashDrafter(HeadDrafter):
    """Drafts all places of a round at once, at most as many as its block has.

    q of a place does not depend on the tokens drafted before it, except through a Markov head (DSpark), and
    through a penalty of the sampler's. Beyond the head's own context nothing is drafted."""

    head: CachedDFlash

    @property
    def places(self) -> int:
        return self.head.model.config.places

    def longest(self, ids: list[int]) -> float:
        return self.head.context - len(ids)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        head, config = self.head, self.head.model.config
        start, last = value.position[0].long(), value.last.long()
        new = len(last) - 1
        if new:
            head.read(start, new)
        count = self.depth_of(value) + 1 - config.samples_from_anchor
        return self.drafted(value, last[-1:], *head.block(last[-1:], start + new, count), told)

    def drafted(
        self, value: DraftInput, anchor: Tensor, hidden: Tensor, logits: Tensor, told: Tensor | None
    ) -> Draft:
        """The draft of a block. anchor [1]: the text's last token. hidden [N, H]: the hidden states of all
        rows. logits [k, Vd]: of those that draft. told: see draft_in_turn."""
        model = self.head.model
        if model.markov_head is not None:
            return self._corrected(value, anchor, hidden, logits, told)
        draft = self.at_once(model.for_target(logits), value, told)
        if model.confidence_head is None or self.tree is not None:
            return draft
        sure = model.confidence_head(model.drafting_rows(hidden), None)
        return replace(draft, sure=sure[: len(draft.ids)])

    def _corrected(
        self, value: DraftInput, anchor: Tensor, hidden: Tensor, logits: Tensor, told: Tensor | None
    ) -> Draft:
        """The draft of one token after another, each with the Markov head's bias from the one before it; the
        others are as in `drafted`."""
        model, markov = self.head.model, self.head.model.markov_head
        assert markov is not None
        first = markov.markov_w1(anchor)  # [1, r]
        state, sure = markov.start(1), []
        if not model.config.samples_from_anchor:
            _, state = markov(first, hidden[:1], state)
        places = zip(model.drafting_rows(hidden).split(1), logits.split(1), strict=True)

        def predict(shown: Shown | None) -> Tensor:
            nonlocal state
            row, unbiased = next(places)  # [1, H], [1, Vd]
            before = first
            if shown is not None:
                before, state = markov.markov_w1(shown.tokens), shown.of_parents(state)  # [P, r]
            bias, state = markov(before, row.expand(len(before), -1), state)
            if model.confidence_head is not None and self.tree is None:
                sure.append(model.confidence_head(row, before))
            return model.for_target(unbiased + bias)

        draft = self.in_turn(predict, value, told)
        return replace(draft, sure=torch.cat(sure)[: len(draft.ids)]) if sure else draft


class DFlashKind(HeadKind[DFlashHead, CachedDFlash]):
    drafter = DFlashDrafter

    def is_one(self, model: Module) -> bool:
        return type(model) is DFlashHead  # a DFlash2Head is another kind

    def cost(self, model: DFlashHead, target: PreTrainedModel) -> DraftingCost:
        read = weight_bytes(target)
        return DraftingCost(token=model.bytes_of_a_token / read, draft=model.bytes_of_a_block / read)

    def longest_draft(self, model: DFlashHead) -> int:
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
