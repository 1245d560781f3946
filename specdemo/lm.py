"""A causal language model with a cache that can be rewound: the one thing that engine and drafters ask of a model."""

import inspect
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

PREFILL_CHUNK = 2048  # tokens a forward: bounds the memory that a long prompt takes


class LM(Protocol):
    """What the engine needs of a model. The tests' toy tables are LMs too."""

    vocab_size: int
    length: int  # tokens in the cache

    def forward(self, ids: Tensor) -> Tensor:
        """Append ids [N]; the logits behind each of them, [N, V]."""

    def prefill(self, ids: Tensor) -> int:
        """Append ids [N] (N may be 0) without asking for logits; how many forwards it took."""

    def rewind(self, length: int) -> None:
        """Forget everything behind the first `length` tokens."""


class CachedLM:
    """A transformers model as an `LM`. The cache is this object's own, so runs share weights and nothing else."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        self.known_ids = model.get_input_embeddings().weight.shape[0]
        self.vocab_size = logits_width(model)
        self.cache = rewindable_cache(model)
        self.length = 0
        # Prefill needs no logits, and [prompt, V] of them can be gigabytes.
        takes_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.prefill_arguments = {"logits_to_keep": 1} if takes_logits_to_keep else {}

    def forward(self, ids: Tensor, **arguments) -> Tensor:
        # A wider neighbour's ids can be unknown here. Any known id may stand in for one: a drafter's context needs not
        # be right for q to be what its draft is drawn from.
        ids = ids.to(self.device).clamp(max=self.known_ids - 1)
        output = self.model(input_ids=ids[None], past_key_values=self.cache, use_cache=True, **arguments)
        self.length += len(ids)
        return output.logits[0]  # [N, V]

    def prefill(self, ids: Tensor) -> int:
        chunks = [chunk for chunk in ids.split(PREFILL_CHUNK) if len(chunk)]
        for chunk in chunks:
            self.forward(chunk, **self.prefill_arguments)
        return len(chunks)

    def rewind(self, length: int) -> None:
        self.cache.crop(min(length - self.length, 0))  # crop takes minus the number of tokens to remove
        self.length = min(length, self.length)


def logits_width(model: PreTrainedModel) -> int:
    """V: what counts as the vocabulary, padding included."""
    return (model.get_output_embeddings() or model.get_input_embeddings()).weight.shape[0]


class GrowingLayer(DynamicLayer):
    """One layer's keys and values in buffers that double when full.

    transformers' own dynamic layer copies the whole cache at every step. It keeps full length for sliding-window layers
    too (the mask does the sliding), because a rewind may need what the window has left behind.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self.key_buffer = key_states[..., :0, :]  # [1, heads, T, head_dim]
        self.values = self.value_buffer = value_states[..., :0, :]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if end > self.key_buffer.shape[-2]:
            self.key_buffer = _grown(self.keys, key_states, 2 * end)
            self.value_buffer = _grown(self.values, value_states, 2 * end)
        self.key_buffer[..., start:end, :] = key_states
        self.value_buffer[..., start:end, :] = value_states
        self.keys = self.key_buffer[..., :end, :]
        self.values = self.value_buffer[..., :end, :]
        return self.keys, self.values


def _grown(old: Tensor, like: Tensor, length: int) -> Tensor:
    buffer = like.new_empty(*like.shape[:-2], length, like.shape[-1])
    buffer[..., : old.shape[-2], :] = old
    return buffer


def rewindable_cache(model: PreTrainedModel) -> Cache:
    """An empty cache for the model; ValueError says why there is none that a rewind leaves without a trace."""
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
    return Cache(layers=[layer if isinstance(layer, DummyLayer) else GrowingLayer() for layer in layers])


@torch.no_grad()
def rewinds(model: PreTrainedModel) -> bool:
    """Whether a rewind leaves no trace in what the model then says, tried on three tokens. A model that sees the tokens
    behind, too (a BERT that is no decoder), would run, and verify drafts by wrong logits."""
    lm = CachedLM(model)
    before = lm.forward(torch.arange(3))[1].double()  # [V]
    lm.rewind(1)
    again = lm.forward(torch.arange(1, 2))[0].double()
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * before.abs().max()
    return bool((before - again).abs().max() <= tolerance)
