"""An EAGLE head drafts as an EAGLE-3 head does (see eagle3/drafter.py), from the target's last hidden
states."""

from torch.nn import Module

from specdemo.drafters.eagle.head import EagleHead
from specdemo.drafters.eagle3.drafter import Eagle3Kind


class EagleKind(Eagle3Kind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, EagleHead)
