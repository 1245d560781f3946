"""The static forward of a model of the Llama family in fewer and larger operations.

A forward of few tokens costs what its operations cost to launch, not what they compute: transformers runs a
Llama layer in some 43 of them, this module in 15 or 16. It reads the same modules and weights, and is used
only where it predicts what the model itself does (see CachedLM)."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from specdemo.runtime.attention import additive, masked_attention
from specdemo.runtime.linear import MOST_BY_TRITON, Product

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

# The activations of MLPs that triton_between.py knows: whether it is GELU's tanh form (not: SiLU).
GELU_GATES = {"silu": False, "gelu_pytorch_tanh": True, "gelu_new": True}


class Norm:
    """An RMS norm in one operation (Zhang and Sennrich 2019). kernels: see Layer."""

    def __init__(self, module: Module, kernels: ModuleType | None = None):
        self.module = module
        self.kernels = kernels
        self.eps: float = getattr(module, "variance_epsilon", None) or module.eps
        self.around_one = type(module).__name__.startswith("Gemma")
        self.derived: dict[str, Tensor] = {}  # the weight that the module computes from its own
        self.begin_run()

    # What a caller's inference mode has made could not be written to after it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def begin_run(self) -> None:
        if not self.around_one:
            return
        weight = 1.0 + self.module.weight.float()  # Gemma's weights are differences from 1
        if self.derived and self.derived["weight"].device == weight.device:
            self.derived["weight"].copy_(weight)  # a CUDA graph reads it where it is
        else:
            self.derived["weight"] = weight

    @property
    def weight(self) -> Tensor:
        return self.derived["weight"] if self.around_one else self.module.weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernels is not None:
            return self.kernels.normed(x, self.weight, self.eps)
        if self.around_one:  # in float32
            return rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)
        return rms_norm(x, self.weight.shape, self.weight, self.eps)

    def plus(self, x: Tensor, stream: Tensor) -> Tensor:
        """The norm of x, added to `stream`, whose memory is reused."""
        if self.kernels is not None:
            return self.kernels.add_normed(stream, x, self.weight, self.eps)
        return stream.add_(self(x))


class FusedForward:
    """Computes a model's logits over a positional cache. triton: what lies between the products, and products
    with int8 weights, are computed by kernels written in Triton."""

    def __init__(self, model: PreTrainedModel, triton: bool = False):
        self.model = model
        self.triton = triton
        base = model.model
        config = model.config
        kernels = triton_kernels() if triton else None
        self.layers = [
            Layer(layer, window, layer_type, kernels)
            for layer, window, layer_type in zip(
                base.layers, _windows(model), _layer_types(model), strict=True
            )
        ]
        self.norm = Norm(base.norm, kernels)
        self._tables: dict[str | None, Tensor] = {}  # see _rotation_tables
        self._tables_for = 0  # the cache's capacity
        self.shared_heads = config.num_attention_heads // config.num_key_value_heads
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)

    @staticmethod
    def of(model: PreTrainedModel, triton: bool = False) -> "FusedForward | None":
        """None where the model's class is not in FAMILY."""
        return FusedForward(model, triton) if FusedForward.knows(model) else None

    @staticmethod
    def knows(model: PreTrainedModel) -> bool:
        own = type(model).__module__.startswith("transformers.models.")
        return own and type(model).__name__ in FAMILY

    def begin_run(self) -> None:
        """Finds the weights again, which may have moved since the last run."""
        self.norm.begin_run()
        for layer in self.layers:
            layer.begin_run()

    def __call__(
        self,
        ids: Tensor,
        rows: Tensor,
        keys: Tensor,
        cache: Cache,
        last_position: float,
        keep: Callable[[int, Tensor, Tensor], None] | None,
    ) -> Tensor:
        """ids [N] at consecutive positions `rows` [N], over the cache's first keys [L] = 0, 1, ... -> logits
        [N, V]. Rows that only fill a captured step may lie beyond the model's last position. keep: takes each
        layer's index, its input and the rows, and last the output."""
        base = self.model.model
        x = base.embed_tokens(ids)  # [N, H]
        if self.triton and len(ids) <= MOST_BY_TRITON:
            tables = self._rotation_tables(x, len(keys), last_position)
            attention: Attention = KernelAttention(cache, rows, tables)
        else:
            turned = rotations(base, x, rows.clamp(max=last_position), self.layers)
            attention = TorchAttention(cache, turned, self._masks(rows, keys, x))
        for index, layer in enumerate(self.layers):
            if keep is not None:
                keep(index, x, rows)
            x = layer(x, attention)
        if keep is not None:
            keep(len(self.layers), x, rows)
        logits = self.model.lm_head(self.norm(x))  # [N, V]
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def _rotation_tables(self, x: Tensor, capacity: int, last_position: float) -> dict[str | None, Tensor]:
        """The rotations at all positions of the cache, [C, 2, d] as attention's kernel reads them. They are
        made when the cache has grown, which no captured step outlives."""
        if self._tables_for != capacity:
            found = rotations_up_to(capacity, last_position, self.model.model, x, self.layers)
            self._tables = {kind: torch.cat(both, 1) for kind, both in found.items()}
            self._tables_for = capacity
        return self._tables

    def _masks(self, rows: Tensor, keys: Tensor, x: Tensor) -> dict[int | None, Tensor]:
        """For each width of a sliding window (None: without one) the mask of the rows that attention makes of
        the queries."""
        rows = rows.repeat(self.shared_heads)[:, None]  # [R, 1]
        masks: dict[int | None, Tensor] = {}
        for window in {layer.window for layer in self.layers}:
            hidden = keys > rows  # [R, L]
            if window is not None:
                hidden = hidden | (keys <= rows - window)
            masks[window] = additive(hidden, x.dtype)
        return masks


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


def _layer_types(model: PreTrainedModel) -> list[str | None]:
    """The argument by which a model with several rotary embeddings chooses among them."""
    count, several = len(model.model.layers), type(model).__name__ == "Gemma3ForCausalLM"
    return model.config.layer_types[:count] if several else [None] * count


Rotation = tuple[Tensor, Tensor]  # cos and sin, each [N, 1, d]; the first half of sin is negative


def rotations(
    base: Module, x: Tensor, positions: Tensor, layers: "list[Layer]"
) -> dict[str | None, Rotation]:
    """Rotary position embeddings (Su et al. 2021) of the tokens of a forward."""
    found = {}
    for layer_type in dict.fromkeys(layer.layer_type for layer in layers):
        named = () if layer_type is None else (layer_type,)
        cos, sin = base.rotary_emb(x, positions[None], *named)  # [1, N, d]
        if cos.shape[-1] != layers[0].head_dim:
            raise ValueError("only a part of each head is rotated")
        half = layers[0].head_dim // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        found[layer_type] = cos[0, :, None], sin[0, :, None]
    return found


def rotations_up_to(
    capacity: int, last_position: float, base: Module, x: Tensor, layers: "list[Layer]"
) -> dict[str | None, Rotation]:
    """Those at all positions of a cache, [C, 1, d]. They hold for texts of any length, since a text ends
    where they would depend on it (see `context_of`)."""
    positions = torch.arange(capacity, device=x.device).clamp(max=last_position)
    # A short forward brings "dynamic" frequencies back that a longer text of the model's owner has left.
    rotations(base, x, positions[:1], layers)
    return rotations(base, x, positions, layers)


def as_rows(q: Tensor, heads: int, groups: int, d: int) -> Tensor:
    """q [N, heads, d] -> [1, groups, R, d]: the heads that share a key are more rows of one head, so that the
    cache is read once and never copied. R = heads / groups * N."""
    return q.view(-1, groups, heads // groups, d).permute(1, 2, 0, 3).reshape(1, groups, -1, d)


def as_heads(rows: Tensor, heads: int, groups: int, d: int) -> Tensor:
    """The way back: [1, groups, R, d] -> [N, heads * d]."""
    return rows.reshape(groups, heads // groups, -1, d).permute(2, 0, 1, 3).reshape(-1, heads * d)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, half: int) -> Tensor:
    """x [N, heads, d = 2 half], rotated by its position (see Rotation). half: d / 2."""
    return torch.addcmul(x * cos, x.roll(half, -1), sin).to(x.dtype)  # Olmo 2's cos and sin are float32


def gated(gate_up: Tensor, width: int, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """gate_up [N, 2 width] -> [N, width]"""
    gate, up = gate_up.split(width, -1)
    return activation(gate) * up


def triton_kernels() -> ModuleType:
    from specdemo.runtime import triton_between  # imports Triton

    return triton_between


class Layer:
    """One decoder layer: attention, then the MLP, each added to the stream x. kernels: triton_between.py, or
    None for torch's operations."""

    def __init__(
        self, layer: Module, window: int | None, layer_type: str | None, kernels: ModuleType | None = None
    ):
        self.window = window
        self.layer_type = layer_type
        self.kernels = kernels
        triton = kernels is not None
        attention, mlp = layer.self_attn, layer.mlp
        self.index = attention.layer_idx
        self.head_dim = attention.head_dim
        self.scaling = attention.scaling
        self.softcap: float | None = getattr(attention, "attn_logit_softcapping", None)
        self.rotates: bool = bool(getattr(attention, "use_rope", True))
        config = attention.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        if hasattr(attention, "qkv_proj"):
            qkv, gate_up = [attention.qkv_proj], [mlp.gate_up_proj]
            self.activation = mlp.activation_fn
        else:
            qkv, gate_up = (
                [attention.q_proj, attention.k_proj, attention.v_proj],
                [mlp.gate_proj, mlp.up_proj],
            )
            self.activation = mlp.act_fn
        self.qkv, self.gate_up = Product(*qkv, triton=triton), Product(*gate_up, triton=triton)
        self.out, self.down = (Product(each, triton=triton) for each in (attention.o_proj, mlp.down_proj))
        name = getattr(config, "hidden_activation", None) or config.hidden_act
        self.gelu: bool | None = GELU_GATES.get(name)
        self.mlp_width = mlp.down_proj.in_features

        # Where a layer has norms: before attention and MLP, after them, or both.
        def norm(name: str, owner: Module = layer) -> Norm | None:
            return Norm(getattr(owner, name), kernels) if hasattr(owner, name) else None

        self.before_attention, self.after_attention = norm("input_layernorm"), None
        self.before_mlp, self.after_mlp = norm("post_attention_layernorm"), norm("post_feedforward_layernorm")
        if self.after_mlp is not None:
            self.after_attention, self.before_mlp = self.before_mlp, norm("pre_feedforward_layernorm")
        self.q_norm, self.k_norm = norm("q_norm", attention), norm("k_norm", attention)
        # or all heads as one
        self.norms_each_head = self.q_norm is not None and len(self.q_norm.module.weight) == self.head_dim

    @property
    def norms(self) -> list[Norm]:
        before_and_after = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return [norm for norm in (*before_and_after, self.q_norm, self.k_norm) if norm is not None]

    def begin_run(self) -> None:
        for part in (self.qkv, self.out, self.gate_up, self.down, *self.norms):
            part.begin_run()

    def __call__(self, x: Tensor, attention: "Attention") -> Tensor:
        """x [N, H] -> [N, H], in the same memory."""
        attended = attention(self, self.qkv(_normed(self.before_attention, x)))  # [N, heads * d]
        x = self._add(x, self.out, attended, self.after_attention)
        hidden = self._gated(self.gate_up(_normed(self.before_mlp, x)))  # [N, I]
        return self._add(x, self.down, hidden, self.after_mlp)

    @staticmethod
    def _add(x: Tensor, product: Product, hidden: Tensor, norm: Norm | None) -> Tensor:
        return product.plus(hidden, x) if norm is None else norm.plus(product(hidden), x)

    def _gated(self, gate_up: Tensor) -> Tensor:  # [N, 2 I] -> [N, I]
        if self.kernels is not None and self.gelu is not None:
            return self.kernels.gate(gate_up, self.gelu)
        return gated(gate_up, self.mlp_width, self.activation)


def _normed(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Attention(Protocol):
    """How the layers of one forward attend."""

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        """The layer's queries, keys and values [N, (heads + 2 groups) * d] of the forward's tokens, not yet
        normed or rotated -> [N, heads * d]. Writes the keys and values to the cache."""


@dataclass(frozen=True)
class TorchAttention:
    """By torch's operations, over the cache's first keys."""

    cache: Cache
    rotations: dict[str | None, Rotation]
    masks: dict[int | None, Tensor]  # see FusedForward._masks

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        rows, keys, values = self._placed(layer, qkv)
        output = self._attended(layer, rows, keys, values)  # [1, groups, R, d]
        return as_heads(output, layer.heads, layer.groups, layer.head_dim)

    def _placed(self, layer: Layer, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries as rows (see as_rows), and the cache's keys and values [1, groups, L, d] with those of
        these tokens."""
        heads, groups, d = layer.heads, layer.groups, layer.head_dim
        qk, v = qkv.split([(heads + groups) * d, groups * d], -1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([heads * d, groups * d], -1)
            if layer.norms_each_head:
                q, k = q.view(-1, heads, d), k.view(-1, groups, d)
            qk = torch.cat([layer.q_norm(q), layer.k_norm(k)], 1)
        qk = qk.view(-1, heads + groups, d)
        if layer.rotates:
            qk = rotated(qk, *self.rotations[layer.layer_type], d // 2)
        q, k = qk.split([heads, groups], 1)  # [N, heads, d], [N, groups, d]
        v = v.view(-1, groups, d)
        keys, values = self.cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], layer.index)
        return as_rows(q, heads, groups, d), keys, values

    def _attended(self, layer: Layer, rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        mask = self.masks[layer.window]  # [1, 1, R, L]
        if layer.softcap is None:
            return masked_attention(rows, keys, values, mask, layer.scaling)
        scores = rows @ keys.transpose(2, 3) * layer.scaling  # [1, groups, R, L]
        scores = torch.tanh(scores / layer.softcap) * layer.softcap + mask
        return scores.softmax(-1, dtype=torch.float32).to(rows.dtype) @ values


@dataclass(frozen=True)
class KernelAttention:
    """By triton_attention.py, over what the text has so far, wherever the cache ends."""

    cache: Cache
    rows: Tensor  # [N]: where the cache is written
    rotation_tables: dict[str | None, Tensor]  # see FusedForward._rotation_tables

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        heads, groups, d = layer.heads, layer.groups, layer.head_dim
        q, k, v = qkv.split([heads * d, groups * d, groups * d], -1)
        cached = self.cache.layers[layer.index]
        if not cached.is_initialized:
            cached.lazy_initialization(*(x.view(1, -1, groups, d).transpose(1, 2) for x in (k, v)))
        q_norm = k_norm = None
        eps = 0.0
        if layer.q_norm is not None and layer.k_norm is not None:
            if layer.norms_each_head and layer.q_norm.eps == layer.k_norm.eps:
                q_norm, k_norm, eps = layer.q_norm.weight, layer.k_norm.weight, layer.q_norm.eps
            else:
                q, k = layer.q_norm(q), layer.k_norm(k)
        table = self.rotation_tables[layer.layer_type] if layer.rotates else None
        of_layer = (layer.scaling, layer.softcap or 0.0, layer.window or 0)
        norms = (q_norm, k_norm, eps)
        return layer.kernels.few_rows_attention(
            q, k, v, *norms, table, self.rows, cached.keys, cached.values, *of_layer
        )
