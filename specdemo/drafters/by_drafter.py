"""The pair's drafter drafts, whichever kind it is."""

from typing import TYPE_CHECKING

from specdemo.drafters.base import Materials, Way
from specdemo.drafters.kinds import kind_of
from specdemo.engine.draft import Drafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.words.message import Message, message

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair


class ByDrafter(Way):
    def lacks(self, pair: "Pair") -> Message | None:
        return message("no_drafter") if pair.drafter is None else None

    def cost(self, pair: "Pair", params: Params) -> DraftingCost:
        return kind_of(pair.drafter).cost(pair.drafter, pair.target)

    def longest_draft(self, pair: "Pair") -> int | None:
        return pair.info.longest_draft

    def build(self, given: Materials) -> Drafter:
        return kind_of(given.drafter.model).build(given)
