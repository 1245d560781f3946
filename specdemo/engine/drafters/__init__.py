"""Who drafts. A new drafter is one file with the methods of `Drafter`, and one line in `session.py`."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.sampling import one_hot
from specdemo.runtime.device import sent


@dataclass(frozen=True)
class Draft:
    """K drafted tokens and where they came from; K may be 0. On the target's device, at the target's width V. There may be
    rows behind them, B in all, that only fill a recording up."""

    k: int
    ids: Tensor  # [B]
    q: Tensor  # [B, V] float64: ids[i] was drawn from q[i]
    raw_q: Tensor  # [B, V] float64: the same at temperature 1, unfiltered

    def filled(self, rows: int) -> "Draft":
        """The same with `rows` rows; the new ones draft token 0 from nothing."""
        if rows == len(self.ids):
            return self
        new = rows - len(self.ids)
        return Draft(
            self.k, pad(self.ids, (0, new)), pad(self.q, (0, 0, 0, new)), pad(self.raw_q, (0, 0, 0, new))
        )


class Drafter(Protocol):
    """`ids` is always the whole text so far, prompt included, as a list on the host."""

    fill: int  # how many of the target's likeliest tokens at each position `learn` wants

    def start(self, ids: list[int]) -> None:
        """The prompt, before the first round."""

    def propose(self, ids: list[int], k: int, draws: Tensor) -> Draft:
        """At most k tokens to follow `ids`; draws [k or more] are the uniform numbers to draw them with."""

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        """After each round. likely[i]: the target's `fill` likeliest (token, raw p) behind ids + draft[:i]; `ids` is the
        text before the round."""


def certain(ids: list[int], vocab_size: int, device: torch.device) -> Draft:
    """A draft without a distribution: q is one-hot, so that no rule has to know."""
    tensor = sent(ids, torch.long, device)
    q = one_hot(tensor, vocab_size)
    return Draft(len(ids), tensor, q, q)


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
