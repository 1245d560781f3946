"""A DFlash head: a few decoder layers that draft a whole block in one forward (Chen et al. 2026, "DFlash:
Block Diffusion for Flash Speculative Decoding", arXiv 2602.06036), and a DSpark head, which adds to it a
Markov head and a confidence head.

The rows of a forward are the last token of the text, the anchor, and a mask token for each place after it.
They attend to each other and to the text before the anchor, of which each layer makes its keys and values
from the target's own hidden states. The modules are named as the tensors of the speculators format. Where
keys and values lie is given from outside (`Attention`): so the same forward serves drafting by position,
which can be captured (`CachedDFlash`), and training on many blocks of one text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, RMSNorm
from torch.nn.functional import embedding
from transformers import PreTrainedModel, Qwen3Config

from specdemo.drafters.heads import (
    HEAD_PREFILL_CHUNK,
    TRIED_BEFORE,
    CachedHead,
    DraftHead,
    HeadLayer,
    NativeHead,
    OfLayers,
)
from specdemo.runtime.decoder import Attention, Decoder, Layer, Norm, RowMask, TargetStates
from specdemo.runtime.device import to_device
from specdemo.runtime.native import NativeForward

# How the Markov head makes a bias from the token before: from it alone, from it and the row's hidden state,
# or with a state that it carries through the block.
MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Markov:
    """What DSpark's Markov head is built like."""

    rank: int  # r
    kind: MarkovKind


WHOLE_BLOCK = RowMask(later=True)  # a row attends to the text before the anchor, and to the whole block


@dataclass(frozen=True)
class DFlashConfig(OfLayers):
    """What a head is built like. The sizes of its layers, V and the rotary positions are in `layer`."""

    layer: Qwen3Config
    block_size: int  # B: rows of a forward, of which the first is the anchor
    mask_token_id: int  # whose embedding, the target's, the other rows begin with
    layer_ids: tuple[int, ...]  # of the target's layers, whose inputs it reads; see `Features`
    draft_vocab_size: int  # Vd: the tokens that it can draft
    masks: tuple[RowMask, ...]  # of each layer
    samples_from_anchor: bool = False  # the anchor's row, too, drafts a token: row i the one after its place
    embedding_scale: float | None = 1.0  # of the target's raw embeddings; None: as the target scales them
    logit_scale: float = 1.0
    logit_cap: float | None = None  # c: logits x become c * tanh(x / c)
    markov: Markov | None = None
    has_confidence: bool = False
    guesses_block: bool = False  # its config.json does not give the block's size
    confidence_sees_token: bool = True  # the confidence head reads the token before a place, too

    @property
    def feature_size(self) -> int:
        """The target's hidden size, which is H, because the head uses the target's embeddings."""
        return self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        return self.layer_ids

    @property
    def places(self) -> int:
        """The most tokens of a draft."""
        return self.block_size - (0 if self.samples_from_anchor else 1)


class DFlashHead(DraftHead):
    """A DFlash or DSpark head, see `DraftHead`."""

    config: DFlashConfig
    reads_context: ClassVar[bool] = True
    first_position: ClassVar[int] = 0

    def __init__(self, config: DFlashConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        layer, size = config.layer, config.hidden_size
        norm = {"eps": layer.rms_norm_eps, "dtype": dtype}
        self.fc = Linear(len(config.layer_ids) * size, size, bias=False, dtype=dtype)
        self.hidden_norm = RMSNorm(size, **norm)
        self.layers = ModuleList(self.new_layer(dtype) for _ in range(layer.num_hidden_layers))
        self.norm = RMSNorm(size, **norm)
        # Where all tokens can be drafted, the target's own output layer is used.
        own = self.d2t is not None
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False, dtype=dtype) if own else None
        self.markov_head = MarkovHead(config, config.markov, dtype) if config.markov else None
        self.confidence_head = ConfidenceHead(config, dtype) if config.has_confidence else None
        self.decoding = self.layers_by(None)

    def new_layer(self, dtype: torch.dtype) -> Module:
        return HeadLayer(self.config.layer, dtype)

    @property
    def kind(self) -> str:
        return "dflash" if self.markov_head is None else "dspark"

    @property
    def bytes_of_a_block(self) -> int:
        """The bytes of weights that a block reads: all but a Markov head's, and the target's output layer if
        it is used."""
        parts = [self.fc, self.hidden_norm, self.layers, self.norm, self.lm_head or self.verifier_head[0]]
        return sum(parameter.nbytes for part in parts for parameter in part.parameters())

    @property
    def bytes_of_a_token(self) -> int:
        """The bytes of weights that each place's bias reads."""
        return 0 if self.markov_head is None else self.markov_head.markov_w2.weight.nbytes

    @property
    def uses_target_s_embeddings(self) -> bool:
        return True

    def guessed(self, depth: int) -> dict[str, str]:
        return {"block_size": str(self.config.block_size)} if self.config.guesses_block else {}

    @property
    def embedding_scale(self) -> float:
        own = self.config.embedding_scale
        return self.targets_scale if own is None else own

    def get_output_embeddings(self) -> Linear | None:
        return self.lm_head

    def cached(self, target: PreTrainedModel) -> "CachedDFlash":
        return CachedDFlash(self, target)

    def compiled(self, target: PreTrainedModel) -> "NativeDFlash":
        return NativeDFlash(self, target)

    def decoder(self, target: PreTrainedModel) -> Decoder:
        config = self.config
        return Decoder(
            self.dtype,
            target.get_input_embeddings(),
            self.decoding,
            Norm(self.norm),
            target.get_output_embeddings() if self.lm_head is None else self.lm_head,
            lambda rows: {None: self.rotary(rows, torch.float32)},
            self.embedding_scale,
            config.logit_scale,
            config.logit_cap,
            TargetStates([], self.fc, Norm(self.hidden_norm), are_keys=True),
        )

    def context(self, hidden: Tensor) -> Tensor:
        """The target's hidden states [..., N, A * H], those of `layer_ids` side by side -> [..., N, H], of
        which each layer makes keys and values."""
        return self.hidden_norm(self.fc(hidden))

    def forward(self, tokens: Tensor, attention: Attention, layers: Sequence[Layer] | None = None) -> Tensor:
        """tokens [..., N], see `block_of` -> the rows' hidden states [..., N, H], normed. layers: the layers
        as they run, if not by torch's operations."""
        x = embedding(tokens, self.targets_embedding()).to(self.dtype)  # [..., N, H]
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        for layer in layers or self.decoding:
            x = layer(x, attention)
        return self.norm(x)

    def block_of(self, anchor: Tensor, count: int) -> Tensor:
        """anchor [..., 1] -> the tokens [..., N] of a block's first rows, the anchor first."""
        masks = anchor.new_full((*anchor.shape[:-1], count - 1), self.config.mask_token_id)
        return torch.cat([anchor, masks], -1)

    def drafting_rows(self, hidden: Tensor) -> Tensor:
        """hidden [..., N, H] of all rows -> [..., K, H] of those that draft a token."""
        return hidden if self.config.samples_from_anchor else hidden[..., 1:, :]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., K, H] -> [..., K, Vd], without the Markov head's biases."""
        head = self.verifier_head[0] if self.lm_head is None else self.lm_head
        logits = head(hidden.to(head.weight.dtype))
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        cap = self.config.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


class MarkovHead(Module):
    """DSpark's Markov head. It adds to the logits of a place what the token before it makes likelier, a
    product of rank r."""

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
        """before [..., r]: the embedding of the token before. hidden [..., H]: the row's hidden state. state
        [..., r] -> the bias [..., Vd], and the next state."""
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
    """DSpark's confidence head: how probable it is that the token of a place is accepted, if those before it
    were."""

    def __init__(self, config: DFlashConfig, dtype: torch.dtype):
        super().__init__()
        self.sees_token = config.confidence_sees_token and config.markov is not None
        rank = config.markov.rank if self.sees_token and config.markov else 0
        self.proj = Linear(config.hidden_size + rank, 1, dtype=dtype)

    def forward(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """hidden [..., H] and before [..., r], see MarkovHead -> [...], float32"""
        seen = torch.cat([hidden, before], -1) if self.sees_token and before is not None else hidden
        return self.proj(seen)[..., 0].float().sigmoid()


class CachedDFlash(CachedHead):
    """A DFlash head with its cache, see `CachedHead`. Row t is made of the target's feature at position t.
    What a block has written to its rows is overwritten when the target's features of these positions are
    known."""

    model: DFlashHead

    def read(self, start: Tensor, count: int) -> None:
        """Makes keys and values of the target's features at `count` positions from start [] on."""
        rows = self.write_at(start, count)
        context = self.model.context(self.true_features(rows))  # [N, H]
        if self.decoding[0].kernels is not None:
            attention = self.attention_by_kernels(rows)
            for layer in self.decoding:
                attention.keep(layer, context)
            return
        turned = self.rotation(rows)
        for index, layer in enumerate(self.decoding):
            k, v = layer.keys_and_values(context, turned)
            self.cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], index)

    def block(self, anchor: Tensor, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The hidden states [count, H] of the first rows of a block, see DFlashHead, and the logits [k, Vd]
        of those that draft, without a Markov head's biases. anchor [1] at position start []."""
        attention = self.attention_at(start, count)
        hidden = self.model(self.model.block_of(anchor, count), attention, self.decoding)
        return hidden, self.model.logits(self.model.drafting_rows(hidden))

    def prefill(self, ids: list[int], start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`, whatever the tokens. is_over: as in LM.prefill."""
        for first in range(start, end, HEAD_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + HEAD_PREFILL_CHUNK, end)
            self.grow(last)
            self.read(to_device(first, torch.long, self.device), last - first)

    def said_of_features(self) -> Tensor:
        size = self.model.config.block_size
        before = int(min(TRIED_BEFORE, self.context - size))
        if before < 1:
            raise ValueError("its context is no longer than a block")
        self.grow(before + size)
        start = torch.tensor(0, device=self.device)
        self.read(start, before)
        return self.block(torch.zeros(1, dtype=torch.long, device=self.device), start + before, size)[1]


class NativeDFlash(NativeHead, CachedDFlash):
    """A DFlash head on a CPU, see NativeHead."""

    def new_native(self) -> NativeForward:
        describe = partial(self.model.decoder, self.target)
        return NativeForward(describe, leaves=self.model.config.block_size)

    def read(self, start: Tensor, count: int) -> None:
        if self.native is None:
            super().read(start, count)
        else:
            self.native.read(self, start, count)

    def block(self, anchor: Tensor, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
        native = self.native
        if native is None:
            return super().block(anchor, start, count)
        logits = native(self, self.model.block_of(anchor, count), start, native.block_for(count))
        return native.stream[:count].to(self.dtype), self.model.drafting_rows(logits)
