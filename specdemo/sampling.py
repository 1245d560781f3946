"""From logits to probabilities, and from probabilities and a given number to a token.

Probabilities are float64: the numbers in a trace then decide every verdict again, exactly, in anybody's calculator.
"""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specdemo.events import Params


def probabilities(logits: Tensor) -> Tensor:
    """logits [N, V] of any float type -> raw probabilities [N, V], float64: temperature 1, nothing filtered."""
    return logits.double().softmax(-1)


class Sampler:
    """Shapes logits [N, V] into the probabilities [N, V] (float64) that tokens are drawn from.

    Temperature, top-k, top-p and min-p in this order, by transformers' own warpers; temperature 0 is one-hot at the
    argmax. Target and drafter share one sampler: p and q must be shaped alike, or acceptance is not lossless.
    """

    def __init__(self, params: Params):
        self.greedy = params.temperature == 0
        self.warpers = []
        if params.temperature not in (0, 1):
            self.warpers.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            self.warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            self.warpers.append(Nucleus(params.top_p))
        if params.min_p:
            self.warpers.append(MinPLogitsWarper(params.min_p))

    def __call__(self, logits: Tensor) -> Tensor:
        logits = logits.double()
        if self.greedy:
            return one_hot(logits.argmax(-1), logits.shape[-1])
        # The largest logit at 0, so that a tiny temperature overflows to -inf only, never to inf - inf.
        logits = logits - logits.amax(-1, keepdim=True)
        for warp in self.warpers:
            logits = warp(None, logits)
        return logits.softmax(-1)


class Nucleus:
    """transformers' top-p warper, without its sort of the whole vocabulary where the nucleus lies in the likeliest few
    tokens. Looking whether it does makes the host wait, so only a CPU, where that costs nothing, takes the short way."""

    FEW = (256, 1024)

    def __init__(self, top_p: float):
        self.top_p = top_p
        self.full = TopPLogitsWarper(top_p)

    def __call__(self, ids: None, logits: Tensor) -> Tensor:
        if logits.device.type == "cpu":
            p = logits.softmax(-1)  # [N, V]
            for few in self.FEW:
                if few < logits.shape[-1] and (filtered := self._among(few, p, logits)) is not None:
                    return filtered
        return self.full(ids, logits)

    def _among(self, few: int, p: Tensor, logits: Tensor) -> Tensor | None:
        """The filtered logits, if all nuclei end among the `few` likeliest tokens."""
        top = p.topk(few)  # [N, few]
        before = top.values.cumsum(-1) - top.values  # mass of what is likelier
        inside = before < self.top_p
        # Equal tokens on both sides of the edge are left to the full sort, which has its own order for them.
        least_inside = top.values.masked_fill(~inside, torch.inf).amin(-1)
        most_outside = top.values.masked_fill(inside, -torch.inf).amax(-1)
        if inside[:, -1].any() or (least_inside == most_outside).any():
            return None
        kept = logits.gather(-1, top.indices).masked_fill(~inside, -torch.inf)
        return torch.full_like(logits, -torch.inf).scatter_(-1, top.indices, kept)


def one_hot(ids: Tensor, vocab_size: int) -> Tensor:
    """ids [N] -> float64 [N, V] with all mass on the ids."""
    return torch.zeros(*ids.shape, vocab_size, dtype=torch.float64, device=ids.device).scatter_(-1, ids[..., None], 1.0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """The token at `u` of the cumulative distribution, in the order of ids. weights [N, V] need not be normalised,
    u [N] in [0, 1) -> ids [N]. Never a token of weight 0, whatever u is."""
    # Masked, so that no token of weight 0 can be met, however a device rounds its running sums.
    cumulative = weights.cumsum(-1).masked_fill(weights <= 0, -torch.inf)  # [N, V]
    total = cumulative.amax(-1, keepdim=True)
    # u * total can round up to the total, which no token's cumulative weight exceeds.
    point = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative > point).int().argmax(-1)  # the first


@dataclass(frozen=True)
class Dice:
    """The uniform numbers in [0, 1) of one round, by their place in it: float64."""

    next: Tensor  # [1] draws the resampled, bonus or sampled token
    draws: Tensor  # [K] draw the drafts
    coins: Tensor  # [K] judge the drafts


def throw(seed: int, round: int, k: int, device: torch.device) -> Dice:
    """The dice of round `round` for k drafts. They depend on the seed, the round and the place in the round alone, so a
    longer draft or another consumer moves none of them."""
    random = Random(f"specdemo {seed} {round}").random
    numbers = torch.tensor([random() for _ in range(1 + 2 * k)], dtype=torch.float64).to(device)
    return Dice(next=numbers[:1], draws=numbers[1::2], coins=numbers[2::2])
