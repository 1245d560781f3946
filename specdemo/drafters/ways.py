"""What drafts by each method of `METHODS`, with the pairs here."""

from specdemo.drafters.base import Materials, Way
from specdemo.drafters.by_drafter import ByDrafter
from specdemo.drafters.chain.drafter import ChainWay
from specdemo.drafters.early_exit.way import EarlyExitWay
from specdemo.drafters.lookup.drafter import LookupWay
from specdemo.drafters.mtp.way import MtpWay
from specdemo.drafters.ngram.drafter import NgramWay
from specdemo.drafters.suffix.drafter import SuffixWay
from specdemo.engine.draft import NoDrafter
from specdemo.events import Params


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
