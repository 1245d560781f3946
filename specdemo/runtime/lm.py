"""A causal language model over a cache that is written by position: the one thing that engine and drafters ask of a model.

Nothing is ever rewound: a forward says at which position its first token stands, and what the cache held from there on is
written over or not looked at. Two ways to run one: exactly as transformers would with a cache of its own; or so that it can be
recorded (record.py): positions are tensors, the cache shows a longer span than it holds, and nothing waits for the device.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from specdemo.runtime.attention import attention_of

PREFILL_CHUNK = 1024  # tokens a forward: bounds the memory that a long prompt takes
SMALLEST = 256  # tokens that a cache has room for


class LM(Protocol):
    """What the engine needs of a model. The tests' toy tables are LMs too."""

    vocab_size: int
    device: torch.device
    span: int  # how much of the cache a forward looks at
    moves: int  # how often the cache has moved to larger buffers, which ends every recording

    def reach(self, start: int, length: int) -> None:
        """Before forwards that follow each other: the first stands at `start`, none at position `length` or behind."""

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        """ids [N] at the positions start [], start + 1, ...; the logits behind each of them, [N, V]."""

    def prefill(self, ids: Tensor) -> int:
        """ids [N] (N may be 0) from position 0 on, without asking for logits; how many forwards it took."""


class CachedLM:
    """A transformers model as an `LM`. It keeps its cache from run to run: the next one writes over it."""

    def __init__(self, model: PreTrainedModel):
        self.model = self.run = model  # run: what is called, the model or the compiled one
        self.compiled = None
        self.device = model.get_input_embeddings().weight.device
        self.dtype = model.dtype
        self.known_ids = model.get_input_embeddings().weight.shape[0]
        self.vocab_size = logits_width(model)
        self.last_position = context_of(model) - 1
        self.cache = rewindable_cache(model, self)
        self.exact = True
        self.capacity = 0
        self.moves = 0
        self.reach(0, 1)
        self.takes = inspect.signature(model.forward).parameters
        # Prefill needs no logits, and [prompt, V] of them can be gigabytes.
        self.prefill_arguments = {"logits_to_keep": 1} if "logits_to_keep" in self.takes else {}

    def compile(self, wanted: bool) -> None:
        """Fuses the small operations of a forward in span mode. Every number of rows and every span is compiled anew at its first
        forward, which takes a minute for a large model."""
        if wanted and self.compiled is None:
            torch._dynamo.config.recompile_limit = max(
                64, torch._dynamo.config.recompile_limit
            )  # behind it, it would give up unheard
            self.compiled = torch.compile(self.model, dynamic=False)
        self.run = self.compiled if wanted else self.model

    @property
    def fits(self) -> bool:
        """Whether the model still is where and what it was: one in memory is its owner's to move and to cast."""
        return (self.model.get_input_embeddings().weight.device, self.model.dtype) == (
            self.device,
            self.dtype,
        )

    @property
    def span(self) -> int:
        return len(self.ruler)

    def reach(self, start: int, length: int) -> None:
        self.next = start
        span = self.rounded(length)
        if span > self.capacity:
            self.capacity = max(span, min(2 * self.capacity, 2 * span), SMALLEST)
            self.ruler_buffer = torch.empty(self.capacity, device=self.device)
            self.moves += 1
            for layer in self.slots:
                layer.move()
        self.ruler = self.ruler_buffer[
            :span
        ]  # [L]: only its length is looked at, which a trace can follow where it could not an int

    def rounded(self, length: int) -> int:
        """A span for so many tokens. On a GPU, where each span has to be recorded, there are few: 256, 384, 512, 768, 1024 ..."""
        if self.device.type == "cpu":
            return -(-length // 64) * 64
        power = max(SMALLEST, 1 << (length - 1).bit_length())
        return power * 3 // 4 if length <= power * 3 // 4 and power > SMALLEST else power

    @property
    def slots(self) -> "list[Slots]":
        return [layer for layer in self.cache.layers if isinstance(layer, Slots) and layer.is_initialized]

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        return self.step(ids, start, self.model if self.exact else self.run)

    def step(self, ids: Tensor, start: Tensor, call: Callable, **arguments) -> Tensor:
        # A wider neighbour's ids can be unknown here. Any known id may stand in for one: a drafter's context needs not
        # be right for q to be what its draft is drawn from.
        ids = ids.clamp(max=self.known_ids - 1)
        self.start = self.next if self.exact else start  # the same, but on the host
        self.next += len(ids)
        self.positions = self.start + torch.arange(len(ids), device=self.device)  # [N]
        if self.exact:
            self.ruler = self.ruler_buffer[: self.next]
        else:  # rows that only fill a recording up may stand behind the model's last position
            arguments |= {name: tensor[None] for name, tensor in self.told() if name in self.takes}
        with nullcontext() if self.exact else attention_of(self.model.config):
            output = call(input_ids=ids[None], past_key_values=self.cache, use_cache=True, **arguments)
        return output.logits[0]  # [N, V]

    def told(self) -> Iterator[tuple[str, Tensor]]:
        """What a model would work out for itself from the cache's length on the host. The mask says that nothing is padding."""
        yield "position_ids", self.positions.clamp(max=self.last_position)
        yield "attention_mask", torch.ones_like(self.ruler)

    def prefill(self, ids: Tensor) -> int:
        chunks = [chunk for chunk in ids.split(PREFILL_CHUNK) if len(chunk)]
        done = 0
        for chunk in chunks:
            self.reach(done, done + len(chunk))
            self.ruler = self.ruler_buffer[
                : done + len(chunk)
            ]  # the first chunk fills it, and so needs no mask
            self.step(
                chunk.to(self.device),
                torch.tensor(done, device=self.device),
                self.model,
                **self.prefill_arguments,
            )
            done += len(chunk)
        return len(chunks)


class Slots(DynamicLayer):
    """One layer's keys and values, by position. Sliding-window layers keep full length too (the mask does the sliding),
    because the next round may begin before what the window has left behind."""

    def __init__(self, lm: CachedLM):
        super().__init__()
        self.lm = lm

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]  # [1, heads, 0, head_dim]
        self.is_initialized = True
        self.move()

    def move(self) -> None:
        self.keys, self.values = (_longer(old, self.lm.capacity) for old in (self.keys, self.values))

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.lm.positions, key_states)
        self.values.index_copy_(2, self.lm.positions, value_states)
        span = self.lm.ruler.shape[0]
        return self.keys[:, :, :span], self.values[:, :, :span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.lm.ruler.shape[0], 0

    def get_seq_length(self) -> int | Tensor:
        return self.lm.start


@torch.inference_mode(
    False
)  # the buffers outlive a caller's inference mode, in which nobody else could write to them later
def _longer(old: Tensor, length: int) -> Tensor:
    """Zeros behind, not memory as it was: what is masked is still multiplied, by 0, which NaN would survive."""
    new = old.new_zeros(*old.shape[:-2], length, old.shape[-1])
    new[..., : old.shape[-2], :] = old
    return new


def logits_width(model: PreTrainedModel) -> int:
    """V: what counts as the vocabulary, padding included."""
    return (model.get_output_embeddings() or model.get_input_embeddings()).weight.shape[0]


def context_of(model: PreTrainedModel) -> float:
    """The most tokens that a text can have; infinite where the model names no limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or float("inf")


def rewindable_cache(model: PreTrainedModel, lm: CachedLM | None = None) -> Cache:
    """An empty cache for the model; ValueError says why there is none that can be written by position."""
    if model.config.is_encoder_decoder:
        raise ValueError("it is an encoder-decoder model, and only decoder-only models can be run")
    if model._is_stateful:
        raise ValueError("it keeps a recurrent state, which cannot be rewound to before a rejected draft")
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise ValueError("it takes no cache, so every forward would begin anew")
    layers = DynamicCache(config=model.config).layers
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
            raise ValueError(f"its cache has layers of type {type(layer).__name__}, which cannot be rewound")
    # The list's length matters: models whose last layers share keys and values have fewer.
    return Cache(layers=[layer if isinstance(layer, DummyLayer) else Slots(lm) for layer in layers])


@torch.no_grad()
def rewinds(model: PreTrainedModel) -> bool:
    """Whether going back leaves no trace in what the model then says, tried on three tokens. A model that sees the tokens
    behind, too (a BERT that is no decoder), would run, and verify drafts by wrong logits."""
    lm = CachedLM(model)
    lm.reach(0, 3)
    before = lm.forward(torch.arange(3, device=lm.device), torch.tensor(0, device=lm.device))[
        1
    ].double()  # [V]
    lm.reach(1, 2)
    again = lm.forward(torch.arange(1, 2, device=lm.device), torch.tensor(1, device=lm.device))[0].double()
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * before.abs().max()
    return bool((before - again).abs().max() <= tolerance)
