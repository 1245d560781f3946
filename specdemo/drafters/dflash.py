"""Heads that draft a whole block in one forward: DFlash (Chen et al. 2026, "DFlash: Block Diffusion for Flash
Speculative Decoding", arXiv 2602.06036); DSpark, which adds to it a Markov head and a confidence head; and
DFlash 2 (Z Lab and Inco AI 2026; their class `DFlash2DraftModel` in github.com/z-lab/dflash defines it), in
whose block each row is also mixed with the rows before it, and which draws the tokens of a block one after
another.

The rows of a forward are the last token of the text, the anchor, and a mask token for each place after it.
They attend to each other and to the text before the anchor, of which each layer makes its keys and values
from the target's own hidden states. The modules are named as the tensors of the speculators format. Where
keys and values lie is given from outside (`Attention`): so the same forward serves drafting by position,
which can be captured, and training on many blocks of one text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor
from torch.nn import Embedding, Linear, Module, Parameter, RMSNorm
from torch.nn.functional import embedding, pad
from transformers import PreTrainedModel

from specdemo.drafters.configs import PYDANTIC, WINDOWS, HeadConfig, HeadJson, LayerIds, Tokens, Units
from specdemo.drafters.heads import TRIED_BEFORE, CachedHead, DraftHead, HeadKind
from specdemo.drafters.model import DraftInput, HeadDrafter
from specdemo.engine.draft import Draft
from specdemo.engine.tree import Shown
from specdemo.runtime.cuda import to_device
from specdemo.runtime.decoder import Attention, Decoder, Layer, Norm, RowMask, TargetStates

WHOLE_BLOCK = RowMask(later=True)  # a row attends to the text before the anchor, and to the whole block
OWN = "dflash_config"  # where the authors keep what is not the layers'
Block = Annotated[int, Field(ge=1, le=1_000)]
Number = Annotated[float, Field(allow_inf_nan=False)]


@checked(frozen=True, config=PYDANTIC)
class DFlashConfig(HeadConfig):
    block_size: Block  # B: rows of a forward, of which the first is the anchor
    mask_token_id: int  # whose embedding, the target's, the other rows begin with
    # Of the target's layers, whose inputs it reads; see `Features`.
    layer_ids: Annotated[LayerIds, Field(alias="aux_hidden_state_layer_ids")]
    draft_vocab_size: Tokens  # Vd: the tokens that it can draft
    masks: tuple[Any, ...]  # the RowMask of each layer
    # The anchor's row, too, drafts a token: row i the one after its place.
    samples_from_anchor: bool = Field(False, alias="sample_from_anchor")
    # Of the target's raw embeddings; None, 0: as the target scales them.
    embedding_scale: Number | None = Field(1.0, alias="input_embedding_scale")
    logit_scale: Number | None = Field(1.0, alias="output_multiplier")  # None, 0: 1
    # c: logits x become c * tanh(x / c); None, 0: they are left.
    logit_cap: Number | None = Field(None, alias="final_logit_softcapping")
    markov_rank: Units | Literal[0] = 0  # r, of DSpark's Markov head; 0: it has none
    markov_type: Literal["vanilla"] = Field("vanilla", alias="markov_head_type")
    has_confidence: bool = Field(False, alias="enable_confidence_head")
    # The confidence head reads what a Markov head embeds of the token before, too.
    confidence_sees_token: bool = Field(True, alias="confidence_head_with_markov")

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"block_size must be at least 2, not {self.block_size}")
        super().__post_init__()

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        return self.layer_ids

    @property
    def places(self) -> int:
        return self.block_size - (0 if self.samples_from_anchor else 1)


@checked(frozen=True, config=PYDANTIC, kw_only=True)
class DFlash2Config(DFlashConfig):
    bounds = HeadConfig.bounds | {"taps": "block_size", "candidates": "vocab_size"}
    # Rows that a convolution reads: its own, and those before.
    taps: Block = Field(2, alias="conv_kernel_size")
    # Channels that share what a convolution adds to its weights.
    group_size: Units = Field(16, alias="conv_group_size")
    selector_rank: Units = 256  # r
    candidates: Tokens = Field(16, alias="selector_top_k")  # C: of a place, that the selector chooses from

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_vocab_size != self.vocab_size:
            both = f"{self.vocab_size:,}, not {self.draft_vocab_size:,}"
            raise ValueError(f"draft_vocab_size must be vocab_size, {both}")


def read_dflash(given: HeadJson, config: type[DFlashConfig] = DFlashConfig) -> DFlashConfig:
    """A DFlash or DSpark head's in the speculators format, or a DFlash head's in that of its authors: a class
    DFlashDraftModel, and a `dflash_config`."""
    layer, is_dspark = given.layer(), given.kind == "dspark"
    if layer.model_type != "qwen3":
        raise ValueError(f"its layers must be those of qwen3, not of {layer.model_type}")
    raw = {"sample_from_anchor": is_dspark, "enable_confidence_head": True, "markov_rank": 256} | given.raw
    known: dict[str, Any] = {"layer": layer}
    if given.is_authors:
        raw |= raw.get(OWN) or {}  # either place is used
        known["draft_vocab_size"] = layer.vocab_size
        # They call the target's module; speculators trains on its raw weight.
        raw = {"block_size": 16, "input_embedding_scale": None} | raw
    else:
        raw = {"block_size": 8, "draft_vocab_size": 32000} | raw
        known |= {"embedding_scale": 1.0, "logit_scale": 1.0, "logit_cap": None}  # keys of the authors' alone
    if not is_dspark:
        known |= {"has_confidence": False, "markov_rank": 0}
    if not is_dspark or raw["markov_rank"] == 0:
        known["markov_type"] = "vanilla"  # it says nothing
    known["masks"] = _masks(given, raw, layer)
    keys = {"layer_ids": "target_layer_ids"} if given.is_authors else {}
    read = given.read(config, raw, keys=keys, **known)
    if given.is_authors:  # who mean the outputs of their layers
        read = replace(read, layer_ids=tuple(i + 1 for i in read.layer_ids))
    return read


def read_dflash2(given: HeadJson) -> DFlashConfig:
    """A DFlash head's, with the sizes of convolutions and selector."""
    sizes = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    # The authors have no defaults.
    defaults = dict.fromkeys(sizes) if given.is_authors else {"sliding_window_non_causal": True}
    return read_dflash(replace(given, raw=defaults | given.raw), DFlash2Config)


def _masks(given: HeadJson, raw: dict[str, Any], layer: Any) -> tuple[RowMask, ...]:
    """speculators counts a window from the anchor, the authors count it from each row."""
    kinds = getattr(layer, "layer_types", None) or [WINDOWS[0]] * layer.num_hidden_layers
    whole, window = RowMask(later=True), layer.sliding_window
    if given.is_authors:
        is_causal = raw.get("is_causal")  # None: each kind of layer has another default
        whole, sliding = RowMask(later=not is_causal), RowMask(window, later=is_causal is False)
    else:
        sliding = RowMask(window, from_first=True, later=bool(raw.get("sliding_window_non_causal")))
    return tuple(whole if kind == WINDOWS[0] else sliding for kind in kinds)


class DFlashHead(DraftHead):
    kind = "dflash"
    config: DFlashConfig
    reads_context: ClassVar[bool] = True
    drafts_at_once: ClassVar[bool] = True
    norm: RMSNorm

    def __init__(self, config: DFlashConfig):
        super().__init__(config, config.draft_vocab_size, config.masks)
        self.places, self.leaves = config.places, config.block_size
        size = config.hidden_size
        self.fc = Linear(len(config.layer_ids) * size, size, bias=False)
        self.hidden_norm, self.norm = (RMSNorm(size, eps=config.layer.rms_norm_eps) for _ in range(2))
        # Where all tokens can be drafted, the target's own output layer is used.
        own = self.d2t is not None
        self.lm_head = Linear(size, config.draft_vocab_size, bias=False) if own else None
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        if config.markov_rank:
            self.kind = "dspark"
        self.confidence_head = ConfidenceHead(config) if config.has_confidence else None

    def read_by_token(self) -> tuple[int, int]:
        bias = 0 if self.markov_head is None else self.markov_head.markov_w2.weight.nbytes
        return bias, bias

    @property
    def embedding_scale(self) -> float:
        return self.config.embedding_scale or self.targets_scale

    def decoder(self, target: PreTrainedModel, **more: Any) -> Decoder:
        return super().decoder(
            target,
            embedding_scale=self.embedding_scale,
            logit_scale=self.config.logit_scale or 1.0,
            softcap=self.config.logit_cap or None,
            reads=TargetStates([], self.fc, Norm(self.hidden_norm), are_keys=True),
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
        logits = self.output_layer(hidden.to(self.output_layer.weight.dtype))
        scale, cap = self.config.logit_scale, self.config.logit_cap
        if scale and scale != 1:
            logits = logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits


class MarkovHead(Module):
    """DSpark's Markov head. It adds to the logits of a place what the token before it makes likelier, a
    product of rank r."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.markov_w1 = Embedding(config.layer.vocab_size, config.markov_rank)
        self.markov_w2 = Linear(config.markov_rank, config.draft_vocab_size, bias=False)

    def forward(self, before: Tensor) -> Tensor:
        """before [...]: the token before each place -> the bias [..., Vd]"""
        return self.markov_w2(self.markov_w1(before))


class ConfidenceHead(Module):
    """DSpark's confidence head: how probable it is that the token of a place is accepted, if those before it
    were."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.sees_token = config.confidence_sees_token and config.markov_rank > 0
        self.proj = Linear(config.hidden_size + (config.markov_rank if self.sees_token else 0), 1)

    def forward(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """hidden [..., H], and what a Markov head embeds of the token before, [..., r] -> [...], float32"""
        seen = torch.cat([hidden, before], -1) if before is not None and self.sees_token else hidden
        return self.proj(seen)[..., 0].float().sigmoid()


class Convolution(Module):
    """Mixes each row of a block with the rows before it, channel by channel: once what a layer's attention or
    MLP reads, and once what it gives. The weights of both are learned, plus what is made of each row read."""

    def __init__(self, config: DFlash2Config):
        super().__init__()
        size, self.group_size = config.hidden_size, config.group_size
        self.of_groups = 2, config.taps, size // config.group_size
        self.base_kernel = Parameter(torch.zeros(2, config.taps, size))
        self.kernel_projection = Linear(size, 2 * config.taps * self.of_groups[-1], bias=False)

    def forward(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """read [..., N, H] -> the same mixed, and the weights [..., N, taps, H] for what comes of it."""
        added = self.kernel_projection(read).unflatten(-1, self.of_groups)  # [..., N, 2, taps, groups]
        base = self.base_kernel.unflatten(-1, (-1, self.group_size))  # [2, taps, groups, group_size]
        before, after = (base + added[..., None]).flatten(-2).unbind(-3)
        return mixed(read, before), after


def mixed(x: Tensor, weights: Tensor) -> Tensor:
    """x [..., N, H] and weights [..., N, taps, H] -> [..., N, H]: of each row its own weighted, plus the rows
    before it, as far as the block has them."""
    first, *earlier = weights.unbind(-2)
    result = first * x
    for back, weight in enumerate(earlier, 1):
        result = torch.addcmul(result, weight, pad(x, (0, 0, back, 0))[..., : x.shape[-2], :])
    return result


class ConvolvedLayer(Layer):
    def __init__(self, part: Module, *how: Any):
        super().__init__(part, *how)
        self.around_attention, self.around_mlp = part.attention_conv, part.mlp_conv

    def __call__(self, x: Tensor, attention: Attention, embedded: Tensor | None = None) -> Tensor:
        assert self.before_attention is not None and self.before_mlp is not None
        read, weights = self.around_attention(self.before_attention(x))
        x = x + mixed(self.out(attention(self, self.qkv(read))), weights)
        read, weights = self.around_mlp(self.before_mlp(x))
        return x + mixed(self.down(self._gated(self.gate_up(read))), weights)


class CandidateSelector(Module):
    """Scores a place's candidates, its C likeliest tokens, by the token before: their logits, plus a product
    of rank r."""

    def __init__(self, config: DFlash2Config):
        super().__init__()
        self.count = config.candidates
        self.predecessor_codebook, self.successor_codebook = (
            Parameter(torch.zeros(config.vocab_size, config.selector_rank)) for _ in range(2)
        )
        self.hidden_projection = Linear(config.hidden_size, config.selector_rank, bias=False)

    def candidates(
        self, hidden: Tensor, logits: Tensor, of_graph: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [k, H] and logits [k, V] of the rows that draft -> gates, likeliest and ids, see `forward`.
        of_graph [k, V]: a graph's logits, whose candidates are taken: rounding may have chosen others."""
        ids = (logits if of_graph is None else of_graph).topk(self.count).indices
        return self.hidden_projection(hidden), logits.gather(-1, ids), ids

    def forward(self, before: Tensor, gates: Tensor, likeliest: Tensor, ids: Tensor) -> Tensor:
        """before [k]: the token before each place. gates [k, r]: of the places' hidden states. likeliest, ids
        [k, C]: the candidates' logits, and which they are -> the logits [k, V], -inf for all others."""
        asked = embedding(before, self.predecessor_codebook) * gates  # [k, r]
        scores = likeliest + (embedding(ids, self.successor_codebook) @ asked[..., None])[..., 0]
        return scores.new_full((len(ids), len(self.successor_codebook)), -torch.inf).scatter(-1, ids, scores)


class DFlash2Head(DFlashHead):
    kind = "dflash2"
    config: DFlash2Config
    layer_type: ClassVar[type[Layer]] = ConvolvedLayer

    def __init__(self, config: DFlash2Config):
        super().__init__(config)
        for layer in self.layers:
            layer.attention_conv, layer.mlp_conv = (Convolution(config) for _ in range(2))
        self.candidate_selector = CandidateSelector(config)

    def read_by_token(self) -> tuple[int, int]:
        """Rows of the codebooks: of the token before, and of its candidates."""
        rows = (1 + self.config.candidates) * self.config.selector_rank * self.dtype.itemsize
        selector = self.candidate_selector
        return rows, selector.predecessor_codebook.nbytes + selector.successor_codebook.nbytes

    def decoder(self, target: PreTrainedModel, **more: Any) -> Decoder:
        raise ValueError("its layers have convolutions")


class CachedDFlash(CachedHead):
    """A DFlash head with its cache, see `CachedHead`. Row t is made of the target's feature at position t.
    What a block has written to its rows is overwritten when the target's features of these positions are
    known."""

    model: DFlashHead

    def read(self, start: Tensor, count: int) -> None:
        """Makes keys and values of the target's features at `count` positions from start [] on."""
        if self.native is not None:
            return self.native.read(self, start, count)
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
        tokens, native = self.model.block_of(anchor, count), self.native
        if native is not None:
            logits = native(self, tokens, start)
            return native.stream[:count].to(self.dtype), self.model.drafting_rows(logits)
        hidden = self.model(tokens, self.attention_at(start, count), self.decoding)
        return hidden, self.model.logits(self.model.drafting_rows(hidden))

    def fill(self, ids: list[int], first: int, last: int) -> None:
        if last > first:
            self.read(to_device(first, torch.long, self.device), last - first)

    def logits_of(self, ids: Tensor, start: int, end: int) -> Tensor:
        """Those of the block after these rows."""
        size = self.model.config.block_size
        self.grow(end + size)
        self.fill([], start, end)
        anchor = ids[end : end + 1].to(self.device)
        return self.model.for_target(self.block(anchor, torch.tensor(end, device=self.device), size)[1])

    def logits_after_features(self) -> Tensor:
        size = self.model.config.block_size
        before = int(min(TRIED_BEFORE, self.context - size))
        if before < 1:
            raise ValueError("its context is no longer than a block")
        return self.logits_of(torch.zeros(before + 1, dtype=torch.long), 0, before)


class DFlashDrafter(HeadDrafter):
    """Drafts all places of a round at once, at most as many as its block has.

    q of a place does not depend on the tokens drafted before it, except through a Markov head (DSpark), and
    through a penalty of the sampler's. Beyond the head's own context nothing is drafted."""

    head: CachedDFlash

    def longest(self, ids: list[int]) -> float:
        return min(self.head.context - len(ids), self.places)

    def step(self, value: DraftInput) -> Draft:
        head, model = self.head, self.head.model
        start, last = value.position[0].long(), value.last.long()
        new = len(last) - 1
        if new:
            head.read(start, new)
        anchor, count = last[-1:], self.depth_of(value) + 1 - model.config.samples_from_anchor
        hidden, logits = head.block(anchor, start + new, count)
        draft = self.drafted(value, anchor, hidden, logits)
        if model.confidence_head is None or self.tree is not None:
            return draft
        before, rows = torch.cat([anchor, draft.ids])[:-1], model.drafting_rows(hidden)
        sees = None if model.markov_head is None else model.markov_head.markov_w1(before)
        return replace(draft, sure=model.confidence_head(rows[: len(before)], sees))

    def drafted(self, value: DraftInput, anchor: Tensor, hidden: Tensor, logits: Tensor) -> Draft:
        """The draft of a block. anchor [1]: the text's last token. hidden [N, H]: the hidden states of all
        rows. logits [k, Vd]: of those that draft."""
        model, markov = self.head.model, self.head.model.markov_head
        if markov is None:
            return self.at_once(model.for_target(logits), value)
        places = iter(logits.split(1))

        def predict(shown: Shown | None) -> Tensor:
            tokens = anchor if shown is None else shown.tokens
            return model.for_target(next(places) + markov(tokens))

        return self.in_shape(predict, value)


class DFlash2Drafter(DFlashDrafter):
    """A DFlashDrafter whose q of a place depends on the token drafted before it, and is 0 but for the place's
    candidates."""

    def drafted(self, value: DraftInput, anchor: Tensor, hidden: Tensor, logits: Tensor) -> Draft:
        model = self.head.model
        assert isinstance(model, DFlash2Head)
        selector = model.candidate_selector
        of_graph, shape = value.of_graph, self.shape_of(value)
        if of_graph is not None and shape is not None:  # all rows of a place have the same candidates
            of_graph = torch.stack([rows[0] for rows in of_graph.split(shape.shown)])
        parts = selector.candidates(model.drafting_rows(hidden), logits, of_graph)
        places = zip(*(part.split(1) for part in parts), strict=True)

        def predict(shown: Shown | None) -> Tensor:
            before = anchor if shown is None else shown.tokens
            return selector(before, *(part.expand(len(before), -1) for part in next(places)))

        return self.in_shape(predict, value)


KINDS = {
    "dflash": HeadKind(read_dflash, DFlashHead, CachedDFlash, DFlashDrafter),
    "dspark": HeadKind(read_dflash, DFlashHead, CachedDFlash, DFlashDrafter),
    "dflash2": HeadKind(read_dflash2, DFlash2Head, CachedDFlash, DFlash2Drafter),
}
