"""An EAGLE head drafts as an EAGLE-3 head does (see eagle3/drafter.py), from the target's last hidden
states."""

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.eagle.head import EagleHead
from specdemo.drafters.eagle3.drafter import Eagle3Kind
from specdemo.drafters.heads import DraftHead
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.weights import held_bytes, weight_bytes


class EagleKind(Eagle3Kind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, EagleHead)

    def cost(self, model: DraftHead, target: PreTrainedModel) -> DraftingCost:
        """Each token also reads the target's output layer."""
        output = target.get_output_embeddings()
        assert output is not None
        return DraftingCost(token=(weight_bytes(model) + held_bytes(output)) / weight_bytes(target))
