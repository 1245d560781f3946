"""An EAGLE-3 head: one decoder layer or more that drafts for a target from the target's own hidden states (Li
et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test").

Its modules are named as the tensors of the speculators format. Where its keys and values lie, and what a
token attends to, is given from outside (`Attend`): so the same forward serves drafting by position, which can
be captured (`CachedHead`), and training over several steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleDict, ModuleList, RMSNorm
from torch.nn.functional import embedding
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN

from specdemo.runtime.device import to_device
from specdemo.runtime.fused import additive, as_heads, as_rows, gated
from specdemo.runtime.linear import Product
from specdemo.runtime.lm import MIN_CAPACITY, Cached, Features, context_of, kv_length_for, longer
from specdemo.runtime.rotary import RotaryPositions

HEAD_PREFILL_CHUNK = 256  # pairs per forward: the mask has a row for each query head of each of them
# How much of its target a head holds: all of it, so that the two can run; only the embeddings and the output
# layer, which training needs while the features come from elsewhere; or nothing.
Attachment = Literal["full", "train_only", "detached"]


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


class Eagle3Head(Module):
    """The weights, all of one dtype. `.to(device)` moves them; a dtype is chosen when the head is built."""

    target_ids: Tensor  # [Vd] int64: the target's id of each draft id
    d2t: Tensor | None  # [Vd] int64: the same as offsets, None where all tokens can be drafted
    t2d: Tensor | None  # [V] bool: whether a token can be drafted

    def __init__(self, config: Eagle3Config, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
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
        whole = config.draft_vocab_size == layer.vocab_size
        self.register_buffer("d2t", None if whole else torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", None if whole else torch.zeros(layer.vocab_size, dtype=torch.bool))
        self.rotary = RotaryPositions(layer)
        with torch.device("cpu"):  # also where the weights are on the meta device
            ids = torch.arange(config.draft_vocab_size)
        self.register_buffer("target_ids", ids, persistent=False)
        self.verifier: tuple[PreTrainedModel, ...] = ()  # a tuple, so that its weights are not the head's
        self.verifier_head: tuple[Module, ...] = ()  # the target's output layer
        self.shared_embedding: tuple[Tensor, ...] = ()  # the target's [V, H]

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def get_output_embeddings(self) -> Linear:
        return self.lm_head

    def begin_run(self) -> None:
        """Call when weights were loaded or moved, not inside a step."""
        for layer in self.layers:
            layer.begin_run()
        if self.d2t is not None:
            self.target_ids = torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

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
        cos, sin = self.rotary(positions, g.dtype)

        def rotate(x: Tensor) -> Tensor:
            return self.rotary.rotate(x, cos, sin)

        x = g
        for layer, attend in zip(self.layers, attention, strict=True):
            x = layer(e, x, rotate, attend)
        return x

    def _embedding(self) -> Tensor:
        """[V, H]"""
        if self.embed_tokens is not None:
            return self.embed_tokens.weight
        if not self.shared_embedding:
            raise ValueError("the head has no embeddings of its own: attach its target first")
        return self.shared_embedding[0]

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [..., N, H] -> what the next step takes as g [..., N, H], and the logits [..., N, Vd] of the
        token after each."""
        normed = self.norm(y)
        return normed if self.config.norm_output else y, self.lm_head(normed)

    def for_target(self, logits: Tensor) -> Tensor:
        """[N, Vd] -> [N, V]: a token that cannot be drafted gets -inf."""
        if self.d2t is None:
            return logits
        wide = logits.new_full((len(logits), self.config.layer.vocab_size), -torch.inf)
        return wide.index_copy_(1, self.target_ids, logits)

    @property
    def attachment(self) -> Attachment:
        if self.verifier:
            return "full"
        return "train_only" if self.verifier_head else "detached"

    def attach_verifier(self, target: PreTrainedModel, mode: Attachment = "full") -> None:
        """Holds as much of the target as `mode` says, in place of what it held. A head without embeddings of
        its own then uses the target's. That the two fit each other, `loading.assemble.check_fit` says.
        ValueError for another mode."""
        if mode not in get_args(Attachment):
            raise ValueError(f"mode must be full, train_only or detached, not {mode!a}")
        self.detach_verifier()
        if mode == "detached":
            return
        if self.embed_tokens is None:
            self.shared_embedding = (target.get_input_embeddings().weight.detach(),)
        self.verifier_head = (target.get_output_embeddings(),)
        if mode == "full":
            self.verifier = (target,)

    def detach_verifier(self) -> None:
        """Holds nothing of a target."""
        self.verifier, self.verifier_head, self.shared_embedding = (), (), ()

    def verifier_logits(self, last: Tensor) -> Tensor:
        """What the attached target predicts, [..., V], from its last hidden states [..., T], after its last
        norm."""
        return self.verifier_head[0](last)


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

    def forward(self, e: Tensor, x: Tensor, rotate: Callable[[Tensor], Tensor], attend: Attend) -> Tensor:
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


def gated_mlp(layer: LlamaConfig | Qwen3Config, dtype: torch.dtype) -> ModuleDict:
    """The weights of the MLP, by the format's names."""
    size, width = layer.hidden_size, layer.intermediate_size
    shapes = {"gate_proj": (size, width), "up_proj": (size, width), "down_proj": (width, size)}
    options = {"bias": getattr(layer, "mlp_bias", False), "dtype": dtype}
    return ModuleDict({name: Linear(*shape, **options) for name, shape in shapes.items()})


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
        output = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return as_heads(output, heads, groups, d).view(-1, heads, d)


DrafterModel = PreTrainedModel | Eagle3Head  # what a pair's drafter can be


class CachedHead(Cached):
    """A head with its own keys and values, and with the features of its target. Row t is that of the pair of
    the token at position t + 1 and the target's feature at position t.

    Nothing is rewound: a forward is told its first row, and what lies after its last is left over from
    rejected drafts, or empty, and masked."""

    written_for_capture = True

    def __init__(self, head: Eagle3Head, target: PreTrainedModel):
        self.model = head
        self.target = target
        self.device = head.device
        self.dtype = head.dtype
        self.context = context_of(head)
        head.attach_verifier(target)
        head.begin_run()
        depth = target.config.get_text_config().num_hidden_layers
        self.features = Features(target, head.config.layer_ids_for(depth))
        self.buffer_epoch = 0  # see LM
        layer = head.config.layer
        # Of its D layers, [D, G, C, d].
        shape = (layer.num_hidden_layers, layer.num_key_value_heads, 0, layer.head_dim)
        self.keys = self.values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.reserve(1)

    @property
    def reads(self) -> Features:
        return self.features

    def begin_run(self, static: bool) -> None:
        """Its forwards are the same in both modes."""

    @property
    def is_current(self) -> bool:
        """False when the target was moved or cast: a model in memory belongs to its owner."""
        weight = self.target.get_input_embeddings().weight
        return (weight.device, self.target.dtype) == (self.features.states.device, self.features.states.dtype)

    def free(self) -> None:
        """Gives the memory of the cache and of the features back at once."""
        self.features.states = self.features.states[:0].clone()
        self.keys = self.values = self.keys[:, :, :0].clone()

    @property
    def kv_length(self) -> int:
        return len(self.kv_ruler)

    def reserve(self, length: int) -> None:
        """Call before forwards of which none reaches row `length`."""
        kv_length = kv_length_for(length, self.device)
        capacity = self.keys.shape[2]
        if kv_length > capacity:
            capacity = max(kv_length, 2 * capacity, MIN_CAPACITY)
            self.keys, self.values = longer(self.keys, capacity), longer(self.values, capacity)
            self._ruler_buffer = torch.arange(capacity, device=self.device)
            self.buffer_epoch += 1
        self.kv_ruler = self._ruler_buffer[:kv_length]

    def forward(self, tokens: Tensor, g: Tensor, start: Tensor) -> Tensor:
        """tokens [N] and what came before each, g [N, H], in the rows start [], start + 1, ... -> y [N, H],
        see Eagle3Head."""
        rows = start + torch.arange(len(tokens), device=self.device)
        attention = [
            PositionalAttention(self.keys[i : i + 1], self.values[i : i + 1], rows, self.kv_ruler, window)
            for i, window in enumerate(self.model.config.windows)
        ]
        return self.model(tokens, g, rows + 1, attention)

    def forward_true(self, tokens: Tensor, start: Tensor) -> Tensor:
        """The same with the target's true features."""
        rows = start + torch.arange(len(tokens), device=self.device)
        states = self.features.at(rows.to(self.features.states.device))  # [N, A * T]
        return self.forward(tokens, self.model.features(states.to(self.device, self.dtype)), start)

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
