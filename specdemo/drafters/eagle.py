"""EAGLE heads: one decoder layer or more that drafts for a target from the target's own hidden states.

The first layer of EAGLE-3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test") reads a token's embedding and a feature side by side; a later layer reads the
output of the layer before it. EAGLE (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking
Feature Uncertainty"; EAGLE-2 has the same weights) makes one hidden state of a token's embedding and the
target's last hidden state before it; what its layers make of that stands for the target's next one, so the
target's own output layer reads it. P-EAGLE (speculators' `peagle`) is an EAGLE-3 head that was trained to
draft in parallel: where the token before a place is not known yet, it reads a mask token and, in place of the
target's hidden states, one learned vector.

The modules are named as the tensors of the speculators format. Where keys and values lie, and what a token
attends to, is given from outside (`Attention`): so the same forward serves drafting by position, which can be
captured, and training over several steps."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter, RMSNorm
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from specdemo.drafters.configs import (
    EMBEDDINGS,
    PYDANTIC,
    WINDOWS,
    HeadConfig,
    HeadJson,
    LayerIds,
    Tokens,
    Units,
)
from specdemo.drafters.heads import TRIED_BEFORE, CachedHead, DraftHead, HeadKind
from specdemo.drafters.model import DraftInput, EagleDrafter, HeadDrafter
from specdemo.engine.draft import Draft
from specdemo.runtime.attention import Branches
from specdemo.runtime.cuda import to_device
from specdemo.runtime.decoder import Attention, Decoder, Layer, Norm, RowMask, TargetStates
from specdemo.runtime.lm import Drawing, final_norm
from specdemo.runtime.native import MOST_PREFILLED

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"  # in config.json


@checked(frozen=True, config=PYDANTIC)
class Eagle3Config(HeadConfig):
    draft_vocab_size: Tokens  # Vd: the tokens that it can draft
    # Of the target's layers, whose inputs it reads; None: see `layer_ids_for`.
    layer_ids: LayerIds | None = Field(None, alias=LAYER_IDS)
    target_hidden_size: Units | None = None  # None: that of `layer`
    norm_before_residual: bool = False  # the residual stream begins with the normed features
    norm_before_fc: bool = False  # one norm over all features
    fc_norm: bool = False  # one norm for each of them
    norm_output: bool = False  # the next step takes the normed output
    own_embeddings: bool = True  # False: it uses the target's

    @property
    def feature_size(self) -> int:
        return self.target_hidden_size or self.hidden_size

    @property
    def features(self) -> int:
        """A: of how many layers it reads the inputs."""
        return len(self.layer_ids_for(0))

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """`depth` itself stands for the last layer's output, before the last norm."""
        return self.layer_ids or (2, depth // 2, depth - 3)


@checked(frozen=True, config=PYDANTIC, kw_only=True)
class PEagleConfig(Eagle3Config):
    mask_token_id: int


@checked(frozen=True, config=PYDANTIC)
class EagleConfig(HeadConfig):
    """What a head is built like. Its first layer has no norm before its attention."""

    fc_bias: bool = Field(True, alias="bias")
    qkv_bias: bool = False  # of queries, keys and values alone

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The last layer's output alone."""
        return (depth,)


def read_eagle3(given: HeadJson, config: type[Eagle3Config] = Eagle3Config) -> Eagle3Config:
    layer, raw = given.layer(), given.raw
    known: dict[str, Any] = {"layer": layer, "own_embeddings": EMBEDDINGS in given.tensors}
    if "draft_vocab_size" not in raw:
        known["draft_vocab_size"] = layer.vocab_size if given.is_authors else 32000
    own = raw.get("eagle_config")  # some authors' place for the layers' numbers
    if raw.get(LAYER_IDS) is None and isinstance(own, dict):
        raw = raw | {LAYER_IDS: own.get(LAYER_IDS)}
    return given.read(config, raw, **known)


def read_eagle(given: HeadJson) -> EagleConfig:
    """That of a Llama with one layer."""
    layer = replace(given, raw=given.raw | {"model_type": "llama"}).layer()  # whatever the target is
    known = {} if "bias" in given.raw else {"fc_bias": "fc.bias" in given.tensors}
    return given.read(EagleConfig, layer=layer, **known)


def set_qkv(layer: Module, width: int, bias: bool) -> None:
    """Gives a layer queries, keys and values that are made of so many numbers."""
    attention = layer.self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, Linear(width, getattr(attention, name).out_features, bias))


class PairHead(DraftHead):
    """A head whose rows are pairs: a token, and what came before it."""

    def features(self, hidden: Tensor) -> Tensor:
        """The target's hidden states [..., A * T], those of `layer_ids` side by side -> g [..., H]."""
        raise NotImplementedError

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
        embeddings = self.embed_tokens.weight if self.embed_tokens else self.targets_embedding()  # [V, H]
        embedded = embedding(tokens, embeddings).to(g.dtype)  # [..., N, H]
        x = self.stream(embedded, g)
        for layer, attend in zip(layers or self.decoding, attention, strict=True):
            x = layer(x, attend, embedded)
        return x

    def stream(self, embedded: Tensor, g: Tensor) -> Tensor:
        """What the first layer is given [..., N, H]."""
        return g

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [..., N, H] -> what the next step takes as g [..., N, H], and the logits [..., N, Vd] of the
        token after each."""
        raise NotImplementedError


class Eagle3Head(PairHead):
    kind = "eagle3"
    config: Eagle3Config
    first_position: ClassVar[int] = 1
    norm: RMSNorm
    lm_head: Linear

    def __init__(self, config: Eagle3Config):
        layer, size, features = config.layer, config.hidden_size, config.features
        kinds = getattr(layer, "layer_types", None) or [WINDOWS[0]] * layer.num_hidden_layers
        windows = (layer.sliding_window if kind == WINDOWS[1] else None for kind in kinds)
        super().__init__(config, config.draft_vocab_size, [*map(RowMask, windows)])
        norm = partial(RMSNorm, eps=layer.rms_norm_eps)
        self.embed_tokens = Embedding(layer.vocab_size, size) if config.own_embeddings else None
        self.input_norm = norm(features * config.feature_size) if config.norm_before_fc else None
        each = [norm(config.feature_size) for _ in range(features)] if config.fc_norm else None
        self.fc_norm = None if each is None else ModuleList(each)
        self.fc = Linear(features * config.feature_size, size, bias=False)
        first = self.layers[0]
        first.hidden_norm, first.norm_before_residual = norm(size), config.norm_before_residual
        set_qkv(first, 2 * size, layer.attention_bias)
        self.norm = norm(size)
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False)

    def decoder(self, target: PreTrainedModel, **more: Any) -> Decoder:
        each = self.fc_norm if self.fc_norm is not None else [self.input_norm]
        return super().decoder(
            target,
            reads=TargetStates([Norm(one) for one in each if one is not None], self.fc, None, are_keys=False),
            draft_ids=None if self.d2t is None else self.target_ids,
            vocab_size=self.config.layer.vocab_size,
            norms_output=self.config.norm_output,
        )

    def features(self, hidden: Tensor) -> Tensor:
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.split(self.config.feature_size, -1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(hidden)

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(y)
        return normed if self.config.norm_output else y, self.lm_head(normed)


class PEagleHead(Eagle3Head):
    kind = "peagle"
    config: PEagleConfig
    first_position: ClassVar[int] = 0
    drafts_at_once: ClassVar[bool] = True

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        self.mask_hidden = Parameter(torch.zeros(1, 1, config.features * config.feature_size))


class EagleHead(PairHead):
    kind = "eagle"
    config: EagleConfig

    def __init__(self, config: EagleConfig):
        super().__init__(config, config.vocab_size, [RowMask()] * config.layer.num_hidden_layers)
        self.fc = Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        for layer in self.layers if config.qkv_bias else ():
            set_qkv(layer, config.hidden_size, bias=True)
        self.layers[0].input_layernorm = None  # what it reads is made of what is normed

    def decoder(self, target: PreTrainedModel, **more: Any) -> Decoder:
        if "RMSNorm" not in type(norm := final_norm(target)).__name__:
            raise ValueError("its target's last norm is no RMS norm")
        reads = TargetStates([Norm(norm)], self.fc, None, are_keys=False, with_embeddings=True)
        return super().decoder(target, reads=reads)

    def features(self, hidden: Tensor) -> Tensor:
        """What the target's last norm makes of what its last layer gives."""
        norm = final_norm(self.target)
        return norm(hidden.to(norm.weight.dtype)).to(self.device, self.dtype)

    def stream(self, embedded: Tensor, g: Tensor) -> Tensor:
        return self.fc(torch.cat([embedded, g], -1))

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, self.output_layer(y.to(self.output_layer.weight.dtype))


class CachedEagle(CachedHead):
    """An EAGLE or EAGLE-3 head with its cache, see `CachedHead`. Row t belongs to the
    pair of the target's feature at position t and the token at position t + 1."""

    model: PairHead

    def rows(self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None) -> Tensor:
        """tokens [N] and what came before each, g [N, H], in the rows start [], start + 1, ... -> y [N, H],
        see PairHead. branches: as in LM.forward."""
        attention = self.attention_at(start, len(tokens), branches)
        return self.model(tokens, g, [attention] * len(self.decoding), self.decoding)

    def true_rows(self, tokens: Tensor, start: Tensor, masks: int = 0) -> Tensor:
        """`rows` of tokens [N], with the target's true features before them, and of so many masks after
        them."""
        hidden = self.true_features(start + torch.arange(len(tokens), device=self.device))
        if masks:
            hidden = torch.cat([hidden, self.model.mask_hidden[0].expand(masks, -1)])
            tokens = torch.cat([tokens, tokens.new_full((masks,), self.model.config.mask_token_id)])
        return self.rows(tokens, self.model.features(hidden), start)

    def begin(self, tokens: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [N], with the target's true features before them, in the rows start [], start + 1, ... ->
        what `go_on` takes, and the logits [1, V] of the token after the last one."""
        if self.native is not None:
            return self.native.stream[:1], self.native.last(self, tokens, start, from_features=True)
        return self.predict(self.true_rows(tokens, start)[-1:])

    def go_on(
        self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None
    ) -> tuple[Tensor, Tensor]:
        """A drafted token [1] and what it came from, g [1, H], in the row start [] -> what `begin` returns.
        branches: of several drafted tokens [N] with g [N, H], see LM.forward; then the logits are [N, V]."""
        native = self.native
        if native is None or not native.takes(branches):
            return self.predict(self.rows(tokens, g, start, branches))
        if branches is None:
            return native.stream[:1], native.last(self, tokens, start, from_features=False)
        logits = native(self, tokens, start, branches=branches, left=g)  # [N, Vd]
        return native.stream[: len(tokens)], self.model.for_target(logits)

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [N, H] -> what `go_on` takes as g [N, H], and the logits [N, V] of the token after each."""
        g, logits = self.model.predict(y)
        return g, self.model.for_target(logits)

    @property
    def drafts_itself(self) -> bool:
        return self.native is not None

    def draft(self, tokens: Tensor, start: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None, Tensor]:
        """Many forwards as one call, where it `drafts_itself`: as LM.draft, but beginning as `begin` does."""
        assert self.native is not None
        return self.native.draft(self, tokens, start, drawing)

    def fill(self, ids: list[int], first: int, last: int) -> None:
        tokens = to_device(ids[first + 1 : last + 1], torch.long, self.device)
        start = torch.full((), first, device=self.device)
        if self.native is None or len(tokens) > MOST_PREFILLED:
            self.true_rows(tokens, start)
        else:
            self.native.fill(self, tokens, start)

    def logits_of(self, ids: Tensor, start: int, end: int) -> Tensor:
        """Those of each pair."""
        self.grow(end)
        tokens = ids[start + 1 : end + 1].to(self.device)
        return self.predict(self.true_rows(tokens, torch.tensor(start, device=self.device)))[1]

    def logits_after_features(self) -> Tensor:
        count = TRIED_BEFORE
        self.grow(count + 1)
        token, start = torch.zeros(1, dtype=torch.long, device=self.device), torch.tensor(0)
        g, first = self.begin(token.repeat(count), start.to(self.device))
        return torch.cat([first, self.go_on(token, g, start.to(self.device) + count)[1]])


class PEagleDrafter(HeadDrafter):
    """Drafts all places of a round at once. What masks leave in the head's cache is replaced as what drafting
    leaves there."""

    head: CachedEagle

    def step(self, value: DraftInput) -> Draft:
        tokens, start, places = value.last[1:].long(), value.position[0].long(), self.depth_of(value)
        y = self.head.true_rows(tokens, start, masks=places - 1)
        return self.at_once(self.head.predict(y[-places:])[1], value)


# Compiled code begins with the target's hidden states in every row or in none, so there is none for masks.
KINDS = {
    "eagle": HeadKind(read_eagle, EagleHead, CachedEagle, EagleDrafter),
    "eagle3": HeadKind(read_eagle3, Eagle3Head, CachedEagle, EagleDrafter),
    "peagle": HeadKind(
        partial(read_eagle3, config=PEagleConfig), PEagleHead, CachedEagle, PEagleDrafter, compiles=False
    ),
}
