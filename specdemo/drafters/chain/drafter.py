"""Two drafters, of which the first that has a draft gives it: copies cost nothing where the text repeats
itself, and the second one drafts where it does not."""

from dataclasses import dataclass

from specdemo.drafters.base import Materials, Models, Way
from specdemo.engine.draft import Draft, Drafter
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.lm import OfTarget
from specdemo.runtime.states import States


@dataclass(eq=False)
class ChainDrafter(Drafter):
    """A chain of two drafters. Which of the two drafts depends on the text alone, and each draft is judged by
    the q that it was drawn from: so speculation stays lossless."""

    first: Drafter
    second: Drafter

    def __post_init__(self) -> None:
        self.waits = self.first.waits or self.second.waits
        self.wants_top = max(self.first.wants_top, self.second.wants_top)

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

    def skip(self, ids: list[int]) -> None:
        self.second.skip(ids)  # the first reads the text alone

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        for one in (self.first, self.second):
            if one.wants_top:
                one.learn(ids, draft, [row[: one.wants_top] for row in likely])


@dataclass(frozen=True)
class ChainWay(Way):
    """A chain of two methods. The first copies from the text, so that only the second can have a model."""

    first: Way
    second: Way

    def lacks(self, pair: Models) -> str | None:
        return self.first.lacks(pair) or self.second.lacks(pair)

    def largest(self, pair: Models, field: str) -> int | None:
        return self.second.largest(pair, field)

    def check(self, pair: Models, params: Params) -> Params:
        return self.second.check(pair, super().check(pair, params))

    def own(self, pair: Models, params: Params) -> OfTarget | None:
        return self.second.own(pair, params)

    def cost(self, pair: Models, params: Params) -> DraftingCost:
        return self.second.cost(pair, params)

    def build(self, given: Materials) -> ChainDrafter:
        return ChainDrafter(self.first.build(given), self.second.build(given))
