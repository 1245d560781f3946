"""Drafters. A new one is a file here with the methods of `Drafter`, a branch in session.py, and its name in
DRAFT_WITH (events/params.py), METHODS (bench/methods.py) and DRAFTERS (ui/settings.py)."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.sampling import one_hot
from specdemo.runtime.device import to_device


@dataclass(frozen=True)
class Draft:
    """k drafted tokens and the distributions that they were drawn from, on the target's device and at its
    width V; k may be 0. There may be more rows than k, B in all, which only fill a captured step. dropped:
    how many tokens the drafter made besides these and dropped itself, because it was not sure enough."""

    k: int
    ids: Tensor  # [B] int64
    q: Tensor  # [B, V] float32: ids[i] was drawn from q[i]
    raw_q: Tensor  # [B, V] float32: the same at temperature 1, unfiltered
    exact: Tensor  # [B] bool: whether q is what the sampler asks for (see Sampler.shape)
    dropped: int = field(default=0, kw_only=True)

    def padded(self, rows: int) -> "Draft":
        """The same with `rows` rows; each new one drafts token 0, with q = 0."""
        new = rows - len(self.ids)
        if new == 0:
            return self
        wider = (0, 0, 0, new)
        return replace(
            self,
            ids=pad(self.ids, (0, new)),
            q=pad(self.q, wider),
            raw_q=pad(self.raw_q, wider),
            exact=pad(self.exact, (0, new), value=True),
        )


class Drafter(Protocol):
    """`ids` is always the whole text so far, prompt included, as a list on the host."""

    wants_top: int  # how many of the target's likeliest tokens at each position `learn` uses

    def start(self, ids: list[int]) -> None:
        """Is given the prompt, before the first round."""

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        """At most k tokens to follow `ids`, each drawn from the q that is returned with it. u: k or more
        uniform numbers to draw them with."""

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        """Called after each round where `wants_top` is not 0. ids: the text before the round. likely[i]: the
        target's `wants_top` likeliest (token, raw_p) after ids + draft[:i]."""


def is_unsure(raw_q: Tensor, confidence: float | Tensor) -> Tensor:
    """Where a draft ends before its token: raw_q [N, V] -> [N] bool, whether the drafter's likeliest token
    has a probability below `confidence`. NaN is not below it, so that broken weights are noticed.

    It looks at the distribution and never at the token that is drawn from it. So whether a token is drafted
    depends on the tokens before it alone, and speculation stays lossless. The verifier applies this to every
    draft. A drafter that can read numbers without waiting may end its loop after such a place."""
    return raw_q.amax(-1).double() < confidence


def one_hot_draft(ids: list[int], vocab_size: int, device: torch.device) -> Draft:
    """A draft without a distribution: q is one-hot, so that no rule has to know."""
    tensor = to_device(ids, torch.long, device)
    q = one_hot(tensor, vocab_size)
    return Draft(len(ids), tensor, q, q, torch.ones_like(tensor, dtype=torch.bool))


class NoDrafter:
    """Plain decoding: the same loop with nothing drafted."""

    wants_top = 0

    def __init__(self, vocab_size: int, device: torch.device):
        self.nothing = one_hot_draft([], vocab_size, device)

    def start(self, ids: list[int]) -> None:
        pass

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        return self.nothing

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        pass
