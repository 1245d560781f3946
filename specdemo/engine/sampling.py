"""From logits to probabilities, and from probabilities and a uniform number to a token.

Probabilities are float32, because consumer GPUs compute float64 at a 64th of the speed. What decides is
float64: the uniform numbers, running sums, and (in rules.py) p and q of the tokens that are judged. A float64
number holds a float32 probability exactly, so anybody can repeat every verdict from the numbers in a trace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.grammar import Grammar
from specdemo.events import Params
from specdemo.runtime.cuda import to_device
from specdemo.runtime.lm import Drawing


def probabilities(logits: Tensor) -> Tensor:
    """logits [N, V] of any float type -> raw probabilities [N, V], float32: temperature 1, nothing
    filtered."""
    logits = logits.float()
    if not _one_block_is_slow(logits):
        return logits.softmax(-1)
    return _normalised((logits - _reduced(torch.amax, logits, -torch.inf)).exp())


def masked(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Masks the logits [..., V] of what is not allowed [..., V]; None: all is."""
    return logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)


@dataclass(frozen=True)
class Settings:
    """The numbers that shape probabilities, on the device. A step reads them as inputs, so that a captured
    step serves for all of them. numbers: as `Sampler.numbers`, by the same names, float64. Each is an
    attribute, too: `biased` and `bias` [N], the others [], since logits of float32 stay so when they are
    combined with a number of no dimension."""

    numbers: Mapping[str, Tensor]

    @classmethod
    def on_host(cls, sampler: "Sampler") -> "Settings":
        """Makes a sampler's settings where nothing runs on a device."""
        numbers = sampler.numbers.items()
        return cls({name: torch.tensor(values, dtype=torch.float64) for name, values in numbers})

    def __getattr__(self, name: str) -> Tensor:
        if name not in self.numbers:
            raise AttributeError(name)
        numbers = self.numbers[name]
        return numbers if name in ("biased", "bias") else numbers[0]


# Draws tokens [N] from logits [N, V]. Also returns the probabilities [N, V] that they are drawn from; None:
# they are one-hot.
Draw = Callable[[Tensor, Drawing], tuple[Tensor, Tensor | None]]


class Sampler:
    """Shapes logits into the probabilities that tokens are drawn from: logit bias, repetition penalty,
    presence and frequency penalties, temperature, top-k, top-p and min-p, in this order. Temperature 0 is
    one-hot at the argmax. What transformers has too does what its processors do; presence and frequency
    penalties are OpenAI's, which count generated tokens only.

    Target and drafter share one sampler, because a draft is accepted more often when q is shaped like p.
    Losslessness needs less: that each drafted token was drawn from the q that is used.

    prompt_tokens: how many tokens of each text were not generated. compiled_draw: draws in
    its place on a CPU. grammar: the run's, whose mask its callers lay over the logits."""

    def __init__(
        self,
        params: Params,
        prompt_tokens: int = 0,
        compiled_draw: "Draw | None" = None,
        grammar: Grammar | None = None,
    ):
        self.prompt_tokens = prompt_tokens
        self.compiled_draw = compiled_draw
        self.grammar = grammar
        self.greedy = params.temperature == 0
        self.top_k = 0 if self.greedy else params.top_k
        self.has_top_p = params.top_p < 1 and not self.greedy
        self.has_min_p = params.min_p > 0 and not self.greedy
        # A temperature that float32 rounds to 0 would give 0/0.
        temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
        repetition = 1.0 if params.repetition_penalty is None else params.repetition_penalty
        self.counts_repeated = repetition != 1
        self.counts_generated = params.presence_penalty != 0 or params.frequency_penalty != 0
        bias = params.logit_bias or {}
        self.biased = len(bias)  # tokens
        self.numbers: dict[str, list[float]] = {
            "temperature": [temperature],
            "top_k": [self.top_k],
            "top_p": [params.top_p],
            "min_p": [params.min_p],
            "repetition": [repetition],
            "presence": [params.presence_penalty],
            "frequency": [params.frequency_penalty],
            "biased": [*bias],
            "bias": [*bias.values()],
        }

    @property
    def penalises(self) -> bool:
        """Says whether a token's probability depends on which tokens are in the text."""
        return self.counts_repeated or self.counts_generated

    @property
    def key(self) -> tuple:
        """Names what changes the operations, beyond the numbers in `Settings`."""
        adjusts = self.biased, self.counts_repeated, self.counts_generated
        return self.greedy, self.top_k, self.has_top_p, self.has_min_p, *adjusts

    def seen(self, ids: list[int], vocab_size: int, device: torch.device) -> Tensor | None:
        """Counts how often each token of a text was generated, and a half more if it is in the prompt: [V]
        float32; None where nothing is penalised. So a token is in the text where this is above 0, and was
        generated as often as it says without the half. One more token adds 1."""
        if not self.penalises:
            return None
        on_device = to_device(ids, torch.long, device)
        prompt, generated = on_device[: self.prompt_tokens], on_device[self.prompt_tokens :]
        seen = torch.zeros(vocab_size, dtype=torch.float32, device=device).index_fill_(0, prompt, 0.5)
        return seen.index_add_(0, generated, torch.ones_like(generated, dtype=seen.dtype))

    def shape(self, logits: Tensor, settings: Settings, seen: Tensor | None = None) -> Tensor:
        """logits [N, V] -> probabilities [N, V], float32. seen: [N, V], or [V] for all rows, of the text
        before each row (see `seen`)."""
        logits = self.adjusted(logits, settings, seen)
        if self.greedy:
            return one_hot(most_likely(logits), logits.shape[-1])
        logits = logits.float()
        # The largest logit becomes 0, so that a tiny temperature overflows to -inf only, never to inf - inf.
        logits = (logits - _reduced(torch.amax, logits, -torch.inf)) / settings.temperature
        if 0 < self.top_k < logits.shape[-1]:
            logits = _at_least(logits, logits.topk(self.top_k).values[:, -1:])
        if self.has_top_p:
            logits = _in_nucleus(logits, settings.top_p)
        if self.has_min_p:  # p >= min_p * max p, as the largest logit is 0
            logits = _at_least(logits, settings.min_p.log())
        return _normalised(logits.exp()) if _one_block_is_slow(logits) else logits.softmax(-1)

    def probabilities(self, logits: Tensor, settings: Settings, seen: Tensor | None) -> Tensor:
        """Gives what `shape` gives, by compiled code on a CPU where nothing is penalised."""
        if self.compiled_draw is None or logits.device.type != "cpu" or seen is not None:
            return self.shape(logits, settings, seen)
        u = torch.zeros(len(logits), dtype=torch.float64)
        tokens, probs = self.compiled_draw(logits, self.drawing(settings, u, None, stops_below=0.0))
        return one_hot(tokens, logits.shape[-1]) if probs is None else probs

    def adjusted(self, logits: Tensor, settings: Settings, seen: Tensor | None) -> Tensor:
        """Adds the bias and applies the penalties.

        Repetition (Keskar et al. 2019, "CTRL", as transformers has it): the logit of a token already in the
        text is divided by the penalty, and multiplied by it where it is below 0. Presence and frequency (the
        OpenAI API): from the logit of a token that was generated n times, n frequency penalties and one
        presence penalty are subtracted."""
        if self.biased:
            bias = settings.bias.float().expand(len(logits), -1)
            logits = logits.float().index_add(1, settings.biased.long(), bias)
        if not self.penalises:
            return logits
        assert seen is not None, "which tokens are in the text"
        logits = logits.float()
        if self.counts_repeated:
            penalty = settings.repetition
            lower = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits = torch.where(seen > 0, lower, logits)
        if self.counts_generated:
            times = seen.floor()
            penalty = settings.frequency.float() * times + settings.presence.float() * (times > 0)
            logits = logits - penalty
        return logits

    def sample(
        self, logits: Tensor, u: Tensor, settings: Settings, seen: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Draws a token [N] for each row of logits [N, V] with u [N]. Also returns the probabilities [N, V]
        that it was drawn from; None where they are one-hot. seen: [V], for all rows."""
        if self.compiled_draw is not None and logits.device.type == "cpu":
            return self.compiled_draw(logits, self.drawing(settings, u, seen, stops_below=0.0))
        if self.greedy:  # whatever u is
            return most_likely(self.adjusted(logits, settings, seen)), None
        probs = self.shape(logits, settings, seen)
        return draw(probs, u), probs

    def drawing(self, settings: Settings, u: Tensor, seen: Tensor | None, stops_below: float) -> Drawing:
        """Says how compiled code draws a draft's tokens. stops_below: the draft ends after a
        place at which the drafter is less sure."""
        numbers = settings.numbers
        temperature = torch.zeros_like(numbers["temperature"]) if self.greedy else numbers["temperature"]
        others = ("top_k", "top_p", "min_p", "repetition", "presence", "frequency")
        more = torch.tensor([stops_below, self.biased], dtype=torch.float64)
        parts = [temperature, *(numbers[name] for name in others), more, numbers["biased"], numbers["bias"]]
        return Drawing(self.greedy, u, torch.cat(parts), seen)


def _at_least(logits: Tensor, least: Tensor) -> Tensor:
    return logits.masked_fill(logits < least, -torch.inf)


def _in_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Leaves, of logits [N, V], the fewest likeliest whose probabilities sum to at least top_p []; the others
    become -inf. The largest of each row is 0. transformers' warper keeps as many, but its sort does not say
    which of equally likely ones: here those with the highest ids stay."""
    order = logits.sort(dim=-1, stable=True)  # the least likely first
    # More than 1 by what rounding can change: of 10 that are equally likely 9 stay at 0.9.
    first = draw(order.values.exp(), (1 + 1e-15 - top_p)[None])  # [N]: of those that stay
    outside = torch.arange(logits.shape[-1], device=logits.device) < first[:, None]  # [N, V]
    return logits.scatter(-1, order.indices, order.values.masked_fill(outside, -torch.inf))


def one_hot(ids: Tensor, vocab_size: int) -> Tensor:
    """ids [N] -> float32 [N, V] with all mass on the ids."""
    zeros = torch.zeros(*ids.shape, vocab_size, dtype=torch.float32, device=ids.device)
    return zeros.scatter_(-1, ids[..., None], 1.0)


CHUNK = 128  # tokens: the vocabularies of Llama 3 and Qwen need no padding
SMALL_VOCABULARY = 8192  # tokens: up to here, one long operation takes less time than several short ones


def _in_chunks(numbers: Tensor, padding: float) -> Tensor:
    """numbers [N, V] -> [N, C, CHUNK], the last chunk of a row filled up with `padding`."""
    if missing := -numbers.shape[-1] % CHUNK:
        numbers = pad(numbers, (0, missing), value=padding)
    return numbers.unflatten(-1, (-1, CHUNK))


def _one_block_is_slow(numbers: Tensor) -> bool:
    """numbers [N, V]: whether they are on a GPU, which sums up each row with one block, and V is large."""
    return numbers.is_cuda and numbers.shape[-1] > SMALL_VOCABULARY


def _reduced(reduce: Callable[..., Tensor], numbers: Tensor, padding: float) -> Tensor:
    """numbers [N, V] -> their sums or largest numbers [N, 1]."""
    if _one_block_is_slow(numbers):
        numbers = reduce(_in_chunks(numbers, padding), -1)  # [N, C]
    return reduce(numbers, -1, keepdim=True)


def _normalised(weights: Tensor) -> Tensor:
    """Divides each row by its sum, in place."""
    return weights.div_(_reduced(torch.sum, weights, 0.0))


def most_likely(logits: Tensor) -> Tensor:
    """logits [N, V] -> ids [N]: the first of the largest, or the first that is NaN. In a large vocabulary it
    finds the token's chunk first: a GPU may have one block look through a row (it does with 128,256 tokens,
    not with 151,936), and a CPU finds the largest number faster than its place."""
    if logits.shape[-1] <= SMALL_VOCABULARY:
        return logits.argmax(-1)
    largest = _in_chunks(logits, -torch.inf).max(-1)  # [N, C]
    chunk = largest.values.argmax(-1, keepdim=True)  # [N, 1]
    return largest.indices.gather(1, chunk).add(chunk, alpha=CHUNK)[:, 0]


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Finds the token at `u` of the cumulative distribution, in the order of ids. weights [N, V] need not be
    normalised, u [N] in [0, 1), float64 -> ids [N]. Never a token of weight 0, whatever u is."""
    if weights.shape[-1] <= SMALL_VOCABULARY:
        weights = weights.double()
        cumulative = weights.cumsum(-1)
        return _index_beyond(cumulative, weights, u[:, None] * cumulative[:, -1:])[:, 0]
    # Finds the token's chunk first, and then the token inside of it, so that no float64 running sum is as
    # long as a large vocabulary.
    chunks = _in_chunks(weights, 0.0)
    sums = chunks.sum(-1, dtype=torch.float64)  # [N, C]
    ends = sums.cumsum(-1)
    point = u[:, None] * ends[:, -1:]
    chunk = _index_beyond(ends, sums, point)  # [N, 1]
    before = pad(ends, (1, 0)).gather(-1, chunk)  # [N, 1]: the sum of the chunks before it
    inside = chunks.gather(1, chunk[..., None].expand(-1, -1, CHUNK))[:, 0].double()  # [N, CHUNK]
    return (chunk * CHUNK + _index_beyond(before + inside.cumsum(-1), inside, point))[:, 0]


def _index_beyond(cumulative: Tensor, weights: Tensor, point: Tensor) -> Tensor:
    """cumulative and weights [N, n], point [N, 1] -> indices [N, 1]: the first at which the running sum
    exceeds the point, or the last that raises it, if rounding has put the point too high."""
    # The sums are masked, so that nothing of weight 0 can be found, however a device rounds them.
    cumulative = cumulative.masked_fill(weights <= 0, -torch.inf)
    # A point that has been rounded up to the largest sum is exceeded by none.
    beyond = (cumulative > point) | (cumulative == cumulative.amax(-1, keepdim=True))
    return beyond.max(-1, keepdim=True).indices  # the first


@dataclass(frozen=True)
class Uniforms:
    """The uniform numbers in [0, 1) of one round, on the host, named for what they decide."""

    next: float  # draws the resampled, bonus or sampled token
    draft: list[float]  # K: draw the drafted tokens
    accept: list[float]  # K: decide which of them are accepted


def uniforms(seed: int, index: int, k: int) -> Uniforms:
    """Makes the dice of round `index` for k drafted tokens. Each depends on the seed, the round and its
    place in the round alone, so a longer draft or another consumer changes none of them."""
    random = Random(f"specdemo {seed} {index}").random
    numbers = [random() for _ in range(1 + 2 * k)]
    return Uniforms(next=numbers[0], draft=numbers[1::2], accept=numbers[2::2])
