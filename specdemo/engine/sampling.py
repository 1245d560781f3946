"""From logits to probabilities, and from probabilities and a uniform number to a token.

Probabilities are float64, so that anybody can repeat every verdict exactly from the numbers in a trace.
"""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

from specdemo.events import Params
from specdemo.runtime.device import to_device


def probabilities(logits: Tensor) -> Tensor:
    """logits [N, V] of any float type -> raw probabilities [N, V], float64: temperature 1, nothing
    filtered."""
    return logits.double().softmax(-1)


class Sampler:
    """Shapes logits into the probabilities that tokens are drawn from: temperature, top-k, top-p and min-p,
    in this order and as transformers' own warpers do. Temperature 0 is one-hot at the argmax.

    Target and drafter share one sampler, because a draft is accepted more often when q is shaped like p.
    Losslessness needs less: that each drafted token was drawn from the q that is used."""

    def __init__(self, params: Params):
        self.greedy = params.temperature == 0
        self.nucleus = Nucleus(params.top_p) if params.top_p < 1 and not self.greedy else None
        self._settings = (params.temperature, params.top_k, params.top_p, params.min_p)
        before: list[LogitsProcessor] = []  # the warpers before top-p
        after: list[LogitsProcessor] = []
        if params.temperature not in (0, 1):
            before.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            before.append(TopKLogitsWarper(params.top_k))
        if params.min_p:
            after.append(MinPLogitsWarper(params.min_p))
        self._before_nucleus, self._after_nucleus = before, after

    def shape(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits [N, V] -> probabilities [N, V], float64, and whether each row is exact [N], bool.

        A row is inexact where the nucleus has more tokens than top-p looks at: the row then has the likeliest
        of them only. `widen` makes top-p look at more."""
        logits = logits.double()
        exact = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        if self.greedy:
            return one_hot(logits.argmax(-1), logits.shape[-1]), exact
        # The largest logit becomes 0, so that a tiny temperature overflows to -inf only, never to inf - inf.
        logits = logits - logits.amax(-1, keepdim=True)
        for warper in self._before_nucleus:
            logits = warper(None, logits)
        if self.nucleus:
            logits, exact = self.nucleus.filter(logits)
        for warper in self._after_nucleus:
            logits = warper(None, logits)
        return logits.softmax(-1), exact

    def sample(self, logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each row of logits [N, V] a token [N], drawn with u [N], the probabilities [N, V] that it was
        drawn from, and whether those are exact [N]."""
        if self.greedy:  # whatever u is
            tokens = logits.double().argmax(-1)
            return tokens, one_hot(tokens, logits.shape[-1]), torch.ones_like(tokens, dtype=torch.bool)
        probs, exact = self.shape(logits)
        return draw(probs, u), probs, exact

    @property
    def key(self) -> tuple:
        """Equal for two samplers that do the same: captured steps are found by it."""
        return *self._settings, self.nucleus and self.nucleus.width

    def widen(self) -> None:
        """Makes top-p look at more tokens from now on. Only called when a row was inexact."""
        assert self.nucleus is not None
        self.nucleus.widen()


class Nucleus:
    """Top-p: the fewest likeliest tokens whose probabilities sum to at least top_p. Keeps what transformers'
    warper keeps, but looks at the `width` likeliest tokens only, where that sorts the whole vocabulary.

    Whether they were enough is known on the device alone, so it is an output (`filter`). Of equally likely
    tokens at the edge, those with the highest ids stay; transformers keeps as many, but its sort does not say
    which."""

    WIDTHS = (256, 2048)

    def __init__(self, top_p: float):
        self.top_p = top_p
        self._wider = iter(self.WIDTHS)
        self.width: int | None = next(self._wider)  # None: the whole vocabulary

    def widen(self) -> None:
        self.width = next(self._wider, None)

    def filter(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits [N, V] -> the same with -inf outside of the nucleus, and whether that is the whole nucleus
        [N], bool. Where it is not, the `width` likeliest tokens stay, which are a part of it."""
        vocab_size = logits.shape[-1]
        width = min(self.width or vocab_size, vocab_size)
        top = logits.topk(width).values  # [N, width]
        p = (top - logits.logsumexp(-1, keepdim=True)).exp()
        inside = p.cumsum(-1) - p < self.top_p  # the likelier tokens sum to less than top_p
        edge = top.masked_fill(~inside, torch.inf).amin(-1, keepdim=True)  # [N, 1]: the least likely inside
        at_edge = logits == edge
        room = (inside & (top == edge)).sum(-1, keepdim=True)  # [N, 1]: how many of the equally likely stay
        higher_ids = at_edge.sum(-1, keepdim=True) - at_edge.cumsum(-1)  # [N, V]
        kept = (logits > edge) | (at_edge & (higher_ids < room))
        whole = ~inside[:, -1] if width < vocab_size else torch.ones_like(inside[:, -1])
        return logits.masked_fill(~kept, -torch.inf), whole


def one_hot(ids: Tensor, vocab_size: int) -> Tensor:
    """ids [N] -> float64 [N, V] with all mass on the ids."""
    zeros = torch.zeros(*ids.shape, vocab_size, dtype=torch.float64, device=ids.device)
    return zeros.scatter_(-1, ids[..., None], 1.0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """The token at `u` of the cumulative distribution, in the order of ids. weights [N, V] need not be
    normalised, u [N] in [0, 1) -> ids [N]. Never a token of weight 0, whatever u is."""
    # Masked, so that no token of weight 0 can be drawn, however a device rounds its running sums.
    cumulative = weights.cumsum(-1).masked_fill(weights <= 0, -torch.inf)  # [N, V]
    total = cumulative.amax(-1, keepdim=True)
    # u * total can round up to the total, which no token's cumulative weight exceeds.
    point = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative > point).int().argmax(-1)  # the first


@dataclass(frozen=True)
class Uniforms:
    """The uniform numbers in [0, 1) of one round, named for what they decide; float64."""

    next: Tensor  # [1] draws the resampled, bonus or sampled token
    draft: Tensor  # [K] draw the drafted tokens
    accept: Tensor  # [K] decide which of them are accepted


def uniforms(seed: int, index: int, k: int, device: torch.device) -> Uniforms:
    """The uniform numbers of round `index` for k drafted tokens. Each depends on the seed, the round and its
    place in the round alone, so a longer draft or another consumer changes none of them."""
    random = Random(f"specdemo {seed} {index}").random
    numbers = to_device([random() for _ in range(1 + 2 * k)], torch.float64, device)
    return Uniforms(next=numbers[:1], draft=numbers[1::2], accept=numbers[2::2])
