"""Layers for multi-token prediction (MTP) that a checkpoint carries beside the model's own (DeepSeek-AI 2024,
"DeepSeek-V3 Technical Report", section 2.2; Gloeckle et al. 2024, "Better & Faster Large Language Models via
Multi-token Prediction").

For the target's position t, layer k (from 0) reads what layer k - 1 has made of t (the first layer: the
target's last hidden state there) and the token at position t + 1 + k, and predicts the token after that. The
embeddings and the output layer are the target's. transformers builds the layers (`MtpModel`); here they get a
cache that is written by position."""

import copy
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

try:
    from transformers.modeling_layers import MtpModel
except ImportError:
    MtpModel = None
if not hasattr(MtpModel, "forward_layer"):  # that of transformers 5.17 has not, that of 5.24 has
    MtpModel = None

from specdemo.runtime.cache import CachedByPosition, Features, PositionalCache, PositionalLayer
from specdemo.runtime.device import to_device
from specdemo.runtime.lm import context_of, embedded_ids, final_norm

MTP_PREFILL_CHUNK = 512  # rows per forward


def as_mtp_owner(target: PreTrainedModel, count: int, **more: object) -> SimpleNamespace:
    """What `MtpModel` asks of a target that has so many layers for MTP. The target's own config stays as it
    is. more: further attributes."""
    config = copy.deepcopy(target.config.get_text_config())
    config.num_mtp_layers = count
    for name, default in (("layer_types", "full_attention"), ("mlp_layer_types", None)):
        own = getattr(config, name, None)
        if own is not None and getattr(config, f"mtp_{name}", None) is None:
            setattr(config, f"mtp_{name}", [default or own[-1]] * count)
    return SimpleNamespace(
        config=config,
        get_decoder=target.get_decoder,
        get_input_embeddings=target.get_input_embeddings,
        lm_head=target.get_output_embeddings(),
        **more,
    )


def own_parameters(layers: PreTrainedModel, target: PreTrainedModel) -> dict[str, Parameter]:
    """The layers' parameters that are not the target's, by name."""
    shared = {id(parameter) for parameter in target.parameters()}
    return {name: one for name, one in layers.named_parameters() if id(one) not in shared}


def own_modules(layers: PreTrainedModel) -> list[Module]:
    """The layers' modules that are not the target's."""
    shared = [layers.shared_post_norm] if layers.use_shared_post_norm else []
    return [layers.layers, *shared]


def follow_target(layers: PreTrainedModel, target: PreTrainedModel) -> None:
    """Moves and casts the layers as the owner of a target in memory has done with the target."""
    weight, device = layers.layers[0].eh_proj.weight, target.get_input_embeddings().weight.device
    if (weight.device, weight.dtype) != (device, target.dtype):
        for module in own_modules(layers):
            module.to(device, target.dtype)


def mtp_cache_layers(layers: PreTrainedModel, lm: "CachedMtp | None") -> list[PositionalLayer]:
    """A layer of the cache for each of the layers. ValueError where one keeps more than keys and values."""
    kinds = {type(layer) for layer in DynamicCache(config=layers.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"they have a cache of the type {names}, which cannot be written by position")
    return [PositionalLayer(lm) for _ in layers.layers]


class CachedMtp(CachedByPosition):
    """The layers with their own keys and values, and with the last hidden states of their target.

    A layer's slot t in the cache belongs to the target's position t. Slots after the last one that was
    written are left over from rejected drafts, or empty, and never attended to."""

    is_captured = False
    reads: Features

    def __init__(self, layers: PreTrainedModel, target: PreTrainedModel):
        self.model = layers
        self.target = target
        self.device = torch.device(target.get_input_embeddings().weight.device)
        self.dtype = target.dtype
        self.count: int = len(layers.layers)  # L
        self.context = context_of(target)
        depth = target.config.get_text_config().num_hidden_layers
        self.reads = Features(target, (depth,))
        self.norm = final_norm(target)
        self.known_ids = embedded_ids(target)
        self.cache = PositionalCache(self, mtp_cache_layers(layers, self))
        self.grow(1)

    def hidden(self, start: int, end: int) -> Tensor:
        """The target's last hidden states at its positions from `start` to before `end`: [N, H]."""
        states = self.reads.at(torch.arange(start, end, device=self.device))
        return self.norm(states)

    def forward(self, layer: int, tokens: Tensor, hidden: Tensor, slot: int, position: int) -> Tensor:
        """tokens [N] at `position`, position + 1, ..., and what came before each, hidden [N, H]; their keys
        and values go to the layer's slots from `slot` on. Returns what the next layer reads, [N, H]."""
        n = len(tokens)
        self.key_positions = self.all_positions[: slot + n]
        self.write_at(slot, n)
        at = torch.arange(position, position + n, device=self.device)
        tokens = tokens.clamp(max=self.known_ids - 1)
        return self.model.forward_layer(layer, hidden[None], at[None], self.cache, input_ids=tokens[None])[0]

    def predict(self, hidden: Tensor) -> Tensor:
        """What a layer returned, [N, H] -> the logits [N, V] of the token after each."""
        return self.model._project_to_logits(hidden)

    def prefill(self, ids: list[int], start: int, end: int, used: int, is_over: Callable[[], bool]) -> None:
        """Fills the slots from `start` to before `end` of the first `used` layers. ids: the text, with the
        tokens up to position end - 1 + used. is_over: as in LM.prefill."""
        for first in range(start, end, MTP_PREFILL_CHUNK):
            if is_over():
                return
            last = min(first + MTP_PREFILL_CHUNK, end)
            self.grow(last)
            hidden = self.hidden(first, last)
            for layer in range(used):
                position = first + 1 + layer
                tokens = to_device(ids[position : last + 1 + layer], torch.long, self.device)
                hidden = self.forward(layer, tokens, hidden, first, position)
