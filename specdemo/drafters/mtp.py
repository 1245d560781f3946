"""Layers for multi-token prediction (MTP) that a checkpoint carries beside the model's own, and that draft
(DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2; Gloeckle et al. 2024, "Better & Faster Large
Language Models via Multi-token Prediction").

For the target's position t, the first layer reads the target's last hidden state there and the token at
position t + 1, and predicts the token after that. It drafts as an EAGLE head does: what it has made of t then
stands for the next hidden state. Further layers are not read. The embeddings and the output layer are the
target's. transformers builds the layer (`MtpModel`), but leaves it out when it loads the model; here it is
read, and gets a cache that is written by position."""

import copy
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

try:
    from transformers.modeling_layers import MtpModel
except ImportError:
    MtpModel = None
if not hasattr(MtpModel, "forward_layer"):  # that of transformers 5.17 has not, that of 5.24 has
    MtpModel = None

from specdemo.drafters.base import Drafting, PairModels, agrees_with_target, by_rows, why_not_used
from specdemo.drafters.heads import FeatureCache
from specdemo.drafters.model import EagleDrafter, Fed
from specdemo.errors import is_out_of_memory, reason_of, without_directories
from specdemo.events import Params
from specdemo.events.speedup import DraftingCost
from specdemo.runtime import cuda
from specdemo.runtime.attention import Branches
from specdemo.runtime.cache import Features, PositionalCache, PositionalLayer
from specdemo.runtime.cuda import to_device
from specdemo.runtime.linear import join_weights, use_skinny_linear
from specdemo.runtime.lm import CachedLM, OfTarget, context_of, embedded_ids, final_norm
from specdemo.runtime.weights import (
    expert_weights,
    few_bits,
    held_bytes,
    is_scale,
    stored_tensors,
    weight_bytes,
)

NONE = "its target's checkpoint has no layers for multi-token prediction"
IN_MEMORY = "its target was given in memory, which has no layers for MTP: load it by its directory"
UNUSABLE = "its target's layers for multi-token prediction cannot be used"
# Kinds of which transformers knows no such layers: checkpoints of Qwen's have one as Mellum's do, those of
# the other have them as DeepSeek-V3's do.
KINDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "glm4_moe_lite")
MOST_MTP_LAYERS = 16
NAMED = re.compile(r"(^|\.)mtp(_\w+)?\.")


def as_mtp_owner(target: PreTrainedModel, **more: object) -> SimpleNamespace:
    """What `MtpModel` asks of a target that has one layer for MTP. The target's own config stays as it is.
    more: further attributes."""
    config = copy.deepcopy(target.config.get_text_config())
    config.num_mtp_layers = 1
    for name, default in (("layer_types", "full_attention"), ("mlp_layer_types", None)):
        own = getattr(config, name, None)
        if own is not None and getattr(config, f"mtp_{name}", None) is None:
            setattr(config, f"mtp_{name}", [default or own[-1]])
    return SimpleNamespace(
        config=config,
        get_decoder=target.get_decoder,
        get_input_embeddings=target.get_input_embeddings,
        lm_head=target.get_output_embeddings(),
        **more,
    )


def own_modules(layers: PreTrainedModel) -> list[Module]:
    """The layers' modules that are not the target's."""
    shared = [layers.shared_post_norm] if layers.use_shared_post_norm else []
    return [layers.layers, *shared]


def _read(target: PreTrainedModel, folder: Path, quantised_here: bool) -> PreTrainedModel | str:
    stored = stored_tensors(folder)
    names = set(stored)
    prefixes, kind = _prefixes(names, target), target.config.get_text_config().model_type
    if not prefixes and not any(NAMED.search(name) for name in names):
        return NONE
    if MtpModel is None:
        raise ValueError("this version of transformers cannot run them, and 5.24 can")
    is_known = kind in KINDS or hasattr(target.config.get_text_config(), "num_mtp_layers")
    if not prefixes or not is_known:
        raise ValueError(f"how those of {kind} compute is not known here")
    patterns = [NAMED.pattern, *(rf"(^|\.){re.escape(prefix)}" for prefix in prefixes)]
    theirs = {name: stored[name] for name in names if any(re.search(one, name) for one in patterns)}
    is_quantised = getattr(target.config, "quantization_config", None) and not quantised_here
    if is_quantised or few_bits(theirs) or any(map(is_scale, theirs)):
        raise ValueError("its weights are quantised")
    from transformers.conversion_mapping import get_model_conversion_mapping

    owner = as_mtp_owner(
        target,
        _keys_to_ignore_on_load_unexpected=patterns,
        _weight_conversions=get_model_conversion_mapping(target),
    )
    owner.config.name_or_path, owner.config.dtype = str(folder), target.dtype
    device = target.get_input_embeddings().weight.device
    cuda.free_cache(device)  # while another thread captures, torch frees nothing to make room
    layers = MtpModel.from_pretrained(owner, device_map={"": str(device)}).eval()
    mtp_cache_layers(layers, None)
    if type(layers.layers[0].enorm) is not type(final_norm(target)):
        raise ValueError(f"how those of {kind} are normed is not known here")
    for module in own_modules(layers):
        module.requires_grad_(False)
        join_weights(module)
        if device.type == "cpu" and target.dtype == torch.float32:
            use_skinny_linear(module)
    return layers


def _prefixes(names: set[str], model: PreTrainedModel) -> list[str]:
    """How the names of each layer's tensors begin, behind what the whole model is called."""
    depth = model.config.get_text_config().num_hidden_layers
    behind = [f"layers.{index}." for index in range(depth, depth + MOST_MTP_LAYERS)]
    apart = [f"mtp.layers.{index}." for index in range(MOST_MTP_LAYERS)]
    found = {prefix for prefix in (*behind, *apart) for name in names if f".{prefix}" in f".{name}"}
    return [prefix for prefix in behind if prefix in found] or [prefix for prefix in apart if prefix in found]


def mtp_cache_layers(layers: PreTrainedModel, lm: "CachedMtp | None") -> list[PositionalLayer]:
    """A layer of the cache for each of the layers. ValueError where one keeps more than keys and values."""
    kinds = {type(layer) for layer in DynamicCache(config=layers.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"they have a cache of the type {names}, which cannot be written by position")
    return [PositionalLayer(lm) for _ in layers.layers]


class CachedMtp(FeatureCache):
    """The first layer with its own keys and values, and with the last hidden states of its target.

    Slot t of the cache belongs to the target's position t. Slots after the last one that was written are left
    over from rejected drafts, or empty, and never attended to."""

    is_captured = drafts_itself = False

    def __init__(self, layers: PreTrainedModel, target: PreTrainedModel):
        self.model = layers
        self.target = target
        self.device = torch.device(target.get_input_embeddings().weight.device)
        self.dtype = target.dtype
        self.context = context_of(target)
        depth = target.config.get_text_config().num_hidden_layers
        self.reads = Features(target, (depth,))
        self.norm = final_norm(target)
        self.known_ids = embedded_ids(target)
        self.cache = PositionalCache(self, mtp_cache_layers(layers, self))
        self.slot = 0  # of the next forward's first token; the layer needs it on the host
        self.grow(1)

    def hidden(self, start: int, end: int) -> Tensor:
        """The target's last hidden states at its positions from `start` to before `end`: [N, H]."""
        states = self.reads.at(torch.arange(start, end, device=self.device))
        return self.norm(states)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """tokens [N] and what came before each, hidden [N, H]; their keys and values go to the slots from
        `slot` on. Returns what stands for the hidden states at the tokens, [N, H]; see `predict`."""
        slot, n = self.slot, len(tokens)
        self.slot += n
        self.key_positions = self.all_positions[: slot + n]
        at = self.write_at(slot, n) + 1
        tokens = tokens.clamp(max=self.known_ids - 1)
        return self.model.forward_layer(0, hidden[None], at[None], self.cache, input_ids=tokens[None])[0]

    def predict(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """As CachedEagle.predict does: hidden [N, H] and the logits [N, V] of the token after each."""
        return hidden, self.model._project_to_logits(hidden)

    def begin(self, tokens: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """As CachedEagle.begin does, from `slot` on."""
        hidden = self.hidden(self.slot, self.slot + len(tokens))
        return self.predict(self.forward(tokens, hidden)[-1:])

    def go_on(
        self, tokens: Tensor, g: Tensor, start: Tensor, branches: Branches | None = None
    ) -> tuple[Tensor, Tensor]:
        """As CachedEagle.go_on does, from `slot` on."""
        return self.predict(self.forward(tokens, g))

    def fill(self, ids: list[int], first: int, last: int) -> None:
        self.slot = first
        self.forward(to_device(ids[first + 1 : last + 1], torch.long, self.device), self.hidden(first, last))

    def logits_of(self, ids: Tensor, start: int, end: int) -> Tensor:
        self.grow(end)
        self.slot = start
        tokens = ids[start + 1 : end + 1].to(self.device)
        return self.predict(self.forward(tokens, self.hidden(start, end)))[1]


class MtpDrafter(EagleDrafter):
    """Drafts as by an EAGLE head. Its step is never captured: it begins at a slot that it is told here."""

    places = torch.inf

    def begin(self, ids: list[int], rows: int) -> Fed:
        fed = super().begin(ids, rows)
        self.head.slot = fed.start
        return fed


class MtpDrafting(Drafting):
    def read_carried(
        self, target: PreTrainedModel, folder: Path | None, quantised_here: bool = False
    ) -> PreTrainedModel | str:
        """The layers that the target's checkpoint carries beside its own, on the target's device and in its
        dtype; or, in a part of a sentence, why none can be used. folder: the checkpoint; None of a target in
        memory. quantised_here: whether the target was quantised when it was loaded. Raises what says that
        there is not enough memory; nothing else keeps the target from running."""
        try:
            return IN_MEMORY if folder is None else _read(target, folder, quantised_here)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"{UNUSABLE}: {without_directories(reason_of(error))}"

    def tried(self, layers: PreTrainedModel, target: PreTrainedModel) -> PreTrainedModel | str:
        """The layers, or why they cannot be used. Raises as `why_not_used` does."""
        why = why_not_used("their", partial(_fault, layers, target))
        return f"{UNUSABLE}: {why}" if why else layers

    def lacks(self, pair: PairModels) -> str | None:
        return pair.carried if isinstance(pair.carried, str) else None

    def own(self, pair: PairModels, params: Params) -> OfTarget:
        return OfTarget("mtp", lambda owner: CachedMtp(pair.carried, owner.model))

    def cost(self, pair: PairModels, params: Params) -> DraftingCost:
        target, layers = pair.target, pair.carried
        own, output = held_bytes(target, layers) - held_bytes(target), target.get_output_embeddings()
        assert output is not None
        return DraftingCost(
            token=(own - expert_weights(layers).unread + held_bytes(output)) / weight_bytes(target)
        )


def _fault(layers: PreTrainedModel, target: PreTrainedModel) -> str | None:
    """What is wrong with the layers: that they predict something else with a cache that is written by
    position, also where rejected drafts were, than without one, or are not given the target's last hidden
    states."""

    def compare(_: CachedLM, whole: CachedMtp, cached: CachedMtp, ids: Tensor) -> list:
        n = len(ids) - 1
        last = target.get_decoder()(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0]
        return [(last, cached.hidden(0, n)), by_rows(whole, cached, ids, n)]

    make = partial(CachedMtp, layers, target)
    agree = agrees_with_target(target, make, compare, torch.inf, target.dtype, mostly=True)
    return None if agree else "what they predict with a cache differs from what they predict without one"
