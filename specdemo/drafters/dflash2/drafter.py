"""A DFlash 2 head drafts a block in one forward, and then draws its tokens in turn (see head.py)."""

from torch import Tensor
from torch.nn import Module

from specdemo.drafters.base import Materials
from specdemo.drafters.dflash.drafter import DFlashDrafter, DFlashKind
from specdemo.drafters.dflash2.head import DFlash2Head
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft, draft_in_turn


class DFlash2Drafter(DFlashDrafter):
    """A DFlashDrafter whose q of a place depends on the token drafted before it, and is 0 but for the place's
    candidates."""

    def drafted(self, value: DraftInput, hidden: Tensor, logits: Tensor, told: Tensor | None) -> Draft:
        model = self.head.model
        assert isinstance(model, DFlash2Head)
        selector = model.candidate_selector
        found = selector.candidates(model.drafting_rows(hidden), logits, told)
        places = zip(*(part.split(1) for part in found), strict=True)

        def predict(drafted: Tensor | None) -> Tensor:
            return selector(value.last.long() if drafted is None else drafted, *next(places))

        how = (self.sampler, value.settings, value.seen)
        return draft_in_turn(predict, value.u, *how, stops_below=0.0, told=told)


class DFlash2Kind(DFlashKind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, DFlash2Head)

    def build(self, given: Materials) -> DFlash2Drafter:
        run_step, gamma, is_over, _ = given.how_to_draft
        return DFlash2Drafter(given.drafter, given.target, given.sampler, run_step, gamma, is_over)
