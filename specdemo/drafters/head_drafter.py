"""How a drafter of any kind of heads drafts: what it reads of its target, and how a chain or a tree comes of
what it says."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, draft_at_once, draft_in_turn, one_hot_draft
from specdemo.engine.sampling import Sampler
from specdemo.engine.tree import AnyTree, GrownTree, Shown, draft_tree
from specdemo.events import Gamma
from specdemo.runtime.lm import LM
from specdemo.runtime.steps import RunStep


@dataclass(eq=False)
class HeadDrafter(Drafter):
    """Drafts by a head, which says in `step` what follows.

    Each round begins with the target's true features of the tokens that the last round has accepted: where
    steps are captured, of one more than can follow each other in a draft, so that the shapes are the same
    however many they were. What they leave in the head's cache replaces what drafting had left there."""

    head: Any  # with its cache
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma  # the most tokens of a draft
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0
    tree: AnyTree | None = None  # what is drafted; None: chains
    stops_below: float = field(default=0.0, init=False)  # see draft_in_turn
    filled: int = field(default=0, init=False)  # rows of the head's cache that hold true features

    def __post_init__(self) -> None:
        self.target.features = self.head.reads
        if isinstance(self.tree, GrownTree):
            self.tree = replace(self.tree, depth=int(min(self.tree.depth, self.places)))

    @property
    def places(self) -> float:
        """The most tokens that can follow each other in a draft."""
        return torch.inf

    def longest(self, ids: list[int]) -> float:
        """How many drafted tokens can follow each other after this text: none beyond the head's own context,
        and none after a single token, which has no feature before it."""
        return self.head.context - len(ids) + 1 if len(ids) > 1 else 0

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - 1)

    def _fill(self, ids: list[int], end: int) -> None:
        if len(ids) <= self.head.context:
            self.head.prefill(ids, self.filled, end, self.is_over)
            self.filled = max(self.filled, end)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        longest = max(0, min(self.longest(ids), self.places, k))
        k = int(longest) if self.tree is None else self.tree.first(k).in_room(int(longest)).size
        if k == 0:
            return one_hot_draft([], self.target.vocab_size, self.target.device)
        rows = self.run_step.rows(k, self.gamma)
        rows = rows if self.tree is not None else int(min(rows, self.places))
        start = self.begins_at(ids, rows)
        seen = self.sampler.seen(ids, self.target.vocab_size, self.head.device)
        value = DraftInput.of(self.head.device, start, ids[start:], self.sampler, u[:rows], seen)
        key = ("draft", rows, len(ids) - start, *self.buffers, self.sampler.key, self.tree)
        _, draft = self.run_step(key, self.step, value, self.expected)
        self.filled = len(ids) - 1
        return replace(draft.on(self.target.device), k=min(k, len(draft.ids)))

    def begins_at(self, ids: list[int], rows: int) -> int:
        """The first position whose feature a step reads; that of the last token is not known yet. Makes room
        for so many rows after the text."""
        most = self.gamma if self.tree is None else self.tree.depth
        more = min(max(1, len(ids) - 2 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        start = max(0, len(ids) - 2 - self.run_step.rows(more, most))
        self._fill(ids, start)  # nothing, unless rounds have drafted nothing
        self.head.grow(len(ids) + rows)
        return start

    @property
    def buffers(self) -> tuple[int, ...]:
        """What captured steps hold for."""
        return self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch

    def expected(self, value: DraftInput, said: Draft) -> Draft:
        """What the step should have said, see RunStep: the head's own logits after the tokens that a graph
        has drawn."""
        return self.step(value, said.logits)

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        """The draft made from `value`, which has the text's tokens from the first on whose feature is read.
        told: see draft_in_turn."""
        raise NotImplementedError

    def shape_of(self, value: DraftInput) -> AnyTree | None:
        """The tree that is drafted from `value`."""
        return None if self.tree is None else self.tree.first(len(value.u))

    def depth_of(self, value: DraftInput) -> int:
        """How many tokens of its draft follow each other."""
        shape = self.shape_of(value)
        return len(value.u) if shape is None else shape.depth

    def in_turn(
        self, predict: Callable[[Shown | None], Tensor], value: DraftInput, told: Tensor | None
    ) -> Draft:
        """A draft whose tokens depend on those before them. predict: see draft_tree."""
        how, shape = (self.sampler, value.settings, value.seen), self.shape_of(value)
        if shape is not None:
            return draft_tree(predict, value.u, shape, *how, told)

        def after(token: Tensor | None) -> Tensor:
            return predict(None if token is None else Shown(token))

        return draft_in_turn(after, value.u, *how, self.stops_below, told)

    def at_once(self, logits: Tensor, value: DraftInput, told: Tensor | None) -> Draft:
        """A draft whose tokens do not depend on those before them: logits [K, V], of each place."""
        if self.tree is None:
            return draft_at_once(logits, value.u, self.sampler, value.settings, value.seen, told)
        places = iter(logits.split(1))

        def predict(shown: Shown | None) -> Tensor:
            return next(places).expand(1 if shown is None else len(shown.tokens), -1)

        return self.in_turn(predict, value, told)
