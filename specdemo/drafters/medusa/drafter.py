"""Medusa heads draft a token for each place at once (see head.py)."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.medusa.head import CachedMedusa, MedusaHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft, Drafter, draft_at_once, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.events import Gamma
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import RunStep
from specdemo.runtime.weights import weight_bytes


@dataclass(eq=False)
class MedusaDrafter(Drafter):
    """Drafts all tokens of a round at once, at most as many as there are heads, from the target's hidden
    state at the position before the text's last token. q of a place does not depend on the tokens drafted
    before it, except through a penalty of the sampler's."""

    heads: CachedMedusa
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma

    def __post_init__(self) -> None:
        self.target.features = self.heads.reads

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        most = self.heads.model.config.heads
        k = min(k, most)
        if k <= 0 or len(ids) == 1:  # the first token has no hidden state before it
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        rows = min(self.run_step.rows(k, self.gamma), most)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.heads.device)
        value = DraftInput.of(self.heads.device, len(ids) - 2, ids[-1:], self.sampler, u[:rows], seen)
        key = ("draft", rows, self.target.buffer_epoch, self.heads.reads.buffer_epoch, self.sampler.key)
        _, draft = self.run_step(key, partial(self.step, rows), value, partial(self.expected, rows))
        return replace(draft.on(self.target.device), k=min(k, len(draft.ids)))

    def expected(self, rows: int, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the heads' own logits for the tokens that a graph has
        drawn."""
        return self.step(rows, value, said.logits)

    def step(self, rows: int, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`. told: see draft_in_turn."""
        logits = self.heads.places(value.position[:1].long(), rows)[0]  # [rows, V]
        return draft_at_once(logits, value.u, self.sampler, value.settings, value.seen, told)


class MedusaKind(HeadKind[MedusaHead, CachedMedusa]):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, MedusaHead)

    def build(self, given: Materials) -> MedusaDrafter:
        run_step, gamma, _, _ = given.how_to_draft
        return MedusaDrafter(given.drafter, given.target, given.sampler, run_step, gamma)

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
