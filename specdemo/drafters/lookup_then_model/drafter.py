"""Two drafters, of which the first that has a draft gives it: copies cost nothing where the text repeats
itself, and a model drafts where it does not."""

from dataclasses import dataclass

from specdemo.drafters.base import Materials
from specdemo.drafters.by_drafter import ByDrafter
from specdemo.drafters.lookup.drafter import LookupWay
from specdemo.engine.draft import Draft, Drafter
from specdemo.runtime.states import States


@dataclass(eq=False)
class ChainDrafter(Drafter):
    """Which of the two drafts depends on the text alone, and each draft is judged by the q that it was drawn
    from: so speculation stays lossless."""

    first: Drafter
    second: Drafter

    def __post_init__(self) -> None:
        self.waits = self.first.waits or self.second.waits

    @property
    def states(self) -> States | None:
        return self.second.states

    def start(self, ids: list[int]) -> None:
        self.first.start(ids)
        self.second.start(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        draft = self.first.propose(ids, k, u)
        if draft.k == 0:
            return self.second.propose(ids, k, u)
        self.second.skip(ids)
        return draft


class LookupThenModelWay(ByDrafter):
    def build(self, given: Materials) -> ChainDrafter:
        return ChainDrafter(LookupWay().build(given), super().build(given))
