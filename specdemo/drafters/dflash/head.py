"""A DFlash head: a few decoder layers that draft a whole block in one forward (Chen et al. 2026, "DFlash:
Block Diffusion for Flash Speculative Decoding", arXiv 2602.06036), and a DSpark head, which adds to it a
Markov head and a confidence head.

The rows of a forward are the last token of the text, the anchor, and a mask token for each place after it.
They attend to each other and to the text before the anchor, of which each layer makes its keys and values
from the target's own hidden states. The modules are named as the tensors of the speculators format. Where
keys and values lie is given from outside (`AttendBlock`): so the same forward serves drafting by position,
which can be captured (`CachedDFlash`), and training on many blocks of one text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleDict, ModuleList, RMSNorm
from torch.nn.functional import embedding
from transformers import PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN

from specdemo.drafters.heads import HEAD_PREFILL_CHUNK, CachedHead, DraftHead, Rotate, gated_mlp
from specdemo.runtime.attention import additive, masked_attention
from specdemo.runtime.device import to_device
from specdemo.runtime.fused import as_heads, as_rows, gated
from specdemo.runtime.linear import Product

# How the Markov head makes a bias from the token before: from it alone, from it and the row's hidden state,
# or with a state that it carries through the block.
MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Markov:
    """What DSpark's Markov head is built like."""

    rank: int  # r
    kind: MarkovKind


@dataclass(frozen=True)
class Sight:
    """What the rows of a layer attend to: the text before the anchor, and the block's rows up to their own.
    window: only so many positions back; None: all of the text. from_anchor: counted from the anchor for all
    rows, else from each row, which is then one of them. later: the block's later rows, too."""

    window: int | None = None
    from_anchor: bool = True
    later: bool = True


@dataclass(frozen=True)
class DFlashConfig:
    """What a head is built like. The sizes of its layers, V and the rotary positions are in `layer`."""

    layer: Qwen3Config
    block_size: int  # B: rows of a forward, of which the first is the anchor
    mask_token_id: int  # whose embedding, the target's, the other rows begin with
    layer_ids: tuple[int, ...]  # of the target's layers, whose inputs it reads; see `Features`
    draft_vocab_size: int  # Vd: the tokens that it can draft
    sights: tuple[Sight, ...]  # of each layer
    samples_from_anchor: bool = False  # the anchor's row, too, drafts a token: row i the one after its place
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None  # c: logits x become c * tanh(x / c)
    markov: Markov | None = None
    has_confidence: bool = False
    confidence_sees_token: bool = True  # the confidence head reads the token before a place, too

    def get_text_config(self) -> Qwen3Config:
        """As of a transformers config, for `context_of`."""
        return self.layer

    @property
    def hidden_size(self) -> int:
        """H"""
        return self.layer.hidden_size

    @property
    def feature_size(self) -> int:
        """The target's hidden size: it uses the target's embeddings, so that is H."""
        return self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        return self.layer_ids

    @property
    def places(self) -> int:
        """The most tokens of a draft."""
        return self.block_size - (0 if self.samples_from_anchor else 1)


class AttendBlock(Protocol):
    """Attention of one layer."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of a block's rows: q [..., B, heads, d], k and v [..., B, groups, d], rotated. Returns
        [..., B, heads, d]."""


class DFlashHead(DraftHead):
    """See `DraftHead`."""

    config: DFlashConfig

    def __init__(self, config: DFlashConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        layer, size = config.layer, config.hidden_size
        norm = {"eps": layer.rms_norm_eps, "dtype": dtype}
        self.fc = Linear(len(config.layer_ids) * size, size, bias=False, dtype=dtype)
        self.hidden_norm = RMSNorm(size, **norm)
        self.layers = ModuleList([BlockLayer(layer, dtype) for _ in range(layer.num_hidden_layers)])
        self.norm = RMSNorm(size, **norm)
        # Where all tokens can be drafted, the target's own output layer is used.
        own = self.d2t is not None
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False, dtype=dtype) if own else None
        self.markov_head = MarkovHead(config, config.markov, dtype) if config.markov else None
        self.confidence_head = ConfidenceHead(config, dtype) if config.has_confidence else None

    @property
    def kind(self) -> str:
        return "dflash" if self.markov_head is None else "dspark"

    @property
    def bytes_of_a_block(self) -> int:
        """Of weights that a block reads: all but a Markov head's, and the target's output layer if it is
        used."""
        parts = [self.fc, self.hidden_norm, self.layers, self.norm, self.lm_head or self.verifier_head[0]]
        return sum(parameter.nbytes for part in parts for parameter in part.parameters())

    @property
    def bytes_of_a_token(self) -> int:
        """The same, of each place's bias."""
        return 0 if self.markov_head is None else self.markov_head.markov_w2.weight.nbytes

    @property
    def uses_target_s_embeddings(self) -> bool:
        return True

    def get_output_embeddings(self) -> Linear | None:
        return self.lm_head

    def cached(self, target: PreTrainedModel) -> "CachedDFlash":
        return CachedDFlash(self, target)

    def context(self, hidden: Tensor) -> Tensor:
        """The target's hidden states [..., N, A * H], those of `layer_ids` side by side -> [..., N, H], of
        which each layer makes keys and values."""
        return self.hidden_norm(self.fc(hidden))

    def forward(self, anchor: Tensor, positions: Tensor, attend: AttendBlock) -> Tensor:
        """anchor [..., 1] and the positions [..., N] of N <= B rows, its own first -> the rows' hidden states
        [..., N, H], normed."""
        masks = torch.full_like(positions[..., 1:], self.config.mask_token_id)
        tokens = torch.cat([anchor, masks], -1)
        x = embedding(tokens, self.targets_embedding()).to(self.dtype)  # [..., N, H]
        x = x * self.config.embedding_scale
        rotate = self.rotate_at(positions, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(index, x, rotate, attend)
        return self.norm(x)

    def drafting_rows(self, hidden: Tensor) -> Tensor:
        """hidden [..., N, H] of all rows -> [..., K, H] of those that draft a token."""
        return hidden if self.config.samples_from_anchor else hidden[..., 1:, :]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., K, H] -> [..., K, Vd], without the Markov head's biases."""
        head = self.verifier_head[0] if self.lm_head is None else self.lm_head
        logits = head(hidden.to(head.weight.dtype))
        logits = logits * self.config.logit_scale
        cap = self.config.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


class BlockLayer(Module):
    """A decoder layer built like Qwen3's, whose keys and values before the block are made of the target's
    hidden states."""

    def __init__(self, layer: Qwen3Config, dtype: torch.dtype):
        super().__init__()
        size, d = layer.hidden_size, layer.head_dim
        queries, keys = layer.num_attention_heads * d, layer.num_key_value_heads * d
        norm, linear = (
            {"eps": layer.rms_norm_eps, "dtype": dtype},
            {"bias": layer.attention_bias, "dtype": dtype},
        )
        self.input_layernorm = RMSNorm(size, **norm)
        self.post_attention_layernorm = RMSNorm(size, **norm)
        self.self_attn = ModuleDict(
            {
                "q_proj": Linear(size, queries, **linear),
                "k_proj": Linear(size, keys, **linear),
                "v_proj": Linear(size, keys, **linear),
                "o_proj": Linear(queries, size, **linear),
                "q_norm": RMSNorm(d, **norm),
                "k_norm": RMSNorm(d, **norm),
            }
        )
        self.mlp = gated_mlp(layer, dtype)
        self.heads, self.groups = layer.num_attention_heads, layer.num_key_value_heads
        self.head_dim, self.mlp_width = d, layer.intermediate_size
        self.activation = ACT2FN[layer.hidden_act]
        attention, mlp = self.self_attn, self.mlp
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.kv = Product(attention.k_proj, attention.v_proj)
        self.gate_up = Product(mlp.gate_proj, mlp.up_proj)

    def begin_run(self) -> None:
        for product in (self.qkv, self.kv, self.gate_up):
            product.begin_run()

    def keys_and_values(self, context: Tensor, rotate: Rotate) -> tuple[Tensor, Tensor]:
        """Of the text before a block: context [..., N, H] -> each [..., N, groups, d]"""
        groups, d = self.groups, self.head_dim
        k, v = self.kv(context).unflatten(-1, (2 * groups, d)).split([groups, groups], -2)
        return rotate(self.self_attn.k_norm(k)), v

    def forward(self, index: int, x: Tensor, rotate: Rotate, attend: AttendBlock) -> Tensor:
        """x [..., N, H] -> [..., N, H]. index: this layer's."""
        heads, groups, d = self.heads, self.groups, self.head_dim
        qkv = self.qkv(self.input_layernorm(x)).unflatten(-1, (heads + 2 * groups, d))
        q, k, v = qkv.split([heads, groups, groups], -2)
        q, k = rotate(self.self_attn.q_norm(q)), rotate(self.self_attn.k_norm(k))
        x = x + self.self_attn.o_proj(attend(index, q, k, v).flatten(-2))
        hidden = gated(self.gate_up(self.post_attention_layernorm(x)), self.mlp_width, self.activation)
        return x + self.mlp.down_proj(hidden)


class MarkovHead(Module):
    """DSpark's: adds to the logits of a place what the token before it makes likelier, a product of rank
    r."""

    def __init__(self, config: DFlashConfig, markov: Markov, dtype: torch.dtype):
        super().__init__()
        self.kind, rank, size = markov.kind, markov.rank, config.hidden_size
        self.markov_w1 = Embedding(config.layer.vocab_size, rank, dtype=dtype)
        self.markov_w2 = Linear(rank, config.draft_vocab_size, bias=False, dtype=dtype)
        if self.kind == "gated":
            self.gate_proj = Linear(size + rank, rank, dtype=dtype)
        elif self.kind == "rnn":
            self.joint_proj = Linear(2 * rank + size, 3 * rank, dtype=dtype)

    def start(self, rows: int) -> Tensor:
        """The state before a block's first row: [rows, r]. Only the kind rnn changes it."""
        return self.markov_w1.weight.new_zeros(rows, self.markov_w1.embedding_dim)

    def forward(self, before: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """before [..., r]: the embedding of the token before. hidden [..., H], of the row. state [..., r] ->
        the bias [..., Vd], and the next state."""
        if self.kind == "vanilla":
            return self.markov_w2(before), state
        if self.kind == "gated":
            gate = self.gate_proj(torch.cat([hidden, before], -1)).sigmoid()
            return self.markov_w2(gate * before), state
        gate, candidate, output = self.joint_proj(torch.cat([state, before, hidden], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        state = gate * state + (1 - gate) * candidate.tanh()
        return self.markov_w2(output.tanh()), state


class ConfidenceHead(Module):
    """DSpark's: how probable it is that the token of a place is accepted, if those before it were."""

    def __init__(self, config: DFlashConfig, dtype: torch.dtype):
        super().__init__()
        self.sees_token = config.confidence_sees_token and config.markov is not None
        rank = config.markov.rank if self.sees_token and config.markov else 0
        self.proj = Linear(config.hidden_size + rank, 1, dtype=dtype)

    def forward(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """hidden [..., H] and before [..., r], see MarkovHead -> [...], float32"""
        seen = torch.cat([hidden, before], -1) if self.sees_token and before is not None else hidden
        return self.proj(seen)[..., 0].float().sigmoid()


class PositionalBlockAttention:
    """An `AttendBlock` over keys and values that lie by position, [layers, 1, groups, C, d]: the block's own
    are first written to its `rows` [N]. What lies after them is masked, and may be left over. visible [L]: 0,
    1, ..."""

    def __init__(
        self, keys: Tensor, values: Tensor, rows: Tensor, visible: Tensor, sights: tuple[Sight, ...]
    ):
        self.keys, self.values, self.rows, self.visible, self.sights = keys, values, rows, visible, sights
        self.masks: dict[Sight, Tensor] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, heads, d], k and v [N, groups, d] -> [N, heads, d]"""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(2, self.rows, k.transpose(0, 1)[None])
        values.index_copy_(2, self.rows, v.transpose(0, 1)[None])
        _, heads, d = q.shape
        groups, length = k.shape[1], self.visible.shape[0]
        mask = self._mask(self.sights[layer], heads // groups, q.dtype)
        rows = as_rows(q, heads, groups, d)
        keys, values = keys[:, :, :length], values[:, :, :length]
        output = masked_attention(rows, keys, values, mask)
        return as_heads(output, heads, groups, d).view(-1, heads, d)

    def _mask(self, sight: Sight, shared: int, dtype: torch.dtype) -> Tensor:
        """[1, 1, shared * N, L]"""
        if sight not in self.masks:
            rows = self.rows[:, None]  # [N, 1]
            hidden = self.visible > (rows[-1:] if sight.later else rows)
            if sight.window is not None:
                first = self.rows[0] - sight.window if sight.from_anchor else rows - sight.window + 1
                hidden = hidden | (self.visible < first)
            self.masks[sight] = additive(hidden.expand(len(self.rows), -1).repeat(shared, 1), dtype)
        return self.masks[sight]


class CachedDFlash(CachedHead):
    """See `CachedHead`. Row t is made of the target's feature at position t. What a block has written to its
    rows is overwritten when the target's features of these positions are known."""

    model: DFlashHead

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        super().__init__(head, target, layers=len(head.layers))

    def read(self, rows: Tensor) -> None:
        """Makes keys and values of the target's features at the positions `rows` [N]."""
        context = self.model.context(self.true_features(rows))  # [N, H]
        rotate = self.model.rotate_at(rows, self.dtype)
        for index, layer in enumerate(self.model.layers):
            k, v = layer.keys_and_values(context, rotate)
            self.keys[index].index_copy_(2, rows, k.transpose(0, 1)[None])
            self.values[index].index_copy_(2, rows, v.transpose(0, 1)[None])

    def read_from(self, start: Tensor, count: int) -> None:
        """The same at `count` positions from start [] on."""
        self.read(start + torch.arange(count, device=self.device))

    def block(self, anchor: Tensor, start: Tensor, count: int) -> Tensor:
        """The hidden states [count, H] of the first rows of a block, see DFlashHead: anchor [1] at position
        start []."""
        rows = start + torch.arange(count, device=self.device)
        sights = self.model.config.sights
        attend = PositionalBlockAttention(self.keys, self.values, rows, self.kv_ruler, sights)
        return self.model(anchor, rows, attend)

    def drafting_logits(self, anchor: Tensor, start: Tensor, count: int) -> Tensor:
        """The logits [k, Vd] of the rows of such a block that draft, without a Markov head's biases."""
        return self.model.logits(self.model.drafting_rows(self.block(anchor, start, count)))

    def prefill(self, start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`. is_over: as of LM.prefill."""
        for first in range(start, end, HEAD_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + HEAD_PREFILL_CHUNK, end)
            self.reserve(last)
            self.read(to_device(list(range(first, last)), torch.long, self.device))
