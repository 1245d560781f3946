"""A decoder's forward in few and large operations, by torch or by kernels written in Triton, over a cache
that is written by position; and what a decoder is, read off transformers' models of the Llama family.

A forward of few tokens costs what its operations cost to launch, not what they compute: transformers runs a
Llama layer in some 43 of them, this module in 15 or 16, and with kernels in 9."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from specdemo.events.params import MOST_NODES
from specdemo.runtime.attention import Branches, additive, masked_attention
from specdemo.runtime.cache import CachedByPosition
from specdemo.runtime.decoder import (
    Attention,
    Decoder,
    Heads,
    Layer,
    Norm,
    Rotation,
    RowMask,
    embedding_scale,
)
from specdemo.runtime.linear import MOST_BY_TRITON
from specdemo.runtime.weights import weights_address

MOST_OF_TREE = MOST_NODES + 1  # rows of a forward: the largest tree, and the token before it
# The classes of transformers that are built like this: RMS norms, rotary positions, a gated MLP, and causal
# attention; and which of their layers have a sliding window. A class that is not here is run by
# transformers' own forward.
FAMILY = {
    "Gemma2ForCausalLM": "by layer_types",
    "Gemma3ForCausalLM": "by layer_types",
    "LlamaForCausalLM": "none",
    "MistralForCausalLM": "all layers",
    "Olmo2ForCausalLM": "none",
    "Phi3ForCausalLM": "all layers",
    "Qwen2ForCausalLM": "by layer_types",
    "Qwen3ForCausalLM": "by layer_types",
    "SmolLM3ForCausalLM": "by layer_types",
}


class FusedForward:
    """Computes the logits of a model of FAMILY. It reads the model's own modules and weights, and is used
    only where it predicts what the model itself does (see CachedLM). last_position: of the model. triton:
    whether what lies between the products, and products with int8 weights, are computed by kernels written in
    Triton."""

    def __init__(self, model: PreTrainedModel, last_position: float, triton: bool = False):
        self.model = model
        self.last_position = last_position
        self.triton = triton
        self._address: tuple | None = None  # of the weights
        self._tables: dict[str | None, Tensor] = {}  # the rotations at all positions of the cache
        self._tables_for = 0  # the cache's capacity
        self.begin_run()

    def begin_run(self) -> None:
        """Finds the weights again, which may have moved since the last run. What a norm derives from its own
        is derived again."""
        address = weights_address(self.model)
        self.has_moved = address != self._address
        if self.has_moved:
            kernels = triton_kernels() if self.triton else None
            self.decoder, self._tables_for = decoder_of_family(self.model, self.last_position, kernels), 0
            self._deriving = [norm for norm in self.decoder.norms if norm.around_one]
        else:
            for norm in self._deriving:
                norm.begin_run()
        self._address = address  # last: after an error all is found again

    def __call__(
        self, lm: CachedByPosition, ids: Tensor, rows: Tensor, branches: Branches | None = None
    ) -> Tensor:
        """ids [N] at consecutive positions `rows` [N] of the LM's cache -> logits [N, V]. Rows that only fill
        a captured step may lie beyond the model's last position. branches: see LM.forward."""
        decoder, keep = self.decoder, None if lm.features is None else lm.features.keep
        x = decoder.embed(ids)  # [N, H]
        tables = self._rotation_tables(lm.all_positions, x.dtype)
        if self.triton and len(ids) <= (MOST_BY_TRITON if branches is None else MOST_OF_TREE):
            attention: Attention = KernelAttention(lm.cache, rows, tables, branches)
        else:
            positions = rows if branches is None else branches.positions(rows)
            turned = {name: turns_at(table, positions) for name, table in tables.items()}
            seen = rows, lm.key_positions, decoder.layers, x.dtype, branches
            attention = TorchAttention.over(lm.cache, turned, *seen)
        for index, layer in enumerate(decoder.layers):
            if keep is not None:
                keep(index, x, rows)
            x = layer(x, attention)
        if keep is not None:
            keep(len(decoder.layers), x, rows)
        logits, cap = decoder.head(decoder.norm(x)), decoder.softcap  # [N, V]
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _rotation_tables(self, positions: Tensor, dtype: torch.dtype) -> dict[str | None, Tensor]:
        """Those at all positions of the cache. They are made when the cache has grown, which no captured step
        outlives."""
        if self._tables_for != len(positions):
            by_name = self.decoder.rotations_at(positions, dtype)
            self._tables = {name: torch.cat(both, 1) for name, both in by_name.items()}
            self._tables_for = len(positions)
        return self._tables


def is_of_family(model: Module) -> bool:
    kind = type(model)
    return kind.__module__.startswith("transformers.models.") and kind.__name__ in FAMILY


def decoder_of_family(
    model: PreTrainedModel, last_position: float, kernels: ModuleType | None = None
) -> Decoder:
    """A model of the family as a Decoder, with its modules as they are now. kernels: see Layer."""
    config, parts = model.config, model.model.layers
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    # Gemma 3 has several rotary embeddings, which a layer chooses among by its type.
    several = type(model).__name__ == "Gemma3ForCausalLM"
    names = config.layer_types[: len(parts)] if several else [None] * len(parts)
    return Decoder(
        model.dtype,
        model.model.embed_tokens,
        [
            Layer(part, _heads(part.self_attn, window, name), activation, kernels)
            for part, window, name in zip(parts, _windows(model), names, strict=True)
        ],
        Norm(model.model.norm, kernels),
        model.lm_head,
        partial(_rotations, model, dict.fromkeys(names), last_position),
        embedding_scale=embedding_scale(model.model.embed_tokens),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def _heads(attention: Module, window: int | None, rotation: str | None) -> Heads:
    config = attention.config
    return Heads(
        attention.layer_idx,
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        attention.scaling,
        RowMask(window),
        getattr(attention, "attn_logit_softcapping", None),
        rotation,
        bool(getattr(attention, "use_rope", True)),
    )


def _windows(model: PreTrainedModel) -> list[int | None]:
    """The width of each layer's sliding window, as the model's own forward decides it."""
    count = len(model.model.layers)
    match FAMILY[type(model).__name__]:
        case "none":
            return [None] * count
        case "all layers":
            return [model.config.sliding_window] * count
    window, types = model.config.sliding_window, model.config.layer_types[:count]
    return [window if kind == "sliding_attention" else None for kind in types]


def _rotations(
    model: PreTrainedModel,
    names: Iterable[str | None],
    last_position: float,
    positions: Tensor,
    dtype: torch.dtype,
) -> dict[str | None, Rotation]:
    """Rotary position embeddings (Su et al. 2021) at all positions of a cache, [C, 1, r]. They hold for texts
    of any length, since a text ends where they would depend on it (see `context_of`). Rows that only fill a
    captured step may lie beyond the model's last position."""
    by_name, positions = {}, positions.clamp(max=last_position)
    x = torch.zeros(1, dtype=dtype, device=positions.device)
    for name in names:
        named = () if name is None else (name,)
        # A short forward brings "dynamic" frequencies back that a longer text of the model's owner has left.
        model.model.rotary_emb(x, positions[None, :1], *named)
        cos, sin = model.model.rotary_emb(x, positions[None], *named)  # [1, C, r]
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        by_name[name] = cos[0, :, None], sin[0, :, None]
    return by_name


def turns_at(table: Tensor, positions: Tensor) -> Rotation:
    """The rotation at positions [N], of a table of those at all positions, [C, 2, r]: cos, then sin."""
    cos, sin = table.index_select(0, positions).split(1, 1)
    return cos, sin


def triton_kernels() -> ModuleType:
    from specdemo.runtime import triton_kernels  # imports Triton

    return triton_kernels


def as_rows(q: Tensor, groups: int) -> Tensor:
    """q [N, heads, d] -> [1, groups, R, d]: the heads that share a key are more rows of one head, so that the
    cache is read once and never copied. R = heads / groups * N."""
    _, heads, d = q.shape
    return q.unflatten(1, (groups, heads // groups)).permute(1, 2, 0, 3).reshape(1, groups, -1, d)


def as_heads(rows: Tensor, heads: int) -> Tensor:
    """Turns what `as_rows` makes back: [1, groups, R, d] -> [N, heads * d]."""
    _, groups, _, d = rows.shape
    return rows.reshape(groups, heads // groups, -1, d).permute(2, 0, 1, 3).reshape(-1, heads * d)


@dataclass(frozen=True)
class TorchAttention:
    """Attention by torch's operations, over the cache's first keys, to which those of the forward's tokens
    are written."""

    cache: Cache
    rotations: dict[str | None, Rotation]
    masks: dict[RowMask, Tensor]  # by layers' masks: those of the rows that attention makes of the queries

    @staticmethod
    def over(
        cache: Cache,
        rotations: dict[str | None, Rotation],
        rows: Tensor,
        keys: Tensor,
        layers: list[Layer],
        dtype: torch.dtype,
        branches: Branches | None = None,
    ) -> "TorchAttention":
        """The attention of a forward at consecutive positions `rows` [N] over keys [L] = 0, 1, ..."""
        shared = layers[0].attends.heads // layers[0].attends.groups

        def hidden(mask: RowMask) -> Tensor:  # [N, L]
            if branches is None:
                return mask.hidden(rows, keys)
            places, elsewhere = branches.seen(rows, keys)
            return mask.hidden(branches.positions(rows), places) | elsewhere

        masks = {
            mask: additive(hidden(mask).repeat(shared, 1), dtype)  # [1, 1, R, L]
            for mask in dict.fromkeys(layer.attends.mask for layer in layers)
        }
        return TorchAttention(cache, rotations, masks)

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        attends = layer.attends
        q, k, v = layer.by_head(qkv, self.rotations.get(attends.rotation))
        keys, values = self.cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], attends.index)
        output = self._attended(layer, as_rows(q, attends.groups), keys, values)  # [1, groups, R, d]
        return as_heads(output, attends.heads)

    def _attended(self, layer: Layer, rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attends, mask = layer.attends, self.masks[layer.attends.mask]  # [1, 1, R, L]
        if attends.softcap is None:
            return masked_attention(rows, keys, values, mask, attends.scaling)
        scores = rows @ keys.transpose(2, 3) * attends.scaling  # [1, groups, R, L]
        scores = torch.tanh(scores / attends.softcap) * attends.softcap + mask
        return scores.softmax(-1, dtype=torch.float32).to(rows.dtype) @ values


@dataclass(frozen=True)
class KernelAttention:
    """Attention by triton_kernels.py, over what the text has so far, wherever the cache ends."""

    cache: Cache
    rows: Tensor  # [N]: where the cache is written
    rotation_tables: dict[str | None, Tensor]  # see turns_at
    branches: Branches | None = None

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        attends = layer.attends
        heads, groups, d = attends.heads, attends.groups, attends.head_dim
        q, k, v = qkv.split([heads * d, groups * d, groups * d], -1)
        cached = self.cache.layers[attends.index]
        if not cached.is_initialized:
            cached.lazy_initialization(*(x.view(1, -1, groups, d).transpose(1, 2) for x in (k, v)))
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            if layer.norms_each_head and layer.q_norm.eps == layer.k_norm.eps:
                norms = layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.eps
            else:
                q, k = layer.q_norm(q), layer.k_norm(k)
        table = self._table_of(attends) if attends.rotates else None
        there = self.rows, cached.keys, cached.values
        return layer.kernels.few_rows_attention(attends, q, k, v, norms, table, *there, self.branches)

    def _table_of(self, attends: Heads) -> Tensor:
        """The table of a layer, which the kernels read as wide as a head."""
        table = self.rotation_tables[attends.rotation]
        if table.shape[-1] != attends.head_dim:
            raise ValueError("only a part of each head is rotated")
        return table

    def keep(self, layer: Layer, context: Tensor) -> None:
        """Writes the keys and values that the layer makes of another model's hidden states [N, H]."""
        assert layer.kv is not None
        norm, cached = layer.k_norm, self.cache.layers[layer.attends.index]
        of_norm, table = None if norm is None else (norm.weight, norm.eps), self._table_of(layer.attends)
        layer.kernels.keep_rows(layer.kv(context), of_norm, table, self.rows, cached.keys, cached.values)
