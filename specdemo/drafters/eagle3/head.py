"""An EAGLE-3 head: one decoder layer or more that drafts for a target from the target's own hidden states (Li
et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test").

Its modules are named as the tensors of the speculators format. Where its keys and values lie, and what a
token attends to, is given from outside (`Attention`): so the same forward serves drafting by position, which
can be captured (`CachedEagle3`), and training over several steps. Its first layer reads a token's embedding
and a feature side by side, a later one what the layer before it gives, as in any decoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, ModuleList, RMSNorm
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from specdemo.drafters.heads import (
    HEAD_PREFILL_CHUNK,
    TRIED_BEFORE,
    CachedHead,
    DraftHead,
    HeadLayer,
    LayerConfig,
    NativeHead,
    OfLayers,
    rms_norms,
)
from specdemo.runtime.attention import Branches
from specdemo.runtime.decoder import Attention, Decoder, Layer, Norm, RowMask, TargetStates
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import Drawing
from specdemo.runtime.native import MOST_PREFILLED

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"  # in config.json


@dataclass(frozen=True)
class Eagle3Config(OfLayers):
    """What a head is built like. The number and the sizes of its layers, V, their windows and the rotary
    positions are in `layer`."""

    layer: LayerConfig  # of each layer; Qwen3 has a norm for each head of q and k
    draft_vocab_size: int  # Vd: the tokens that it can draft
    layer_ids: tuple[int, ...] | None = None  # whose inputs it reads; None: see `layer_ids_for`
    features: int = 3  # A: how many these are
    target_hidden_size: int | None = None  # None: that of `layer`
    norm_before_residual: bool = False  # the residual stream begins with the normed features
    norm_before_fc: bool = False  # one norm over all features
    fc_norm: bool = False  # one norm for each of them
    norm_output: bool = False  # the next step takes the normed output
    own_embeddings: bool = True  # False: it uses the target's

    @property
    def masks(self) -> list[RowMask]:
        kinds = getattr(self.layer, "layer_types", None) or ["full_attention"] * self.layer.num_hidden_layers
        window = getattr(self.layer, "sliding_window", None)
        return [RowMask(window if kind == "sliding_attention" else None) for kind in kinds]

    @property
    def feature_size(self) -> int:
        """The target's hidden size."""
        return self.target_hidden_size or self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The target's layers whose inputs are the features; `depth` itself stands for the last layer's
        output, before the last norm."""
        return self.layer_ids or (2, depth // 2, depth - 3)


class Eagle3Head(DraftHead):
    """An EAGLE-3 head, see `DraftHead`."""

    config: Eagle3Config
    reads_context: ClassVar[bool] = False
    first_position: ClassVar[int] = 1

    def __init__(self, config: Eagle3Config, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        layer, size, features = config.layer, config.hidden_size, config.features
        norm = {"eps": layer.rms_norm_eps, "dtype": dtype}
        self.embed_tokens = Embedding(layer.vocab_size, size, dtype=dtype) if config.own_embeddings else None
        self.input_norm = RMSNorm(features * config.feature_size, **norm) if config.norm_before_fc else None
        each = [RMSNorm(config.feature_size, **norm) for _ in range(features)] if config.fc_norm else None
        self.fc_norm = None if each is None else ModuleList(each)
        self.fc = Linear(features * config.feature_size, size, bias=False, dtype=dtype)
        self.layers = ModuleList(
            HeadLayer(layer, dtype, i == 0, config.norm_before_residual)
            for i in range(layer.num_hidden_layers)
        )
        self.norm = RMSNorm(size, **norm)
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False, dtype=dtype)
        self.decoding = self.layers_by(None)

    @property
    def kind(self) -> str:
        return "eagle3"

    @property
    def uses_target_s_embeddings(self) -> bool:
        return self.embed_tokens is None

    def guessed(self, depth: int) -> dict[str, str]:
        layers = ", ".join(map(str, self.config.layer_ids_for(depth)))
        return {} if self.config.layer_ids else {LAYER_IDS: layers}

    def get_output_embeddings(self) -> Linear:
        return self.lm_head

    def cached(self, target: PreTrainedModel) -> "CachedEagle3":
        return CachedEagle3(self, target)

    def compiled(self, target: PreTrainedModel) -> "NativeEagle3":
        return NativeEagle3(self, target)

    def decoder(self, target: PreTrainedModel) -> Decoder:
        each = self.fc_norm if self.fc_norm is not None else [self.input_norm]
        return Decoder(
            self.dtype,
            self.embed_tokens or target.get_input_embeddings(),
            self.decoding,
            Norm(self.norm),
            self.lm_head,
            lambda rows: {None: self.rotary(rows + self.first_position, torch.float32)},
            reads=TargetStates(rms_norms(each), self.fc, None, are_keys=False),
            draft_ids=None if self.d2t is None else self.target_ids,
            vocab_size=self.config.layer.vocab_size,
            norms_output=self.config.norm_output,
        )

    def features(self, hidden: Tensor) -> Tensor:
        """The target's hidden states [..., A * T], those of `layer_ids` side by side -> g [..., H]."""
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.split(self.config.feature_size, -1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(hidden)

    def forward(
        self,
        tokens: Tensor,
        g: Tensor,
        attention: Sequence[Attention],
        layers: Sequence[Layer] | None = None,
    ) -> Tensor:
        """tokens [..., N] with what came before each: g [..., N, H], the feature of the token before it, or
        the head's own output for that; unless gradients are recorded, its memory is reused. attention: that
        of each layer. layers: the layers as they run, if not by torch's operations. Returns y [..., N, H];
        see `predict`."""
        embedded, x = embedding(tokens, self._embedding()).to(g.dtype), g  # [..., N, H]
        for layer, attend in zip(layers or self.decoding, attention, strict=True):
            x = layer(x, attend, embedded)
        return x

    def _embedding(self) -> Tensor:
        """The embeddings [V, H] that the head uses: its own, else the target's."""
        return self.targets_embedding() if self.embed_tokens is None else self.embed_tokens.weight

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [..., N, H] -> what the next step takes as g [..., N, H], and the logits [..., N, Vd] of the
        token after each."""
        normed = self.norm(y)
        return normed if self.config.norm_output else y, self.lm_head(normed)


class CachedEagle3(CachedHead):
    """An EAGLE-3 head, or one that is called as it is, with its cache, see `CachedHead`. Row t belongs to the
    pair of the target's feature at position t and the token at position t + 1."""

    model: Eagle3Head

    def rows(self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None) -> Tensor:
        """tokens [N] and what came before each, g [N, H], in the rows start [], start + 1, ... -> y [N, H],
        see Eagle3Head. branches: as in LM.forward."""
        attention = self.attention_at(start, len(tokens), branches)
        return self.model(tokens, g, [attention] * len(self.decoding), self.decoding)

    def true_rows(self, tokens: Tensor, start: Tensor) -> Tensor:
        """`rows` of tokens [N], with the target's true features before them."""
        at = start + torch.arange(len(tokens), device=self.device)
        return self.rows(tokens, self.model.features(self.true_features(at)), start)

    def begin(self, tokens: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [N], with the target's true features before them, in the rows start [], start + 1, ... ->
        what `go_on` takes, and the logits [1, V] of the token after the last one."""
        return self.predict(self.true_rows(tokens, start)[-1:])

    def go_on(
        self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None
    ) -> tuple[Tensor, Tensor]:
        """A drafted token [1] and what it came from, g [1, H], in the row start [] -> what `begin` returns.
        branches: of several drafted tokens [N] with g [N, H], see LM.forward; then the logits are [N, V]."""
        return self.predict(self.rows(tokens, g, start, branches))

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [N, H] -> what the next forward takes as g [N, H], and the logits [N, V] of the token after
        each."""
        g, logits = self.model.predict(y)
        return g, self.model.for_target(logits)

    def draft(self, tokens: Tensor, start: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None, Tensor]:
        """Many forwards as one call, where it `drafts_itself`: as LM.draft, but beginning as `begin` does."""
        raise NotImplementedError

    @property
    def drafts_itself(self) -> bool:
        return False

    def prefill(self, ids: list[int], start: int, end: int, is_over: Callable[[], bool]) -> None:
        """Fills the rows from `start` to before `end`. ids: the text. is_over: as in LM.prefill."""
        for first in range(start, end, HEAD_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + HEAD_PREFILL_CHUNK, end)
            tokens = to_device(ids[first + 1 : last + 1], torch.long, self.device)
            self.grow(last)
            self.fill(tokens, torch.full((), first, device=self.device))

    def fill(self, tokens: Tensor, start: Tensor) -> None:
        self.true_rows(tokens, start)

    def said_of_features(self) -> Tensor:
        count = TRIED_BEFORE
        self.grow(count + 1)
        token, start = torch.zeros(1, dtype=torch.long, device=self.device), torch.tensor(0)
        g, first = self.begin(token.repeat(count), start.to(self.device))
        return torch.cat([first, self.go_on(token, g, start.to(self.device) + count)[1]])


class NativeEagle3(NativeHead, CachedEagle3):
    """An EAGLE-3 head on a CPU, see NativeHead."""

    def begin(self, tokens: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        if self.native is None:
            return super().begin(tokens, start)
        return self.native.stream[:1], self.native.last(self, tokens, start, from_features=True)

    def go_on(
        self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None
    ) -> tuple[Tensor, Tensor]:
        native = self.native
        if native is None or not native.takes(branches):
            return super().go_on(tokens, g, start, branches)
        if branches is None:
            return native.stream[:1], native.last(self, tokens, start, from_features=False)
        block = native.block_for(len(tokens))
        logits = native(self, tokens, start, block, branches=branches, left=g)  # [N, Vd]
        return native.stream[: len(tokens)], self.model.for_target(logits)

    @property
    def drafts_itself(self) -> bool:
        return self.native is not None

    def draft(self, tokens: Tensor, start: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None, Tensor]:
        native = self.native
        assert native is not None
        return native.draft(self, tokens, start, native.block_for(len(tokens)), drawing)

    def fill(self, tokens: Tensor, start: Tensor) -> None:
        if self.native is None or len(tokens) > MOST_PREFILLED:
            super().fill(tokens, start)
        else:
            self.native.fill(self, tokens, start)
