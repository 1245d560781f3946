"""An EAGLE-3 head: one decoder layer or more that drafts for a target from the target's own hidden states (Li
et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test").

Its modules are named as the tensors of the speculators format. Where its keys and values lie, and what a
token attends to, is given from outside (`Attend`): so the same forward serves drafting by position, which can
be captured (`CachedEagle3`), and training over several steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleDict, ModuleList, RMSNorm
from torch.nn.functional import embedding
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN

from specdemo.drafters.heads import HEAD_PREFILL_CHUNK, CachedHead, DraftHead, Rotate, gated_mlp
from specdemo.runtime.attention import additive, masked_attention
from specdemo.runtime.device import to_device
from specdemo.runtime.fused import as_heads, as_rows, gated
from specdemo.runtime.linear import Product


@dataclass(frozen=True)
class Eagle3Config:
    """What a head is built like. The number and the sizes of its layers, V, their windows and the rotary
    positions are in `layer`."""

    layer: LlamaConfig | Qwen3Config  # of each layer; Qwen3 has a norm for each head of q and k
    draft_vocab_size: int  # Vd: the tokens that it can draft
    layer_ids: tuple[int, ...] | None = None  # whose inputs it reads; None: see `layer_ids_for`
    features: int = 3  # A: how many these are
    target_hidden_size: int | None = None  # None: that of `layer`
    norm_before_residual: bool = False  # the residual stream begins with the normed features
    norm_before_fc: bool = False  # one norm over all features
    fc_norm: bool = False  # one norm for each of them
    norm_output: bool = False  # the next step takes the normed output
    own_embeddings: bool = True  # False: it uses the target's

    def get_text_config(self) -> LlamaConfig | Qwen3Config:
        """As of a transformers config, for `context_of`."""
        return self.layer

    @property
    def hidden_size(self) -> int:
        """H"""
        return self.layer.hidden_size

    @property
    def windows(self) -> list[int | None]:
        """How many tokens each layer's attention sees, its own among them; None is all."""
        kinds = getattr(self.layer, "layer_types", None) or ["full_attention"] * self.layer.num_hidden_layers
        window = getattr(self.layer, "sliding_window", None)
        return [window if kind == "sliding_attention" else None for kind in kinds]

    @property
    def feature_size(self) -> int:
        """The target's hidden size."""
        return self.target_hidden_size or self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The target's layers whose inputs are the features; `depth` itself stands for the last layer's
        output, before the last norm."""
        return self.layer_ids or (2, depth // 2, depth - 3)


class Attend(Protocol):
    """Attention of one of the head's layers."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of the forward's own tokens: q [..., N, heads, d], k and v [..., N, groups, d], rotated. Returns
        [..., N, heads, d]."""


class Eagle3Head(DraftHead):
    """See `DraftHead`."""

    config: Eagle3Config

    def __init__(self, config: Eagle3Config, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        layer, size, features = config.layer, config.hidden_size, config.features
        norm = {"eps": layer.rms_norm_eps, "dtype": dtype}
        self.embed_tokens = Embedding(layer.vocab_size, size, dtype=dtype) if config.own_embeddings else None
        self.input_norm = RMSNorm(features * config.feature_size, **norm) if config.norm_before_fc else None
        each = [RMSNorm(config.feature_size, **norm) for _ in range(features)] if config.fc_norm else None
        self.fc_norm = None if each is None else ModuleList(each)
        self.fc = Linear(features * config.feature_size, size, bias=False, dtype=dtype)
        self.layers = ModuleList([DraftLayer(config, dtype, i == 0) for i in range(layer.num_hidden_layers)])
        self.norm = RMSNorm(size, **norm)
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False, dtype=dtype)

    @property
    def kind(self) -> str:
        return "eagle3"

    @property
    def uses_target_s_embeddings(self) -> bool:
        return self.embed_tokens is None

    def get_output_embeddings(self) -> Linear:
        return self.lm_head

    def cached(self, target: PreTrainedModel) -> "CachedEagle3":
        return CachedEagle3(self, target)

    def features(self, hidden: Tensor) -> Tensor:
        """The target's hidden states [..., A * T], those of `layer_ids` side by side -> g [..., H]."""
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.split(self.config.feature_size, -1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(hidden)

    def forward(self, tokens: Tensor, g: Tensor, positions: Tensor, attention: Sequence[Attend]) -> Tensor:
        """tokens [..., N] with what came before each: g [..., N, H], the feature of the token before it, or
        the head's own output for that. positions [N] or [..., N]. attention: of each layer. Returns
        y [..., N, H]; see `predict`."""
        e = embedding(tokens, self._embedding()).to(g.dtype)  # [..., N, H]
        rotate, x = self.rotate_at(positions, g.dtype), g
        for layer, attend in zip(self.layers, attention, strict=True):
            x = layer(e, x, rotate, attend)
        return x

    def _embedding(self) -> Tensor:
        """[V, H]"""
        return self.targets_embedding() if self.embed_tokens is None else self.embed_tokens.weight

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [..., N, H] -> what the next step takes as g [..., N, H], and the logits [..., N, Vd] of the
        token after each."""
        normed = self.norm(y)
        return normed if self.config.norm_output else y, self.lm_head(normed)


class DraftLayer(Module):
    """A decoder layer. The attention of the first one reads the token's embedding and the feature side by
    side; that of a later one reads what the layer before it gives, as in any decoder."""

    def __init__(self, config: Eagle3Config, dtype: torch.dtype, is_first: bool):
        super().__init__()
        layer, size = config.layer, config.hidden_size
        self.norm_before_residual = config.norm_before_residual
        norm = {"eps": layer.rms_norm_eps, "dtype": dtype}
        self.input_layernorm = RMSNorm(size, **norm)
        self.hidden_norm = RMSNorm(size, **norm) if is_first else None
        self.post_attention_layernorm = RMSNorm(size, **norm)
        self.self_attn = projections(layer, 2 * size if is_first else size, dtype)
        self.mlp = gated_mlp(layer, dtype)
        self.heads, self.groups = layer.num_attention_heads, layer.num_key_value_heads
        self.head_dim, self.mlp_width = layer.head_dim, layer.intermediate_size
        self.activation = ACT2FN[layer.hidden_act]
        attention, mlp = self.self_attn, self.mlp
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate_up = Product(mlp.gate_proj, mlp.up_proj)

    def begin_run(self) -> None:
        self.qkv.begin_run()
        self.gate_up.begin_run()

    def forward(self, e: Tensor, x: Tensor, rotate: Rotate, attend: Attend) -> Tensor:
        """e: the embeddings [..., N, H], read by the first layer only. x [..., N, H] -> the same."""
        heads, groups, d = self.heads, self.groups, self.head_dim
        residual = x
        if self.hidden_norm is None:
            read = self.input_layernorm(x)
        else:
            h = self.hidden_norm(x)
            residual = h if self.norm_before_residual else x
            read = torch.cat([self.input_layernorm(e), h], -1)
        qkv = self.qkv(read)
        q, k, v = qkv.unflatten(-1, (heads + 2 * groups, d)).split([heads, groups, groups], -2)
        if "q_norm" in self.self_attn:
            q, k = self.self_attn.q_norm(q), self.self_attn.k_norm(k)
        attended = attend(rotate(q), rotate(k), v)
        x = residual + self.self_attn.o_proj(attended.flatten(-2))
        hidden = gated(self.gate_up(self.post_attention_layernorm(x)), self.mlp_width, self.activation)
        return x + self.mlp.down_proj(hidden)


def projections(layer: LlamaConfig | Qwen3Config, read: int, dtype: torch.dtype) -> ModuleDict:
    """The weights of attention over inputs of width `read`, by the format's names."""
    size, d = layer.hidden_size, layer.head_dim
    queries, keys = layer.num_attention_heads * d, layer.num_key_value_heads * d
    shapes = {"q_proj": (read, queries), "k_proj": (read, keys), "v_proj": (read, keys)}
    shapes["o_proj"] = (queries, size)
    options = {"bias": layer.attention_bias, "dtype": dtype}
    parts: dict[str, Module] = {name: Linear(*shape, **options) for name, shape in shapes.items()}
    if isinstance(layer, Qwen3Config):
        parts |= {name: RMSNorm(d, layer.rms_norm_eps, dtype=dtype) for name in ("q_norm", "k_norm")}
    return ModuleDict(parts)


class PositionalAttention:
    """An `Attend` over keys and values that lie by position, [1, groups, L, d]: the forward's own are first
    written to `rows` [N]. A query sees the positions up to its own, or the last `window` of them; what lies
    after it is masked, and may be left over. keys [L]: 0, 1, ..."""

    def __init__(
        self, cached_keys: Tensor, cached_values: Tensor, rows: Tensor, keys: Tensor, window: int | None
    ):
        self.keys, self.values, self.rows, self.visible = cached_keys, cached_values, rows, keys
        self.window = window

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, heads, d], k and v [N, groups, d] -> [N, heads, d]"""
        self.keys.index_copy_(2, self.rows, k.transpose(0, 1)[None])
        self.values.index_copy_(2, self.rows, v.transpose(0, 1)[None])
        _, heads, d = q.shape
        groups, length = k.shape[1], self.visible.shape[0]
        own = self.rows.repeat(heads // groups)[:, None]  # [R, 1]
        hidden = self.visible > own
        if self.window is not None:
            hidden |= self.visible <= own - self.window
        mask = additive(hidden, q.dtype)
        rows = as_rows(q, heads, groups, d)
        keys, values = self.keys[:, :, :length], self.values[:, :, :length]
        output = masked_attention(rows, keys, values, mask)
        return as_heads(output, heads, groups, d).view(-1, heads, d)


class CachedEagle3(CachedHead):
    """See `CachedHead`. Row t is that of the pair of the token at position t + 1 and the target's feature at
    position t."""

    model: Eagle3Head

    def __init__(self, head: Eagle3Head, target: PreTrainedModel):
        super().__init__(head, target, layers=head.config.layer.num_hidden_layers)

    def forward(self, tokens: Tensor, g: Tensor, start: Tensor) -> Tensor:
        """tokens [N] and what came before each, g [N, H], in the rows start [], start + 1, ... -> y [N, H],
        see Eagle3Head."""
        rows = start + torch.arange(len(tokens), device=self.device)
        attention = [
            PositionalAttention(self.keys[i], self.values[i], rows, self.kv_ruler, window)
            for i, window in enumerate(self.model.config.windows)
        ]
        return self.model(tokens, g, rows + 1, attention)

    def forward_true(self, tokens: Tensor, start: Tensor) -> Tensor:
        """The same with the target's true features."""
        rows = start + torch.arange(len(tokens), device=self.device)
        return self.forward(tokens, self.model.features(self.true_features(rows)), start)

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [N, H] -> what the next forward takes as g [N, H], and the logits [N, V] of the token after
        each."""
        g, logits = self.model.predict(y)
        return g, self.model.for_target(logits)

    def prefill(self, ids: list[int], start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`. ids: the text. is_over: as of LM.prefill."""
        for first in range(start, end, HEAD_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + HEAD_PREFILL_CHUNK, end)
            tokens = to_device(ids[first + 1 : last + 1], torch.long, self.device)
            self.reserve(last)
            self.forward_true(tokens, torch.full((), first, device=self.device))
