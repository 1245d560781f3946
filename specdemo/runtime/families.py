"""Reads what a decoder is off transformers' models of the Llama family."""

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.runtime.decoder import Decoder, Heads, Layer, Norm, Rotation, RowMask

# The classes of transformers that are built like this: RMS norms, rotary positions, a gated MLP, and causal
# attention; and which of their layers have a sliding window. A class that is not here is run by
# transformers' own forward.
FAMILY = {
    "Gemma2ForCausalLM": "by layer_types",
    "Gemma3ForCausalLM": "by layer_types",
    "LlamaForCausalLM": "none",
    "MistralForCausalLM": "all layers",
    "Olmo2ForCausalLM": "none",
    "Phi3ForCausalLM": "all layers",
    "Qwen2ForCausalLM": "by layer_types",
    "Qwen3ForCausalLM": "by layer_types",
    "SmolLM3ForCausalLM": "by layer_types",
}


def is_of_family(model: Module) -> bool:
    own = type(model).__module__.startswith("transformers.models.")
    return own and type(model).__name__ in FAMILY


def layers_of_family(model: PreTrainedModel, kernels: object = None) -> list[Layer]:
    """The decoder layers of a model of the family. kernels: see Layer."""
    return [
        Layer(part, _heads(part.self_attn, window, rotation), _activation(model), kernels)
        for part, window, rotation in zip(model.model.layers, _windows(model), _rotations(model), strict=True)
    ]


def decoder_of_family(model: PreTrainedModel, layers: list[Layer], last_position: float) -> Decoder:
    """A model of the family as a Decoder, with its embeddings, norms and output layer as they are now.
    last_position: see `rotations_up_to`."""
    embed, float32 = model.model.embed_tokens, torch.zeros(1, dtype=torch.float32)
    return Decoder(
        model.dtype,
        embed,
        layers,
        Norm(model.model.norm),
        model.lm_head,
        lambda positions: rotations_up_to(positions, last_position, model, float32, layers),
        embedding_scale=embedding_scale(embed),
        softcap=softcap_of(model),
    )


def embedding_scale(embed: Module) -> float:
    """What a model multiplies its embeddings by when it looks them up: Gemma by the root of their width."""
    scale = torch.as_tensor(getattr(embed, "embed_scale", 1.0), dtype=torch.float32)
    return float(scale.to(embed.weight.dtype))


def softcap_of(model: PreTrainedModel) -> float | None:
    """The cap of the model's logits; None if they have none."""
    return getattr(model.config, "final_logit_softcapping", None)


def _heads(attention: Module, window: int | None, rotation: str | None) -> Heads:
    config = attention.config
    return Heads(
        attention.layer_idx,
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        attention.scaling,
        RowMask(window),
        getattr(attention, "attn_logit_softcapping", None),
        rotation,
        bool(getattr(attention, "use_rope", True)),
    )


def _activation(model: PreTrainedModel) -> str:
    return getattr(model.config, "hidden_activation", None) or model.config.hidden_act


def _windows(model: PreTrainedModel) -> list[int | None]:
    """The width of each layer's sliding window, as the model's own forward decides it."""
    count = len(model.model.layers)
    match FAMILY[type(model).__name__]:
        case "none":
            return [None] * count
        case "all layers":
            return [model.config.sliding_window] * count
    window, types = model.config.sliding_window, model.config.layer_types[:count]
    return [window if kind == "sliding_attention" else None for kind in types]


def _rotations(model: PreTrainedModel) -> list[str | None]:
    """The argument for each layer by which a model with several rotary embeddings chooses among them."""
    count, several = len(model.model.layers), type(model).__name__ == "Gemma3ForCausalLM"
    return model.config.layer_types[:count] if several else [None] * count


def rotations(
    model: PreTrainedModel, x: Tensor, positions: Tensor, layers: list[Layer]
) -> dict[str | None, Rotation]:
    """Rotary position embeddings (Su et al. 2021) of tokens at positions [N], in the dtype of x."""
    found = {}
    for name in dict.fromkeys(layer.attends.rotation for layer in layers):
        named = () if name is None else (name,)
        cos, sin = model.model.rotary_emb(x, positions[None], *named)  # [1, N, r]
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        found[name] = cos[0, :, None], sin[0, :, None]
    return found


def rotations_up_to(
    positions: Tensor, last_position: float, model: PreTrainedModel, x: Tensor, layers: list[Layer]
) -> dict[str | None, Rotation]:
    """The rotations at all positions of a cache, [C, 1, r]. They hold for texts of any length, since a text
    ends where they would depend on it (see `context_of`). Rows that only fill a captured step may lie beyond
    the model's last position."""
    positions = positions.clamp(max=last_position)
    # A short forward brings "dynamic" frequencies back that a longer text of the model's owner has left.
    rotations(model, x, positions[:1], layers)
    return rotations(model, x, positions, layers)
