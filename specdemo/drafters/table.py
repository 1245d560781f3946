"""What drafts by each row of METHODS, and what a pair's drafter can be, with the pairs here."""

from functools import partial
from pathlib import Path
from typing import Any

from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters import configs, dflash, eagle
from specdemo.drafters.assistant import AssistantDrafter, AssistantDrafting
from specdemo.drafters.base import Drafting, Materials, PairModels
from specdemo.drafters.early_exit import EarlyExitDrafting
from specdemo.drafters.formats import HeadDrafting
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model import ModelDrafter, ModelDrafting
from specdemo.drafters.mtp import MtpDrafter, MtpDrafting
from specdemo.drafters.other_tokenizer import SharedTokensDrafter
from specdemo.drafters.pard import PardDrafter, PardDrafting
from specdemo.drafters.text import JoinedDrafter, LookupDrafter, NgramDrafter, SuffixDrafter
from specdemo.engine.draft import Drafter, NoDrafter
from specdemo.events import METHODS, Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.cache import Cached
from specdemo.words.message import Message, message


def _by_model(given: Materials) -> Drafter:
    return ModelDrafter(given) if given.other_tokenizer is None else SharedTokensDrafter(given)


# What a pair's drafter can be: a head, or else a model of transformers, by its config. A target is
# a plain model.
HEAD = HeadDrafting(eagle.KINDS | dflash.KINDS)
BY_KIND: dict[str, Drafting] = {
    "head": HEAD,
    "assistant": AssistantDrafting(AssistantDrafter),
    "pard": PardDrafting(PardDrafter),
    "model": ModelDrafting(_by_model),
}


def kind_in(folder: Path) -> Drafting:
    """How the model in this folder drafts, before it is read: of heads no more than that they are heads."""
    return BY_KIND[configs.kind_in(folder)]


def kind_of(model: Module) -> Drafting:
    """How the model, or its skeleton, drafts."""
    if isinstance(model, DraftHead):
        return HEAD
    config: Any = model.config
    return BY_KIND[configs.kind_of_model({"model_type": config.model_type} | vars(config))]


def cached_drafter(model: Module, target: PreTrainedModel) -> Cached:
    """A pair's drafter with its cache, for the runner."""
    return kind_of(model).cached(model, target)


class ByDrafter(Drafting[Module]):
    """The pair's drafter drafts, whichever kind it is."""

    def lacks(self, pair: PairModels) -> Message | None:
        return message("no_drafter") if pair.drafter is None else None

    def cost(self, pair: PairModels, params: Params) -> DraftingCost:
        assert pair.drafter is not None
        return kind_of(pair.drafter).cost(pair, params)

    def build(self, given: Materials) -> Drafter:
        return kind_of(given.drafter.model).build(given)


MTP = MtpDrafting(MtpDrafter)
BY_METHOD: dict[str, Drafting] = {
    "model": ByDrafter(),
    "mtp": MTP,
    "lookup": Drafting(LookupDrafter),
    "ngram": Drafting(NgramDrafter),
    "ngram-one-level": Drafting(partial(NgramDrafter, several_levels=False)),
    "suffix": Drafting(SuffixDrafter),
    "early-exit": EarlyExitDrafting(),
    "none": Drafting(lambda given: NoDrafter(*given.of_target)),
}


def drafting_by(method: str) -> Drafting:
    """What answers for a method, a name in METHODS. Of two that are joined by "+" it is the second: the first
    copies from the text, and so needs nothing."""
    return BY_METHOD[method.rpartition("+")[2]]


def make_drafter(given: Materials) -> Drafter:
    """What drafts in a run."""
    first, *second = (BY_METHOD[name].build(given) for name in given.params.draft_with.split("+"))
    return JoinedDrafter(first, *second) if second else first


def longest_draft(method: str, drafter: Module | None) -> int | None:
    """The most tokens that a method, by this drafter of a pair, drafts at once; None: it sets no limit."""
    is_by_drafter = drafter is not None and METHODS[method].is_by_drafter
    return kind_of(drafter).longest_draft(drafter) if is_by_drafter else None
