"""What a decoder of the Llama family is, as a value: its layers, what each of them reads, which rows a row of
a forward attends to, and what stands before and after the layers.

Such a value is read off transformers' models (fused.py) and off drafting heads (drafters/heads.py). Three
back-ends run it: torch's operations and kernels written in Triton (fused.py), and compiled code on a CPU
(native.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Embedding, Module
from torch.nn.functional import rms_norm
from transformers.activations import ACT2FN

from specdemo.runtime.linear import JoinedLinear

# The activations of MLPs that triton_kernels.py and kernels.py know: whether it is GELU's tanh form (not:
# SiLU).
GELU_GATES = {"silu": False, "gelu_pytorch_tanh": True, "gelu_new": True}
Rotation = tuple[Tensor, Tensor]  # cos and sin, each [..., N, 1, r]; the first half of sin is negative


@dataclass(frozen=True)
class RowMask:
    """Which rows of the cache a row of a forward attends to: all up to its own.

    window: how many of them, its own included; None: all. from_first: whether the window is of the rows
    before the forward's first one, for all of its rows. later: whether a row also attends to the forward's
    later rows."""

    window: int | None = None
    from_first: bool = False
    later: bool = False

    def hidden(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Which of the cache's keys [L] are hidden from each of the forward's rows [N], which follow each
        other: [N, L]."""
        row = rows[:, None]  # [N, 1]
        hidden = keys > (row[-1:] if self.later else row)
        if self.window is not None:
            latest = row[:1] - self.window - 1 if self.from_first else row - self.window  # that is too old
            hidden = hidden | (keys <= latest)
        return hidden.expand(len(rows), -1)


class Norm:
    """An RMS norm in one operation (Zhang and Sennrich 2019). kernels: see Layer."""

    def __init__(self, module: Module, kernels: ModuleType | None = None):
        self.module = module
        self.kernels = kernels
        self.eps = float(getattr(module, "variance_epsilon", None) or module.eps)
        self.around_one = type(module).__name__.startswith("Gemma")
        self.derived: Tensor | None = None  # the weight that the module computes from its own
        self.begin_run()

    # What was made in a caller's inference mode could not be written to after it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def begin_run(self) -> None:
        if not self.around_one:
            return
        weight = 1.0 + self.module.weight.float()  # Gemma's weights are differences from 1
        if self.derived is not None and self.derived.device == weight.device:
            self.derived.copy_(weight)  # a CUDA graph reads it where it is
        else:
            self.derived = weight

    @property
    def weight(self) -> Tensor:
        return self.derived if self.around_one else self.module.weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernels is not None:
            return self.kernels.normed(x, self.weight, self.eps)
        if self.around_one:  # in float32
            return rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)
        return rms_norm(x, self.weight.shape, self.weight, self.eps)

    def plus(self, x: Tensor, stream: Tensor) -> Tensor:
        """Adds the norm of x to `stream`, whose memory is reused."""
        if self.kernels is not None:
            return self.kernels.normed(x, self.weight, self.eps, onto=stream)
        return stream.add_(self(x))


@dataclass(frozen=True)
class Heads:
    """The attention of a layer. index: that of its layer in the cache. rotation: which of the decoder's
    rotations it uses, if there are several. scaling, softcap: those of the scores."""

    index: int
    heads: int
    groups: int  # heads of keys and values
    head_dim: int
    scaling: float
    mask: RowMask = RowMask()
    softcap: float | None = None
    rotation: str | None = None
    rotates: bool = True


class Layer:
    """One decoder layer: attention, then the MLP, each added to the stream x.

    part: the weights, in modules that are named as in transformers' Llama and its relatives. A layer with a
    `hidden_norm` reads the tokens' embeddings beside the stream, each normed on its own. reads_context:
    whether it also makes keys and values of another model's hidden states. kernels: triton_kernels.py, or
    None for torch's operations."""

    def __init__(
        self,
        part: Module,
        attends: Heads,
        activation: str,
        kernels: ModuleType | None = None,
        reads_context: bool = False,
    ):
        self.attends = attends
        self.kernels = kernels
        attention, mlp = part.self_attn, part.mlp
        if hasattr(attention, "qkv_proj"):
            qkv, gate_up = [attention.qkv_proj], [mlp.gate_up_proj]
        else:
            qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
            gate_up = [mlp.gate_proj, mlp.up_proj]
        joined = partial(JoinedLinear, kernels=kernels)
        self.qkv, self.gate_up = joined(*qkv), joined(*gate_up)
        self.out, self.down = joined(attention.o_proj), joined(mlp.down_proj)
        self.kv = joined(*qkv[1:]) if reads_context else None
        self.activation = activation
        self.gelu: bool | None = GELU_GATES.get(activation)
        self.activate: Callable[[Tensor], Tensor] = ACT2FN[activation]
        self.mlp_width = mlp.down_proj.in_features

        def norm(name: str, owner: Module = part) -> Norm | None:
            module = getattr(owner, name, None)
            return None if module is None else Norm(module, kernels)

        # Where a layer has norms: before attention and MLP, after them, or both.
        self.before_attention, self.after_attention = norm("input_layernorm"), None
        self.before_mlp, self.after_mlp = norm("post_attention_layernorm"), norm("post_feedforward_layernorm")
        if self.after_mlp is not None:
            self.after_attention, self.before_mlp = self.before_mlp, norm("pre_feedforward_layernorm")
        self.of_embedding = None  # the embeddings' norm, where they are read
        if getattr(part, "hidden_norm", None) is not None:
            self.of_embedding, self.before_attention = self.before_attention, norm("hidden_norm")
        # whether the stream goes on with what `hidden_norm` makes of it
        self.keeps_normed = self.of_embedding is not None and part.norm_before_residual
        self.q_norm, self.k_norm = norm("q_norm", attention), norm("k_norm", attention)
        # whether each head is normed by itself; if not, all heads are normed as one
        self.norms_each_head = self.q_norm is not None and len(self.q_norm.module.weight) == attends.head_dim

    @property
    def norms(self) -> list[Norm]:
        of_stream = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        every = (*of_stream, self.of_embedding, self.q_norm, self.k_norm)
        return [norm for norm in every if norm is not None]

    @property
    def products(self) -> list[JoinedLinear]:
        every = (self.qkv, self.out, self.gate_up, self.down, self.kv)
        return [product for product in every if product is not None]

    def begin_run(self) -> None:
        """Finds the weights again, which may have moved."""
        for part in (*self.products, *self.norms):
            part.begin_run()

    def __call__(self, x: Tensor, attention: "Attention", embedded: Tensor | None = None) -> Tensor:
        """x [..., N, H] -> [..., N, H], in the same memory unless gradients are recorded. embedded
        [..., N, H]: the tokens' embeddings, where the layer reads them."""
        read = _normed(self.before_attention, x)
        if self.of_embedding is not None:
            x = read if self.keeps_normed else x
            read = torch.cat([self.of_embedding(embedded), read], -1)
        attended = attention(self, self.qkv(read))  # [..., N, heads * d]
        x = self._add(x, self.out, attended, self.after_attention)
        hidden = self._gated(self.gate_up(_normed(self.before_mlp, x)))  # [..., N, I]
        return self._add(x, self.down, hidden, self.after_mlp)

    @staticmethod
    def _add(x: Tensor, product: JoinedLinear, hidden: Tensor, norm: Norm | None) -> Tensor:
        if torch.is_grad_enabled():
            return x + _normed(norm, product(hidden))
        return product.plus(hidden, x) if norm is None else norm.plus(product(hidden), x)

    def _gated(self, gate_up: Tensor) -> Tensor:  # [..., N, 2 I] -> [..., N, I]
        if self.kernels is not None and self.gelu is not None:
            return self.kernels.gate(gate_up, self.gelu)
        gate, up = gate_up.split(self.mlp_width, -1)
        return self.activate(gate) * up

    def by_head(self, qkv: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [..., N, (heads + 2 groups) * d] -> q [..., N, heads, d], k and v [..., N, groups, d], normed
        and rotated."""
        heads, groups, d = self.attends.heads, self.attends.groups, self.attends.head_dim
        qk, v = qkv.split([(heads + groups) * d, groups * d], -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split([heads * d, groups * d], -1)
            if self.norms_each_head:
                q, k = q.unflatten(-1, (heads, d)), k.unflatten(-1, (groups, d))
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], -2 if self.norms_each_head else -1)
        if not self.norms_each_head:
            qk = qk.unflatten(-1, (heads + groups, d))
        if self.attends.rotates and rotation is not None:
            qk = rotated(qk, *rotation)
        q, k = qk.split([heads, groups], -2)
        return q, k, v.unflatten(-1, (groups, d))

    def keys_and_values(self, context: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values [..., N, groups, d] of another model's hidden states [..., N, H]."""
        assert self.kv is not None
        groups, d = self.attends.groups, self.attends.head_dim
        k, v = self.kv(context).unflatten(-1, (2 * groups, d)).split([groups, groups], -2)
        return rotated(_normed(self.k_norm, k), *rotation), v


def _normed(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Attention(Protocol):
    """How the layers of one forward attend."""

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        """The layer's queries, keys and values [..., N, (heads + 2 groups) * d] of the forward's tokens, not
        yet normed or rotated -> [..., N, heads * d]."""


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., N, heads, d], of which the first r channels are rotated (see Rotation)."""
    r = cos.shape[-1]
    if r < x.shape[-1]:
        return torch.cat([rotated(x[..., :r], cos, sin), x[..., r:]], -1)
    return torch.addcmul(x * cos, x.roll(r // 2, -1), sin).to(x.dtype)  # Olmo 2's cos and sin are float32


@dataclass(frozen=True)
class TargetStates:
    """What a head reads of its target: hidden states of some layers, side by side. norms: one of all as one,
    or one of each. fc: makes one hidden state of them, which `after` norms. are_keys: whether the layers make
    keys and values of it; if not, the stream begins with it. with_embeddings: whether `fc` reads the token's
    embedding before them, and, once there are none, before what the head goes on with."""

    norms: list[Norm]
    fc: Module
    after: Norm | None
    are_keys: bool
    with_embeddings: bool = False


@dataclass(frozen=True)
class Decoder:
    """A decoder as a value. dtype: that of its cache and its features. rotations_at: gives the rotations at
    positions [C], in a dtype, by the names that `Heads.rotation` uses. norm: before the output layer, None
    where there is none. draft_ids: the token of each of the
    output layer's numbers [Vd] int64, if these are not all tokens' in their order; V: how many tokens there
    are then. norms_output: whether what a head goes on with is normed."""

    dtype: torch.dtype
    embed: Module
    layers: list[Layer]
    norm: Norm | None
    head: Module
    rotations_at: Callable[[Tensor, torch.dtype], dict[str | None, Rotation]]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    reads: TargetStates | None = None
    draft_ids: Tensor | None = None
    vocab_size: int | None = None
    norms_output: bool = False

    @property
    def size(self) -> int:
        """The hidden size H."""
        return self.embed.weight.shape[1]

    @property
    def norms(self) -> list[Norm]:
        of_layers = [norm for layer in self.layers for norm in layer.norms]
        return of_layers if self.norm is None else [*of_layers, self.norm]

    @property
    def weights(self) -> int:
        """How many numbers its products have."""
        modules = {module for layer in self.layers for product in layer.products for module in product.layers}
        modules |= {self.head, self.embed} | ({self.reads.fc} if self.reads is not None else set())
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    def check(self) -> None:
        """Raises ValueError where kernels.py cannot run the decoder."""
        if (activation := self.layers[0].activation) not in GELU_GATES:
            raise ValueError(f"its activation is {activation}")
        if not isinstance(self.embed, Embedding) or self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError("it computes in another type than float32 and bfloat16")


def embedding_scale(embed: Module) -> float:
    """What a model multiplies its embeddings by when it looks them up: Gemma by the root of their width."""
    scale = torch.as_tensor(getattr(embed, "embed_scale", 1.0), dtype=torch.float32)
    return float(scale.to(embed.weight.dtype))
