"""A DFlash head drafts a whole block in one forward; a DSpark head corrects it token by token (see
head.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials
from specdemo.drafters.dflash.head import CachedDFlash, DFlashHead
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, draft_at_once, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events import Gamma
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import RunStep
from specdemo.runtime.weights import weight_bytes


@dataclass(eq=False)
class DFlashDrafter(Drafter):
    """Drafts all tokens of a round at once, at most as many as its block has places.

    Each round begins with the target's true features of the tokens that the last round has accepted: of gamma
    + 1 tokens where steps are captured, so that the shapes are the same however many they were. q of a place
    does not depend on the tokens drafted before it, except through a Markov head (DSpark), and through a
    penalty of the sampler's. Beyond the head's own context nothing is drafted."""

    head: CachedDFlash
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    filled: int = field(default=0, init=False)  # rows of the head's cache that hold true features

    def __post_init__(self) -> None:
        self.target.features = self.head.reads

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - 1)

    def _fill(self, ids: list[int], end: int) -> None:
        if len(ids) <= self.head.context:
            self.head.prefill(self.filled, end, self.is_over)
            self.filled = max(self.filled, end)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        places = self.head.model.config.places
        k = int(min(k, places, self.head.context - len(ids)))
        if k <= 0:
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        rows = min(self.run_step.rows(k, self.gamma), places)
        more = min(max(1, len(ids) - 2 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        new = min(1 + self.run_step.rows(more, self.gamma), len(ids) - 1)
        self._fill(ids, len(ids) - 1 - new)  # nothing, unless rounds have drafted nothing
        self.head.grow(len(ids) + rows)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.head.device)
        value = DraftInput.of(self.head.device, len(ids) - 1, ids[-1:], self.sampler, u[:rows], seen)
        buffers = (self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch)
        key = ("draft", rows, new, *buffers, self.sampler.key)
        _, draft = self.run_step(key, partial(self.step, new), value, partial(self.expected, new))
        self.filled = len(ids) - 1
        return replace(draft.on(self.target.device), k=min(k, len(draft.ids)))

    def expected(self, new: int, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the head's own logits after the tokens that a graph
        has drawn."""
        return self.step(new, value, said.logits)

    def step(self, new: int, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. new: how many of the target's features are read before the block is
        drafted. told: see draft_in_turn."""
        head, model = self.head, self.head.model
        position, anchor = value.position[0].long(), value.last.long()
        if new:
            head.read(position - new, new)
        count = len(value.u) + len(anchor) - model.config.samples_from_anchor
        return self.drafted(value, *head.block(anchor, position, count), told)

    def drafted(self, value: DraftInput, hidden: Tensor, logits: Tensor, told: Tensor | None) -> Draft:
        """The draft of a block. hidden [N, H]: the hidden states of all rows. logits [k, Vd]: of those that
        draft. told: see draft_in_turn."""
        model = self.head.model
        if model.markov_head is not None:
            return self._in_turn(value, hidden, logits, told)
        own = model.for_target(logits)  # [k, V]
        draft = draft_at_once(own, value.u, self.sampler, value.settings, value.seen, told)
        if model.confidence_head is None:
            return draft
        sure = model.confidence_head(model.drafting_rows(hidden), None)
        return replace(draft, sure=sure[: len(draft.ids)])

    def _in_turn(self, value: DraftInput, hidden: Tensor, logits: Tensor, told: Tensor | None) -> Draft:
        """The draft of one token after another, each with the Markov head's bias from the one before it.
        hidden [N, H]: the hidden states of all rows. logits: [k, Vd]."""
        model, markov = self.head.model, self.head.model.markov_head
        drafting = model.drafting_rows(hidden)  # [k, H]
        assert markov is not None
        anchor = markov.markov_w1(value.last.long())  # [1, r]
        state, sure = markov.start(1), []
        if not model.config.samples_from_anchor:
            _, state = markov(anchor, hidden[:1], state)
        rows = iter(zip(drafting.split(1), logits.split(1), strict=True))

        def predict(drafted: Tensor | None) -> Tensor:
            nonlocal state
            before = anchor if drafted is None else markov.markov_w1(drafted)  # [1, r]
            row, unbiased = next(rows)
            bias, state = markov(before, row, state)
            if model.confidence_head is not None:
                sure.append(model.confidence_head(row, before))
            return model.for_target(unbiased + bias)

        how = (self.sampler, value.settings, value.seen)
        draft = draft_in_turn(predict, value.u, *how, stops_below=0.0, told=told)
        return replace(draft, sure=torch.cat(sure)[: len(draft.ids)]) if sure else draft


class DFlashKind(HeadKind[DFlashHead, CachedDFlash]):
    def is_one(self, model: Module) -> bool:
        return type(model) is DFlashHead  # a DFlash2Head is another kind

    def build(self, given: Materials) -> DFlashDrafter:
        run_step, gamma, is_over, _ = given.how_to_draft
        return DFlashDrafter(given.drafter, given.target, given.sampler, run_step, gamma, is_over)

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
