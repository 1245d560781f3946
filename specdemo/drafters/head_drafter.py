"""Drafters that read their target's hidden states: those by a head of any kind, by the target's own layers
for multi-token prediction, and by an assistant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.model import DraftInput, Fed, StepDrafter
from specdemo.engine.draft import LONGEST_DRAFT, Draft, draft_at_once, draft_in_turn
from specdemo.engine.sampling import Sampler
from specdemo.engine.tree import AnyTree, GrownTree, Shown, draft_tree
from specdemo.events import Gamma
from specdemo.runtime.agreement import agree
from specdemo.runtime.cache import Cached
from specdemo.runtime.lm import LM, CachedLM, context_of
from specdemo.runtime.probe import TRIED_TOKENS, tried_tokens
from specdemo.runtime.shared import evaluating, in_training
from specdemo.runtime.steps import RunStep


@dataclass(eq=False)
class FeatureDrafter(StepDrafter):
    """Drafts from the target's hidden states. head: a head, the target's own layers or an assistant, with its
    cache."""

    head: Any
    target: LM
    sampler: Sampler
    run_step: RunStep
    gamma: Gamma
    is_over: Callable[[], bool] = lambda: False  # of Decoder
    confidence: float = 0.0
    tree: AnyTree | None = None

    def __post_init__(self) -> None:
        self.target.features = self.head.reads
        self.vocab_size = self.target.vocab_size

    @property
    def model_device(self) -> torch.device:
        return self.head.device

    @property
    def device(self) -> torch.device:
        return self.target.device

    def in_turn(
        self, predict: Callable[[Tensor | None], Tensor], value: DraftInput, told: Tensor | None = None
    ) -> Draft:
        """A chain of which each token depends on those before it. predict, told: see draft_in_turn."""
        how = (self.sampler, value.settings, value.seen, self.stops_below)
        return draft_in_turn(predict, value.u, *how, told)


@dataclass(eq=False)
class HeadDrafter(FeatureDrafter):
    """Drafts by a head, which says in `step` what follows.

    Each round begins with the target's true features of the tokens that the last round has accepted: where
    steps are captured, of one more than can follow each other in a draft, so that the shapes are the same
    however many they were. What they leave in the head's cache replaces what drafting had left there."""

    filled: int = field(default=0, init=False)  # rows of the head's cache that hold true features
    stops_early = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.tree, GrownTree):
            self.tree = replace(self.tree, depth=int(min(self.tree.depth, self.places)))

    @property
    def places(self) -> float:
        """The most tokens that can follow each other in a draft."""
        return self.head.model.places or torch.inf

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

    def room(self, ids: list[int], k: int) -> int:
        longest = int(max(0, min(self.longest(ids), self.places, k)))
        return longest if self.tree is None else self.tree.first(k).in_room(longest).size

    def rows(self, k: int) -> int:
        rows = super().rows(k)
        return rows if self.tree is not None else int(min(rows, self.places))

    def begin(self, ids: list[int], rows: int) -> Fed:
        # A step reads features; that of the last token is not known yet.
        most = self.gamma if self.tree is None else self.tree.depth
        more = min(max(1, len(ids) - 2 - self.filled), LONGEST_DRAFT)  # new tokens besides the last
        start = max(0, len(ids) - 2 - self.run_step.rows(more, most))
        self._fill(ids, start)  # nothing, unless rounds have drafted nothing
        self.head.grow(len(ids) + rows)
        buffers = (self.head.kv_length, self.head.buffer_epoch, self.target.buffer_epoch)
        return Fed(start, ids[start:], buffers)

    def end(self, ids: list[int], draft: Draft) -> None:
        self.filled = len(ids) - 1

    def shape_of(self, value: DraftInput) -> AnyTree | None:
        """The tree that is drafted from `value`."""
        return None if self.tree is None else self.tree.first(len(value.u))

    def depth_of(self, value: DraftInput) -> int:
        """How many tokens of its draft follow each other."""
        shape = self.shape_of(value)
        return len(value.u) if shape is None else shape.depth

    def in_shape(
        self, predict: Callable[[Shown | None], Tensor], value: DraftInput, told: Tensor | None
    ) -> Draft:
        """A chain or a tree whose tokens depend on those before them. predict: see draft_tree."""
        shape = self.shape_of(value)
        if shape is None:
            return self.in_turn(lambda token: predict(None if token is None else Shown(token)), value, told)
        return draft_tree(predict, value.u, shape, self.sampler, value.settings, value.seen, told)

    def at_once(self, logits: Tensor, value: DraftInput, told: Tensor | None) -> Draft:
        """A draft whose tokens do not depend on those before them: logits [K, V], of each place."""
        if self.tree is None:
            return draft_at_once(logits, value.u, self.sampler, value.settings, value.seen, told)
        places = iter(logits.split(1))

        def predict(shown: Shown | None) -> Tensor:
            return next(places).expand(1 if shown is None else len(shown.tokens), -1)

        return self.in_shape(predict, value, told)


C = TypeVar("C", bound=Cached)


def agrees_with_target(
    target: PreTrainedModel,
    make: Callable[[], C],
    compare: Callable[[CachedLM, C, C, Tensor], Sequence[tuple[Tensor, Tensor]]],
    context: float,
    dtype: torch.dtype,
    mostly: bool = False,
) -> bool:
    """Whether a model predicts the same from the target's hidden states in two ways. make: the model with a
    cache of its own; it is called twice. compare: is given the target's LM, both models and a text [N], which
    it lets the target read, and returns pairs of logits. context: the most tokens that the model reads.
    mostly: see `agree`."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, one, other = CachedLM(target), make(), make()
        lm.features = one.reads = other.reads
        ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target), context)))
        pairs = compare(lm, one, other, ids)
        for each in (lm, one, other):
            each.free()
    return agree(pairs, dtype, mostly)


def with_rejected_drafts(say: Callable[[Tensor, int, int], Tensor], ids: Tensor, n: int) -> Tensor:
    """The logits [n, ...] after the first n of ids [N], computed in parts with rejected drafts between them.
    say: the logits of given ids from one row to before another."""
    said = [say(ids, 0, n // 2)]
    for start in range(n // 2, n, 2):
        say(ids.flip(0), start, min(start + 3, n))  # a rejected draft
        said.append(say(ids, start, min(start + 2, n)))
    return torch.cat(said)
