"""An EAGLE head drafts as an EAGLE-3 head does (see eagle3/drafter.py), from the target's last hidden
states."""

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.eagle.head import EagleHead
from specdemo.drafters.eagle3.drafter import Eagle3Kind
from specdemo.drafters.heads import DraftHead
from specdemo.errors import PairError
from specdemo.runtime.lm import final_norm


class EagleKind(Eagle3Kind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, EagleHead)

    def check_fit(self, model: DraftHead, target: PreTrainedModel, drafter_id: str, target_id: str) -> None:
        super().check_fit(model, target, drafter_id, target_id)
        try:
            final_norm(target)
        except ValueError:
            raise PairError(
                f"drafter {drafter_id} does not fit target {target_id}: it reads the target's hidden states "
                f"after the last norm, which is not known of a {type(target).__name__}"
            ) from None
