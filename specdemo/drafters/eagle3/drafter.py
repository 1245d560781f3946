"""An EAGLE-3 head drafts from the target's own hidden states (Li et al. 2025, "EAGLE-3: Scaling up Inference
Acceleration of Large Language Models via Training-Time Test")."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from specdemo.drafters.eagle3.head import CachedEagle3, Eagle3Head
from specdemo.drafters.head_drafter import HeadDrafter
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.heads import DraftHead
from specdemo.drafters.model.drafter import DraftInput
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown


@dataclass(eq=False)
class Eagle3Drafter(HeadDrafter):
    """Drafts each token from the token before it and the head's own output for that one: a tree by one
    forward for each depth."""

    head: CachedEagle3

    def __post_init__(self) -> None:
        super().__post_init__()
        # As in ModelDrafter, a GPU is not waited for at each token.
        self.stops_below = self.confidence if self.head.device.type == "cpu" else 0.0

    def step(self, value: DraftInput, told: Tensor | None = None) -> Draft:
        start, tokens = value.position[0].long(), value.last[1:].long()
        alone = told is None and self.tree is None and self.sampler.grammar is None
        if alone and self.head.drafts_itself:
            drawing = self.sampler.drawing(value.settings, value.u, value.seen, self.stops_below)
            drafted, q, logits = self.head.draft(tokens, start, drawing)
            return Draft.drawn(drafted, q, None, logits)
        return self.in_turn(self._predictions(tokens, start), value, told)

    def _predictions(self, tokens: Tensor, start: Tensor) -> Callable[[Shown | None], Tensor]:
        """What draft_tree asks, after tokens [N] with true features before them."""
        row, g = start, None  # [P, H]: what the head has made of the tokens shown last

        def predict(shown: Shown | None) -> Tensor:
            nonlocal row, g
            if shown is None or g is None:
                fed = tokens
                g, logits = self.head.begin(fed, row)
            else:
                fed = shown.tokens
                g, logits = self.head.go_on(fed, shown.of_parents(g), row, shown.branches)
            row = row + len(fed)
            return logits  # [P, V]

        return predict


class Eagle3Kind(HeadKind[DraftHead, CachedEagle3]):
    drafter = Eagle3Drafter

    def is_one(self, model: Module) -> bool:
        return isinstance(model, Eagle3Head)

    def compared(self, whole: CachedEagle3, cached: CachedEagle3, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What an EAGLE-3 head says of ids [N] at once, and in parts: logits [N - 1, V]."""
        n = len(ids) - 1  # pairs of a token and the feature before it
        expected, said = _of_pairs(whole, ids, 0, n), _of_pairs(cached, ids, 0, n // 2)
        for start in range(n // 2, n, 2):
            _of_pairs(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
            said = torch.cat([said, _of_pairs(cached, ids, start, min(start + 2, n))])
        return expected, said


def _of_pairs(cached: CachedEagle3, ids: Tensor, start: int, end: int) -> Tensor:
    """The logits [end - start, V] of the pairs in these rows of the head's cache."""
    cached.grow(end)
    tokens = ids[start + 1 : end + 1].to(cached.device)
    return cached.predict(cached.true_rows(tokens, torch.tensor(start, device=cached.device)))[1]
