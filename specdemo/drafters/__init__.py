"""Who drafts. A new drafter is one file with the methods of `Drafter`, and one line in `session.py`."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdemo.sampling import one_hot


@dataclass(frozen=True)
class Draft:
    """K drafted tokens and where they came from; K may be 0. On the target's device, at the target's width V."""

    ids: Tensor  # [K]
    q: Tensor  # [K, V] float64: ids[i] was drawn from q[i]
    raw_q: Tensor  # [K, V] float64: the same at temperature 1, unfiltered


class Drafter(Protocol):
    """`ids` is always the whole text so far, prompt included, as a list on the host."""

    fill: int  # how many of the target's likeliest tokens at each position `learn` wants

    def start(self, ids: list[int]) -> None:
        """The prompt, before the first round."""

    def propose(self, ids: list[int], k: int, draws: Tensor) -> Draft:
        """At most k tokens to follow `ids`; draws [k] are the uniform numbers to draw them with."""

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        """After each round. likely[i]: the target's `fill` likeliest (token, raw p) behind ids + draft[:i]; `ids` is the
        text before the round."""


def certain(ids: list[int], vocab_size: int, device: torch.device) -> Draft:
    """A draft without a distribution: q is one-hot, so that no rule has to know."""
    tensor = torch.tensor(ids, dtype=torch.long, device=device)
    q = one_hot(tensor, vocab_size)
    return Draft(tensor, q, q)


class NoDrafter:
    """Plain decoding: the same loop with nothing drafted."""

    fill = 0

    def __init__(self, vocab_size: int, device: torch.device):
        self.nothing = certain([], vocab_size, device)

    def start(self, ids):
        pass

    def propose(self, ids, k, draws):
        return self.nothing

    def learn(self, ids, draft, likely):
        pass
