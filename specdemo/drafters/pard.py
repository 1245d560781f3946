"""A PARD model drafts all tokens of a round in one forward (An et al. 2025, "PARD: Accelerating LLM Inference
with Low-Cost PARallel Draft Model Adaptation"): a smaller model that was trained to read a mask token where a
token is not known yet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

from specdemo.drafters.base import Materials, Models, share_read
from specdemo.drafters.configs import MASKS, known_config
from specdemo.drafters.model import DraftInput, Fed, ModelDrafter, ModelDrafting
from specdemo.engine.draft import LONGEST_DRAFT, Draft, draft_at_once
from specdemo.errors import PairError
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import embedded_ids


@dataclass(eq=False)
class PardDrafter(ModelDrafter):
    """Drafts all tokens of a round at once: the first from the text's last token, each other from a mask
    token in the place before it.

    The masks leave keys and values where the next tokens come, so each round feeds all tokens that the last
    round has added: gamma + 1 tokens where steps are captured, so that the shapes are the same however many
    they were. q of a place does not depend on the tokens drafted before it, except through a penalty of the
    sampler's and through a grammar.

    mask: the id of the mask token."""

    mask: int = field(kw_only=True)
    filled: int = field(default=0, init=False)  # tokens of the text that its cache holds

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

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        logits = self.lm.forward(value.last.long(), value.position[0].long())  # [N, of the drafter's width]
        own = self.in_targets_ids(logits[-len(value.u) :])  # [B, V]
        return draft_at_once(own, value.u, self.sampler, value.settings, value.seen, told)


class PardDrafting(ModelDrafting):
    def describes(self, folder: Path) -> bool:
        return any((known_config(folder) or {}).get(name) is not None for name in MASKS)

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PreTrainedModel) and bool(_masks(model.config))

    def name_of(self, model: PreTrainedModel) -> str:
        return "pard"

    def cost(self, pair: Models, params: object) -> DraftingCost:
        return DraftingCost(draft=share_read(pair))

    def build(self, given: Materials) -> PardDrafter:
        (mask, *_) = _masks(given.drafter.model.config).values()
        how = (given.sampler, *given.of_target, *given.how_to_draft)
        return PardDrafter(given.drafter, given.drafter_context, *how, mask=mask)

    def check_fit(
        self, model: PreTrainedModel, target: PreTrainedModel, drafter_id: str, target_id: str
    ) -> None:
        known = embedded_ids(model)
        for name, mask in _masks(model.config).items():
            if type(mask) is not int or not 0 <= mask < known:
                raise PairError(
                    f"drafter {drafter_id}: {name} in its config.json must be the id of one of its {known:,} "
                    f"tokens, not {ascii(mask)[:60]}"
                )


def _masks(config: PreTrainedConfig) -> dict[str, Any]:
    """What a config names as the mask token, by the name that it has there; nothing of a model that does not
    draft in parallel."""
    found = {name: getattr(config, name, None) for name in MASKS}
    return {name: mask for name, mask in found.items() if mask is not None}
