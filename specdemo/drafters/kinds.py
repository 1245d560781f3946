"""What a pair's drafter can be: the kinds, and which of them a model is."""

from pathlib import Path

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.assistant.drafter import AssistantKind
from specdemo.drafters.base import Kind
from specdemo.drafters.dflash.drafter import DFlashKind
from specdemo.drafters.dflash2.drafter import DFlash2Kind
from specdemo.drafters.eagle.drafter import EagleKind
from specdemo.drafters.eagle3.drafter import Eagle3Kind
from specdemo.drafters.model.kind import ModelKind
from specdemo.drafters.pard.drafter import PardKind
from specdemo.drafters.peagle.drafter import PEagleKind
from specdemo.drafters.speculators import AnyHead
from specdemo.runtime.cache import Cached
from specdemo.runtime.device import Clock

KINDS: tuple[Kind, ...] = (
    PEagleKind(),
    Eagle3Kind(),
    EagleKind(),
    DFlash2Kind(),
    DFlashKind(),
    AssistantKind(),
    PardKind(),
    ModelKind(),
)
IN_FILES: tuple[Kind, ...] = (AnyHead(), AssistantKind(), PardKind(), ModelKind())


def kind_in(folder: Path) -> Kind:
    """The kind of the model in this folder, before it is read: of heads no more than that they are heads."""
    return next(kind for kind in IN_FILES if kind.describes(folder))


def kind_of(model: Module) -> Kind:
    """The kind of a drafter, or of its skeleton. A target is of the last one."""
    return next(kind for kind in KINDS if kind.is_one(model))


def cached_drafter(model: Module, target: PreTrainedModel, clock: Clock) -> Cached:
    """A pair's drafter with its cache, for the runner."""
    return kind_of(model).cached(model, target, clock)
