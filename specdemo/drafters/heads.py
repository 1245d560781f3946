"""A head: a drafter that is made for one target and drafts from the target's own hidden states. What all
kinds of heads have in common: the target that they belong to, the tokens that they can draft, their layers,
and a cache that is written by position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, RMSNorm
from transformers import PreTrainedModel, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specdemo.drafters.base import Materials
from specdemo.drafters.configs import HeadConfig, HeadJson, LayerConfig
from specdemo.engine.draft import Drafter
from specdemo.runtime import cuda
from specdemo.runtime.agreement import check_alike
from specdemo.runtime.attention import Branches
from specdemo.runtime.cache import NEW_BUFFERS, CachedByPosition, Features, PositionalCache, PositionalLayer
from specdemo.runtime.decoder import Attention, Decoder, Heads, Layer, Norm, RowMask, embedding_scale
from specdemo.runtime.fused import MOST_OF_TREE, KernelAttention, TorchAttention, triton_kernels, turns_at
from specdemo.runtime.linear import MOST_BY_TRITON
from specdemo.runtime.lm import context_of
from specdemo.runtime.native import NATIVE_DTYPES, Native, NativeForward
from specdemo.words.message import message

HEAD_PREFILL_CHUNK = 256  # rows per forward: a mask can have a row for each query head of each of them
TRIED_BEFORE = 8  # rows of the cache before those that are tried


class RotaryPositions(Module):
    """Rotary positions (Su et al. 2021, "RoFormer"), as transformers' own module computes them for one token
    after another: for each by its own position alone, so that keys can be written by position.

    partial_rotary_factor: only the first r = d * factor channels of a head are rotated, as vLLM does.
    dynamic: its frequencies depend on the length beyond max_position_embeddings only, where a head does not
    draft."""

    inverse_frequencies: Tensor  # [r/2] float32

    def __init__(self, layer: LayerConfig):
        super().__init__()
        rope = layer.rope_parameters
        self.scaling = 1.0
        with torch.device("cpu"):  # also where the weights are on the meta device
            if (kind := rope["rope_type"]) == "default":
                rotated = int(layer.head_dim * rope.get("partial_rotary_factor", 1.0))  # r
                exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
                frequencies = 1.0 / rope["rope_theta"] ** exponents
            else:
                frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](layer)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [N] or [..., N] -> cos and sin [..., N, 1, r], see decoder.Rotation."""
        angles = positions[..., None] * self.inverse_frequencies  # [..., N, r/2]
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        cos = torch.cat([cos, cos], -1)[..., None, :].to(dtype)
        return cos, torch.cat([-sin, sin], -1)[..., None, :].to(dtype)


class DraftHead(Module):
    """The weights of a head, all of one dtype. `.to(device)` moves them; a dtype is chosen when the head is
    read. Its layers are transformers' own, of which no more than the weights is used."""

    kind: str  # its name in DRAFTER_KINDS
    fc: Linear  # from the target's hidden states, side by side, to one
    layer_type: ClassVar[type[Layer]] = Layer  # what runs its layers
    reads_context: ClassVar[bool] = False  # see Layer
    first_position: ClassVar[int] = 0  # of the token of the cache's row 0
    target_ids: Tensor  # [Vd] int64: the target's id of each draft id
    d2t: Tensor | None  # [Vd] int64: the same as offsets, None where all tokens can be drafted
    embed_tokens: Embedding | None  # its own; None: it uses the target's, as for lm_head
    lm_head: Linear | None
    norm: RMSNorm | None  # before the output layer
    places: int | None = None  # the most tokens of a draft
    drafts_at_once: ClassVar[bool] = False  # whether one forward gives a whole draft
    leaves: int = 0  # see NativeForward

    def __init__(self, config: HeadConfig, drafts: int, masks: Sequence[RowMask]):
        """drafts: Vd, the number of tokens that it can draft. masks: that of each layer."""
        super().__init__()
        self.config = config
        self.embed_tokens = self.norm = self.lm_head = None
        self.masks = tuple(masks)
        width = config.vocab_size
        self.register_buffer("d2t", None if drafts == width else torch.zeros(drafts, dtype=torch.long))
        with torch.device("cpu"):  # also where the weights are on the meta device
            ids = torch.arange(drafts)
        self.register_buffer("target_ids", ids, persistent=False)
        self.verifier: Callable[[], PreTrainedModel | None] = lambda: None  # which the head does not hold
        self.targets_scale = 1.0  # what it multiplies its embeddings by
        self.rotary = RotaryPositions(config.layer)
        kind = Qwen3DecoderLayer if isinstance(config.layer, Qwen3Config) else LlamaDecoderLayer
        self.layers = ModuleList(kind(config.layer, at) for at in range(config.layer.num_hidden_layers))

    @cached_property
    def decoding(self) -> list[Layer]:
        return self.layers_by(None)

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def get_output_embeddings(self) -> Module | None:
        return self.lm_head

    def read_by_token(self) -> tuple[int, int]:
        """Bytes that each token of a draft reads beside its forward, and of the weights that they are of."""
        return 0, 0

    def begin_run(self) -> None:
        """Call when weights were loaded or moved, not inside a step."""
        if self.d2t is not None:
            self.target_ids = torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t
        for layer in self.decoding:
            layer.begin_run()

    def for_target(self, logits: Tensor) -> Tensor:
        """logits [N, Vd] -> [N, V]: a token that cannot be drafted gets -inf."""
        if self.d2t is None:
            return logits
        wide = logits.new_full((len(logits), self.config.vocab_size), -torch.inf)
        return wide.index_copy_(1, self.target_ids, logits)

    def attach_verifier(self, target: PreTrainedModel) -> None:
        """Takes the target whose embeddings and output layer it uses where it has none of its own.
        `loading.checks.check_fits` checks that the two fit each other."""
        self.verifier, self.targets_scale = ref(target), embedding_scale(target.get_input_embeddings())

    @property
    def target(self) -> PreTrainedModel:
        """Raises ValueError before one is attached."""
        if (target := self.verifier()) is None:
            raise ValueError("the head has no embeddings of its own: attach its target first")
        return target

    def targets_embedding(self) -> Tensor:
        """The target's embeddings [V, H], raw."""
        return self.target.get_input_embeddings().weight.detach()

    @property
    def output_layer(self) -> Module:
        return self.target.get_output_embeddings() if self.lm_head is None else self.lm_head

    def layers_by(self, kernels: ModuleType | None) -> list[Layer]:
        """The head's layers as they run. kernels: see Layer."""
        layer = self.config.layer
        sizes = layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim, layer.head_dim**-0.5
        return [
            self.layer_type(part, Heads(index, *sizes, mask), layer.hidden_act, kernels, self.reads_context)
            for index, (part, mask) in enumerate(zip(self.layers, self.masks, strict=True))
        ]

    def decoder(self, target: PreTrainedModel, **more: Any) -> Decoder:
        """The head as a Decoder, with its weights and its target's as they are now. more: what only some
        kinds of heads say."""
        return Decoder(
            self.dtype,
            self.embed_tokens or target.get_input_embeddings(),
            self.decoding,
            self.norm and Norm(self.norm),
            self.output_layer,
            lambda rows, dtype: {None: self.rotary(rows + self.first_position, dtype)},
            **more,
        )


class FeatureCache(CachedByPosition):
    """What drafts from the features of its target, with keys and values of its own, by position."""

    reads: Features

    def prefill(self, ids: list[int], start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`. ids: the text. is_over: as in LM.prefill."""
        for first in range(start, end, HEAD_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + HEAD_PREFILL_CHUNK, end)
            self.grow(last)
            self.fill(ids, first, last)

    def fill(self, ids: list[int], first: int, last: int) -> None:
        raise NotImplementedError

    def logits_of(self, ids: Tensor, start: int, end: int) -> Tensor:
        """The logits [n, V] with the target's true features in these rows. ids: the text."""
        raise NotImplementedError


class CachedHead(Native, FeatureCache):
    """A head with keys and values of its own, by position, and with the features of its target.

    Nothing is rewound: a forward is told its first row, and what lies after its last is left over from
    rejected drafts, or empty, and masked. With Triton its layers run by kernels, and on a CPU compiled code
    runs them (`compiled`), where these say what torch's operations do."""

    written_for_capture = True

    def __init__(self, head: DraftHead, target: PreTrainedModel, compiled: bool = False):
        self.compiles_itself = compiled
        self.model = head
        self.target = target
        self.device = head.device
        self.dtype = head.dtype
        self.context = context_of(head)
        self.decoding = head.decoding  # its layers as they run here
        self._is_tried = False  # whether kernels were
        head.attach_verifier(target)
        head.begin_run()
        depth = target.config.get_text_config().num_hidden_layers
        self.reads = Features(target, head.config.layer_ids_for(depth))
        self.buffer_epoch = next(NEW_BUFFERS)
        layer = head.config.layer
        self.cache = PositionalCache(self, [PositionalLayer(self) for _ in head.layers])
        nothing = torch.zeros(
            1, layer.num_key_value_heads, 0, layer.head_dim, dtype=self.dtype, device=self.device
        )
        for cached in self.cache.layers:
            cached.lazy_initialization(nothing, nothing)
        self._table = torch.zeros(0, 2, 0)  # the rotations of all rows of the cache, [C, 2, r]: cos, then sin
        self.grow(1)

    def grow(self, length: int) -> None:
        """Call before forwards of which none reaches row `length`."""
        super().grow(length)
        if len(self._table) != self.capacity:
            positions = self.all_positions + self.model.first_position
            self._table = torch.cat(self.model.rotary(positions, self.dtype), 1)
        if self.decoding[0].kernels is not None:
            self.key_positions = self.all_positions  # as of CachedLM.reserve

    make_room = grow

    def begin_run(self, static: bool) -> None:
        for layer in self.decoding:
            layer.begin_run()
        if not static:
            self.native = None
        elif self.compiles_itself:
            if self.native is not None:
                self._trying(self._find_weights)
            elif "by_operation" not in self.faults:
                self._trying(self._choose_native)
        elif not self._is_tried and cuda.has_triton(self.device):
            if not self.tries("no_triton", self._try_kernels):
                self.decoding = self.model.decoding
            self._is_tried = True

    @torch.no_grad()
    def _try_kernels(self) -> None:
        expected = self.tried()
        self.decoding = self.model.layers_by(triton_kernels())
        self.check_alike(expected, self.tried())

    @torch.no_grad()
    def _choose_native(self) -> None:
        self.native = None
        if (kept := self.reads.states.dtype) not in NATIVE_DTYPES:
            raise ValueError(f"its target's hidden states are {str(kept).removeprefix('torch.')} numbers")
        expected = self.tried()
        self.warming_up = message("compiling_head")
        try:
            native = NativeForward(partial(self.model.decoder, self.target), leaves=self.model.leaves)
        finally:
            self.warming_up = None
        for layer in self.layers:  # so that nothing is found that the head itself has left there
            layer.keys.zero_()
            layer.values.zero_()
        self.native = native
        self.check_alike(expected, self.tried())

    def tried(self) -> Tensor:
        """The head's logits after a few rows of features that are random numbers, to compare ways to compute
        them."""
        states, rows = self.reads.states, 2 * TRIED_BEFORE
        numbers = torch.randn(rows, states.shape[1], generator=torch.Generator().manual_seed(0))
        self.reads.states = numbers.to(states.device, states.dtype)
        try:
            return self.logits_after_features()
        finally:
            self.reads.states = states

    def logits_after_features(self) -> Tensor:
        """The head's logits after the features that lie at its first rows."""
        raise NotImplementedError

    def check_alike(self, expected: Tensor, said: Tensor) -> None:
        """ValueError if these are not the same logits, which the target's output layer may have made."""
        dtype = max(self.dtype, self.target.dtype, key=lambda one: torch.finfo(one).eps)
        check_alike(expected, said, dtype, "it predicts something other than the head")

    def attention_at(self, start: Tensor, count: int, branches: Branches | None = None) -> Attention:
        """How the layers of a forward of `count` rows from start [] on attend. branches: as in
        LM.forward."""
        rows = self.write_at(start, count)
        most = MOST_BY_TRITON if branches is None else MOST_OF_TREE
        if self.decoding[0].kernels is not None and count <= most:
            return self.attention_by_kernels(rows, branches)
        turned = {None: self.rotation(rows if branches is None else branches.positions(rows))}
        seen = turned, rows, self.key_positions, self.model.decoding, self.dtype, branches
        return TorchAttention.over(self.cache, *seen)

    def attention_by_kernels(self, rows: Tensor, branches: Branches | None = None) -> KernelAttention:
        return KernelAttention(self.cache, rows, {None: self._table}, branches)

    def rotation(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, 1, r] of the rows."""
        return turns_at(self._table, rows)

    def true_features(self, rows: Tensor) -> Tensor:
        """The target's features [N, A * T] at the positions `rows` [N], on the head's device and in its
        dtype."""
        states = self.reads.at(rows.to(self.reads.states.device))
        return states.to(self.device, self.dtype)


@dataclass(frozen=True)
class HeadKind:
    """A kind of heads. read: reads its config.json. compiles: whether compiled code can run it on a CPU."""

    read: Callable[[HeadJson], HeadConfig]
    head: Callable[..., DraftHead]
    cached: Callable[..., CachedHead]
    drafter: Callable[[Materials], Drafter]
    compiles: bool = True
