"""EAGLE-3 heads as a pair's drafter."""

import torch
from torch import Tensor
from torch.nn import Module

from specdemo.drafters.base import Materials
from specdemo.drafters.eagle3.drafter import Eagle3Drafter
from specdemo.drafters.eagle3.head import CachedEagle3, Eagle3Head
from specdemo.drafters.head_kind import HeadKind


class Eagle3Kind(HeadKind):
    def is_one(self, model: Module) -> bool:
        return isinstance(model, Eagle3Head)

    def build(self, given: Materials) -> Eagle3Drafter:
        return Eagle3Drafter(given.drafter, given.target, given.sampler, *given.how_to_draft)

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
