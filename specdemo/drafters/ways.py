"""What drafts by each method of `METHODS`, with the pairs here."""

from typing import TYPE_CHECKING

from specdemo.drafters.base import Materials, Way
from specdemo.drafters.early_exit.way import EarlyExitWay
from specdemo.drafters.kinds import kind_of
from specdemo.drafters.lookup.drafter import LookupWay
from specdemo.drafters.mtp.way import MtpWay
from specdemo.drafters.ngram.drafter import NgramWay
from specdemo.drafters.suffix.drafter import SuffixWay
from specdemo.engine.draft import Drafter, NoDrafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair


class ByDrafter(Way):
    """The pair's drafter drafts, whichever kind it is."""

    def lacks(self, pair: "Pair") -> str | None:
        return "it has no drafter model" if pair.drafter is None else None

    def cost(self, pair: "Pair", params: Params) -> DraftingCost:
        return kind_of(pair.drafter).cost(pair.drafter, pair.target)

    def longest_draft(self, pair: "Pair") -> int | None:
        return pair.info.longest_draft

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


def way_of(params: Params) -> Way:
    return WAYS[params.draft_with]
