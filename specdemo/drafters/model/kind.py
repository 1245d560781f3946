"""A model of transformers as a pair's drafter."""

from pathlib import Path

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import Kind, Materials
from specdemo.drafters.model import other_tokenizer
from specdemo.drafters.model.drafter import ModelDrafter
from specdemo.drafters.model.tree import TreeDrafter
from specdemo.engine.draft import Drafter
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import CachedLM, check_writes_text, positional_cache
from specdemo.runtime.native import cached_lm
from specdemo.runtime.probe import agrees_with_itself


class ModelKind(Kind[PreTrainedModel]):
    has_tokenizer = True

    def describes(self, folder: Path) -> bool:
        return True

    def is_one(self, model: Module) -> bool:
        return isinstance(model, PreTrainedModel)

    def name_of(self, model: PreTrainedModel) -> str:
        return "model"

    def cached(self, model: PreTrainedModel, target: PreTrainedModel, clock: Clock) -> CachedLM:
        return cached_lm(model, clock)

    def build(self, given: Materials) -> Drafter:
        if given.other_tokenizer is not None:
            return other_tokenizer.build(given, given.drafter, given.other_tokenizer)
        own = (given.drafter, given.drafter_context, given.sampler, *given.of_target, *given.how_to_draft)
        return ModelDrafter(*own) if given.tree is None else TreeDrafter(*own, tree=given.tree)

    def check_cache(self, model: PreTrainedModel) -> None:
        check_writes_text(model)
        positional_cache(model)

    def agrees(self, model: PreTrainedModel, target: PreTrainedModel) -> bool:
        return agrees_with_itself(model)
