"""A causal language model over a cache that is written by position: all that the engine and the drafters need
of a model.

Nothing is ever rewound: a forward is told the position of its first token, and what the cache held from there
on is overwritten or masked. A forward runs in one of two modes: *plain*, as transformers would run it with a
cache of its own; or *static*, so that it can be captured: positions are tensors, attention covers more of the
cache than is filled, and nothing waits for the device."""

import inspect
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from specdemo.runtime.attention import static_attention

PREFILL_CHUNK = 1024  # tokens per forward: bounds the memory that a long prompt takes
MIN_CAPACITY = 256  # tokens that a cache has room for


class LM(Protocol):
    """What the engine needs of a model. The tests' toy tables are LMs too."""

    vocab_size: int
    buffer_epoch: int  # how often the cache has moved to larger buffers, which invalidates captured steps

    @property
    def device(self) -> torch.device:
        """Where its logits are."""

    @property
    def kv_length(self) -> int:
        """How many positions of the cache a forward attends to."""

    def reserve(self, start: int, length: int) -> None:
        """Call before consecutive forwards: the first begins at position `start`, none reaches position
        `length`."""

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        """ids [N] at the positions start [], start + 1, ... -> logits [N, V]: row i predicts the token after
        ids[i]."""

    def prefill(self, ids: Tensor) -> int:
        """Fills the cache with ids [N] from position 0 on; N may be 0. Returns the number of forwards."""


class CachedLM:
    """A transformers model as an `LM`. It keeps its cache from run to run; the next run overwrites it.

    compiled: static forwards are fused by torch.compile, anew for each number of rows and each kv_length,
    which takes a minute for a large model."""

    def __init__(self, model: PreTrainedModel, compiled: bool = False):
        self.model = model
        self.device = torch.device(model.get_input_embeddings().weight.device)
        self.dtype = model.dtype
        self.vocab_size = logits_width(model)
        self.static = False  # the mode of this run, see begin_run
        self.buffer_epoch = 0
        self._static_model: Callable = _compiled(model) if compiled else model
        self._known_ids = model.get_input_embeddings().weight.shape[0]
        self._last_position = context_of(model) - 1
        self._cache = positional_cache(model, self)
        self._capacity = 0
        self._parameters = inspect.signature(model.forward).parameters
        # A prefill needs no logits, and [prompt, V] of them can be gigabytes.
        self._prefill_arguments = {"logits_to_keep": 1} if "logits_to_keep" in self._parameters else {}
        self.reserve(0, 1)

    def begin_run(self, static: bool) -> None:
        """Sets the mode of the forwards that follow."""
        self.static = static

    @property
    def is_current(self) -> bool:
        """False when the model was moved or cast: a model in memory belongs to its owner."""
        return (self.model.get_input_embeddings().weight.device, self.model.dtype) == (
            self.device,
            self.dtype,
        )

    @property
    def kv_length(self) -> int:
        return len(self.kv_ruler)

    def reserve(self, start: int, length: int) -> None:
        self._next = start
        kv_length = self._rounded(length)
        if kv_length > self._capacity:
            self._capacity = max(kv_length, 2 * self._capacity, MIN_CAPACITY)
            self._ruler_buffer = torch.empty(self._capacity, device=self.device)
            self.buffer_epoch += 1
            for layer in self.layers:
                layer.grow(self._capacity)
        # [kv_length]: only its length is used. A captured forward can follow the length of a tensor, but not
        # an int.
        self.kv_ruler = self._ruler_buffer[:kv_length]

    def _rounded(self, length: int) -> int:
        """The kv_length for a text of this length: few different ones on a GPU, where each has to be captured
        (256, 384, 512, 768, 1024, ...), and the next multiple of 64 on a CPU."""
        if self.device.type == "cpu":
            return -(-length // 64) * 64
        power = max(MIN_CAPACITY, 1 << (length - 1).bit_length())
        return power * 3 // 4 if length <= power * 3 // 4 and power > MIN_CAPACITY else power

    @property
    def layers(self) -> "list[PositionalLayer]":
        """The cache's layers that hold something."""
        return [
            layer
            for layer in self._cache.layers
            if isinstance(layer, PositionalLayer) and layer.is_initialized
        ]

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        return self.static_forward(ids, start) if self.static else self._plain_forward(ids)

    def static_forward(self, ids: Tensor, start: Tensor) -> Tensor:
        self.start = start
        # Rows that only fill a captured step may lie beyond the model's last position.
        arguments = {
            "position_ids": self._write_positions(ids).clamp(max=self._last_position)[None],
            "attention_mask": torch.ones_like(self.kv_ruler)[None],  # nothing is padding
        }
        arguments = {name: value for name, value in arguments.items() if name in self._parameters}
        with static_attention(self.model.config):
            return self._call(self._static_model, ids, arguments)

    def _plain_forward(self, ids: Tensor, **arguments: object) -> Tensor:
        self.start = self._next
        self._write_positions(ids)
        self.kv_ruler = self._ruler_buffer[: self._next]
        return self._call(self.model, ids, arguments)

    def _write_positions(self, ids: Tensor) -> Tensor:
        """Where the next forward's keys and values go: positions [N]."""
        self._next += len(ids)
        self.positions = self.start + torch.arange(len(ids), device=self.device)
        return self.positions

    def _call(self, model: Callable, ids: Tensor, arguments: dict) -> Tensor:
        # A wider partner's ids can be unknown to this model. Any known id can replace one: a drafter's
        # context need not be right for q to be what its draft is drawn from.
        ids = ids.clamp(max=self._known_ids - 1)
        output = model(input_ids=ids[None], past_key_values=self._cache, use_cache=True, **arguments)
        return output.logits[0]  # [N, V]

    def prefill(self, ids: Tensor) -> int:
        chunks = [chunk for chunk in ids.split(PREFILL_CHUNK) if len(chunk)]
        done = 0
        for chunk in chunks:
            self.reserve(done, done + len(chunk))
            self._plain_forward(chunk.to(self.device), **self._prefill_arguments)
            done += len(chunk)
        return len(chunks)


class PositionalLayer(DynamicLayer):
    """One layer's keys and values, by position. Sliding-window layers keep the full length too (the mask does
    the sliding), because the next round may begin before what the window has left."""

    def __init__(self, lm: CachedLM):
        super().__init__()
        self.lm = lm

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]  # [1, heads, 0, head_dim]
        self.is_initialized = True
        self.grow(self.lm._capacity)

    def grow(self, capacity: int) -> None:
        self.keys, self.values = _longer(self.keys, capacity), _longer(self.values, capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.lm.positions, key_states)
        self.values.index_copy_(2, self.lm.positions, value_states)
        kv_length = self.lm.kv_ruler.shape[0]
        return self.keys[:, :, :kv_length], self.values[:, :, :kv_length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.lm.kv_ruler.shape[0], 0

    def get_seq_length(self) -> int | Tensor:
        return self.lm.start


# The buffers outlive a caller's inference mode, and could not be written to after it.
@torch.inference_mode(False)
def _longer(old: Tensor, length: int) -> Tensor:
    """`old` followed by zeros up to `length`. Not uninitialised memory: masked values are multiplied by 0,
    and NaN would survive that."""
    new = old.new_zeros(*old.shape[:-2], length, old.shape[-1])
    new[..., : old.shape[-2], :] = old
    return new


def _compiled(model: PreTrainedModel) -> Callable:
    # Beyond its limit, torch.compile would go back to running the model as it is, without a word.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(model, dynamic=False)


def logits_width(model: PreTrainedModel) -> int:
    """V: the width of the logits, padding included."""
    return (model.get_output_embeddings() or model.get_input_embeddings()).weight.shape[0]


def context_of(model: PreTrainedModel) -> float:
    """The most tokens that a text can have; infinite where the config names no limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or float("inf")


def positional_cache(model: PreTrainedModel, lm: CachedLM | None = None) -> Cache:
    """An empty cache for the model; ValueError when the model has none that can be written by position."""
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
    return Cache(layers=[layer if isinstance(layer, DummyLayer) else PositionalLayer(lm) for layer in layers])


@torch.no_grad()
def can_rewind(model: PreTrainedModel) -> bool:
    """Whether overwriting the cache from an earlier position changes nothing in what the model predicts,
    tried on three tokens. A model that also attends to later tokens (a BERT that is no decoder) would
    otherwise verify drafts by wrong logits."""
    lm = CachedLM(model)
    lm.reserve(0, 3)
    zero, one = torch.tensor(0, device=lm.device), torch.tensor(1, device=lm.device)
    before = lm.forward(torch.arange(3, device=lm.device), zero)[1].double()  # [V]
    lm.reserve(1, 2)
    again = lm.forward(torch.arange(1, 2, device=lm.device), one)[0].double()
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * before.abs().max()
    return bool((before - again).abs().max() <= tolerance)
