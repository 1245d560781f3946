"""A model that drafts all tokens of a round at once (An et al. 2025, "PARD: Accelerating LLM Inference with
Low-Cost PARallel Draft Model Adaptation"): it was trained to read a mask token where a token is not known
yet."""

from transformers import PreTrainedModel

from specdemo.drafters.base import Materials, PairModels, share_read
from specdemo.drafters.configs import masks_in
from specdemo.drafters.model import DraftInput, Fed, ModelDrafter, ModelDrafting
from specdemo.engine.draft import LONGEST_DRAFT, Draft
from specdemo.errors import PairError
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import embedded_ids


class PardDrafter(ModelDrafter):
    """Drafts the first token from the text's last one, and each other from a mask token in the place before
    it.

    The masks leave keys and values where the next tokens come, so each round feeds all tokens that the last
    round has added: gamma + 1 tokens where steps are captured, so that the shapes are the same however many
    they were. q of a place does not depend on the tokens drafted before it, except through a penalty of the
    sampler's and through a grammar."""

    filled = 0  # tokens of the text that its cache holds

    def __init__(self, given: Materials):
        super().__init__(given)
        self.mask, *_ = masks_in(vars(given.drafter.model.config)).values()

    def start(self, ids: list[int]) -> None:
        super().start(ids)
        self.filled = max(0, len(ids) - 2)

    def begin(self, ids: list[int], rows: int) -> Fed:
        more = min(max(1, len(ids) - 1 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        start = max(0, len(ids) - 1 - self.run_step.rows(more, self.gamma))
        self.feed(ids, self.filled, start)  # nothing, unless rounds have drafted nothing
        self.lm.reserve(start, len(ids) + rows - 1)
        fed = ids[start:] + [self.mask] * (rows - 1)
        return Fed(start, fed, (self.lm.kv_length, self.lm.buffer_epoch))

    def end(self, ids: list[int], draft: Draft) -> None:
        self.filled = len(ids)

    def skip(self, ids: list[int]) -> None:
        """`filled` tells what the cache lacks."""

    def step(self, value: DraftInput) -> Draft:
        logits = self.lm.forward(value.last.long(), value.position[0].long())  # [N, of the drafter's width]
        return self.at_once(self.in_targets_ids(logits[-len(value.u) :]), value)


class PardDrafting(ModelDrafting):
    kind = "pard"
    takes_other_tokenizer = False

    def cost(self, pair: PairModels, params: object) -> DraftingCost:
        return DraftingCost(draft=share_read(pair))

    def check_fit(
        self, model: PreTrainedModel, target: PreTrainedModel, drafter_id: str, target_id: str
    ) -> None:
        known = embedded_ids(model)
        for name, mask in masks_in(vars(model.config)).items():
            if type(mask) is not int or not 0 <= mask < known:
                raise PairError(
                    f"drafter {drafter_id}: {name} in its config.json must be the id of one of its {known:,} "
                    f"tokens, not {ascii(mask)[:60]}"
                )
