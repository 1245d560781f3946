"""What drafts by each method of `METHODS`, with the pairs here."""

from pathlib import Path

from transformers import PreTrainedModel

from specdemo.drafters.base import Materials, Models, Way
from specdemo.drafters.chain.drafter import ChainWay
from specdemo.drafters.early_exit.layers import EarlyExitWay
from specdemo.drafters.kinds import kind_of
from specdemo.drafters.lookup.drafter import LookupWay
from specdemo.drafters.mtp.drafter import MtpWay
from specdemo.drafters.ngram.drafter import NgramWay
from specdemo.drafters.suffix.drafter import SuffixWay
from specdemo.engine.draft import Drafter, NoDrafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.words.message import Message, message


class ByDrafter(Way):
    """The pair's drafter drafts, whichever kind it is."""

    def lacks(self, pair: Models) -> Message | None:
        return message("no_drafter") if pair.drafter is None else None

    def cost(self, pair: Models, params: Params) -> DraftingCost:
        return kind_of(pair.drafter).cost(pair.drafter, pair.target)

    def longest_draft(self, pair: Models) -> int | None:
        return kind_of(pair.drafter).longest_draft(pair.drafter)

    def build(self, given: Materials) -> Drafter:
        return kind_of(given.drafter.model).build(given)


class Nothing(Way):
    def build(self, given: Materials) -> NoDrafter:
        return NoDrafter(*given.of_target)


WAYS: dict[str, Way] = {
    "model": ByDrafter(),
    "mtp": MtpWay(),
    "lookup": LookupWay(),
    "ngram": NgramWay(several_levels=True),
    "ngram-one-level": NgramWay(several_levels=False),
    "suffix": SuffixWay(),
    "early-exit": EarlyExitWay(),
    "none": Nothing(),
}


def way_called(name: str) -> Way:
    """What drafts by a method, or by two that are joined by "+". name: in METHODS."""
    if name in WAYS:
        return WAYS[name]
    first, second = name.split("+")
    return ChainWay(WAYS[first], WAYS[second])


def way_of(params: Params) -> Way:
    return way_called(params.draft_with)


def read_carried(
    target: PreTrainedModel, folder: Path | None, quantised_here: bool = False
) -> dict[str, PreTrainedModel | str]:
    """What a target's checkpoint carries for the methods, by their names; see `Way.read`."""
    found = {name: way.read(target, folder, quantised_here) for name, way in WAYS.items()}
    return {name: carried for name, carried in found.items() if carried is not None}


def count_carried(skeleton: PreTrainedModel, folder: Path | None) -> int:
    """How many parameters `read_carried` will give; see `Way.count_parameters`."""
    return sum(way.count_parameters(skeleton, folder) for way in WAYS.values())
