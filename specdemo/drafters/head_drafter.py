"""Drafters that read their target's hidden states: those by a head of any kind, by the target's own layers
for multi-token prediction, and by an assistant."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.base import Materials
from specdemo.drafters.model import DraftInput, Fed, StepDrafter
from specdemo.engine.draft import LONGEST_DRAFT, Draft
from specdemo.engine.tree import GrownTree
from specdemo.runtime.agreement import agree
from specdemo.runtime.lm import CachedLM, context_of
from specdemo.runtime.probe import TRIED_TOKENS, tried_tokens
from specdemo.runtime.shared import evaluating, in_training


class FeatureDrafter(StepDrafter):
    """Drafts from the target's hidden states. head: a head, the target's own layers or an assistant, with its
    cache."""

    head: Any

    def __init__(self, given: Materials):
        super().__init__(given)
        self.head, self.target = given.drafter, given.target
        self.target.features = self.head.reads

    @property
    def model_device(self) -> torch.device:
        return self.head.device


class HeadDrafter(FeatureDrafter):
    """Drafts by a head, which says in `step` what follows.

    Each round begins with the target's true features of the tokens that the last round has accepted: where
    steps are captured, of one more than can follow each other in a draft, so that the shapes are the same
    however many they were. What they leave in the head's cache replaces what drafting had left there."""

    filled = 0  # rows of the head's cache that hold true features
    stops_early = False

    def __init__(self, given: Materials):
        super().__init__(given)
        if isinstance(self.tree, GrownTree):
            self.tree = replace(self.tree, depth=int(min(self.tree.depth, self.places)))

    @property
    def places(self) -> float:
        """The most tokens that can follow each other in a draft."""
        return self.head.model.places or torch.inf

    def longest(self, ids: list[int]) -> float:
        """How many drafted tokens can follow each other after this text: none beyond the head's own context,
        and none after a single token, which has no feature before it."""
        return min(self.head.context - len(ids) + 1, self.places) if len(ids) > 1 else 0

    def start(self, ids: list[int]) -> None:
        self._fill(ids, len(ids) - 1)

    def _fill(self, ids: list[int], end: int) -> None:
        if len(ids) <= self.head.context:
            self.head.prefill(ids, self.filled, end, self.is_over)
            self.filled = max(self.filled, end)

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

    def depth_of(self, value: DraftInput) -> int:
        """How many tokens of its draft follow each other."""
        shape = self.shape_of(value)
        return len(value.u) if shape is None else shape.depth


def agrees_with_target(
    target: PreTrainedModel,
    make: Callable[[], Any],
    compare: Callable[[CachedLM, Any, Any, Tensor], Sequence[tuple[Tensor, Tensor]]],
    context: float,
    dtype: torch.dtype,
    mostly: bool = False,
) -> bool:
    """Whether a model predicts the same from the target's hidden states in two ways. make: the model with a
    cache of its own; it is called twice. compare: is given the target's LM, which has read all of a text [N]
    but its last token, both models and the text, and returns pairs of logits. context: the most tokens that
    the model reads. mostly: see `agree`."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, one, other = CachedLM(target), make(), make()
        lm.features = one.reads = other.reads
        ids = tried_tokens(lm, int(min(TRIED_TOKENS, context_of(target), context)))
        lm.prefill(ids[:-1])
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
