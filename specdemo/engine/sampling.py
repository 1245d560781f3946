"""From logits to probabilities, and from probabilities and a given number to a token.

Probabilities are float64: the numbers in a trace then decide every verdict again, exactly, in anybody's calculator.
"""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

from specdemo.events import Params
from specdemo.runtime.device import sent


def probabilities(logits: Tensor) -> Tensor:
    """logits [N, V] of any float type -> raw probabilities [N, V], float64: temperature 1, nothing filtered."""
    return logits.double().softmax(-1)


class Sampler:
    """Shapes logits [N, V] into the probabilities [N, V] (float64) that tokens are drawn from.

    Temperature, top-k, top-p and min-p in this order, as transformers' own warpers do; temperature 0 is one-hot at the
    argmax. Target and drafter share one sampler: p and q must be shaped alike, or acceptance is not lossless. A row of NaN
    means that top-p's short way was too short there: `widen` and ask again.
    """

    def __init__(self, params: Params):
        self.greedy = params.temperature == 0
        self.nucleus = Nucleus(params.top_p) if params.top_p < 1 and not self.greedy else None
        self.asked = (params.temperature, params.top_k, params.top_p, params.min_p)
        self.warpers = []
        if params.temperature not in (0, 1):
            self.warpers.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            self.warpers.append(TopKLogitsWarper(params.top_k))
        if self.nucleus:
            self.warpers.append(self.nucleus)
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

    def take(self, logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """A token [N] behind each row of logits [N, V], drawn with u [N], and the probabilities [N, V] it was drawn from."""
        if self.greedy:  # whatever u is
            tokens = logits.double().argmax(-1)
            return tokens, one_hot(tokens, logits.shape[-1])
        p = self(logits)
        return draw(p, u), p

    @property
    def key(self) -> tuple:
        """The same for two samplers that do the same: what a recording is found by."""
        return *self.asked, self.nucleus and self.nucleus.few

    def widen(self) -> bool:
        """Lets top-p look at more tokens from now on; whether there were more."""
        return self.nucleus is not None and self.nucleus.widen()


class Nucleus:
    """Top-p: the fewest likeliest tokens that weigh top_p together. What transformers' warper does, without its sort of the whole
    vocabulary where they are among the likeliest `few`. Where they are not, nobody may wait for the device to say so: the row
    becomes NaN, which comes home with the record. Of equally likely tokens at the edge those with the highest ids stay (the sort
    in transformers' keeps as many, but no certain ones)."""

    WIDTHS = (256, 2048)

    def __init__(self, top_p: float):
        self.top_p = top_p
        self.widths = iter(self.WIDTHS)
        self.few: int | None = next(self.widths)  # None: all

    def widen(self) -> bool:
        were, self.few = self.few, next(self.widths, None)
        return were is not None

    def __call__(self, ids: None, logits: Tensor) -> Tensor:
        """logits [N, V] -> the same with -inf outside of the nucleus."""
        vocab_size = logits.shape[-1]
        few = min(self.few or vocab_size, vocab_size)
        top = logits.topk(few).values  # [N, few]
        p = (top - logits.logsumexp(-1, keepdim=True)).exp()
        inside = p.cumsum(-1) - p < self.top_p  # what is likelier weighs less than top_p
        edge = top.masked_fill(~inside, torch.inf).amin(-1, keepdim=True)  # [N, 1]: the least likely inside
        equal = logits == edge
        room = (inside & (top == edge)).sum(-1, keepdim=True)
        behind = equal.sum(-1, keepdim=True) - equal.cumsum(-1)  # [N, V]: equal ones with higher ids
        filtered = logits.masked_fill(~((logits > edge) | (equal & (behind < room))), -torch.inf)
        return filtered if few == vocab_size else filtered.masked_fill(inside[:, -1:], torch.nan)


def one_hot(ids: Tensor, vocab_size: int) -> Tensor:
    """ids [N] -> float64 [N, V] with all mass on the ids."""
    return torch.zeros(*ids.shape, vocab_size, dtype=torch.float64, device=ids.device).scatter_(
        -1, ids[..., None], 1.0
    )


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
    numbers = sent([random() for _ in range(1 + 2 * k)], torch.float64, device)
    return Dice(next=numbers[:1], draws=numbers[1::2], coins=numbers[2::2])
