"""Tiny EAGLE heads for tiny targets, and what they must say, computed anew and by transformers' layers."""

import copy
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Identity
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaModel, PreTrainedModel

from specdemo.drafters.eagle import EagleConfig, EagleHead
from specdemo.runtime.lm import logits_width
from tests.heads import randomised, write_head


def tiny_eagle_head(
    target: PreTrainedModel, seed: int = 3, layers: int = 1, context: int = 256, **options
) -> EagleHead:
    """A head with random weights in the default dtype. options: of EagleConfig."""
    size = target.config.get_text_config().hidden_size
    layer = LlamaConfig(
        vocab_size=logits_width(target),
        hidden_size=size,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=context,
    )
    head = EagleHead(EagleConfig(layer, **options))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return randomised(head, seed, 1.0, None)


@torch.no_grad()
def eagle_logits(head: EagleHead, target: PreTrainedModel, text: list[int], draft: list[int]) -> Tensor:
    """The logits [K, V] from which each of these K tokens was drafted after the text, without a cache, by
    transformers' Llama and the tensors of the head's file."""
    weights = {name: value.float() for name, value in head.state_dict().items()}
    config = copy.deepcopy(head.config.layer)
    config.attention_bias = head.config.qkv_bias
    model = LlamaModel(config).float().eval()
    model.layers[0].input_layernorm = model.norm = Identity()
    for layer in model.layers:
        layer.self_attn.o_proj.bias = None
    own = {name: value for name, value in weights.items() if name.startswith("layers.")}
    left = model.load_state_dict(own, strict=False)
    assert not left.unexpected_keys and left.missing_keys == ["embed_tokens.weight"]
    known = copy.deepcopy(target)(torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=False)
    g = known.hidden_states[-1][0].float()  # [L - 1, H], after the last norm
    embeddings, output = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    tokens, rows = text[1:], []
    for token in draft:
        x = torch.cat([embeddings[tokens].float(), g], -1)  # [L - 1 + i, 2 H]
        x = linear(x, weights["fc.weight"], weights.get("fc.bias"))
        y = model(inputs_embeds=x[None]).last_hidden_state[0, -1:]  # [1, H]
        rows.append(linear(y, output.float()))
        g, tokens = torch.cat([g, y]), [*tokens, token]
    return torch.cat(rows)


def save_eagle_head(head: EagleHead, path: Path, target: PreTrainedModel, **changes) -> Path:
    """Writes a head as its authors do: with the config.json of a Llama with one layer, and with a copy of the
    target's embeddings. changes: of config.json."""
    own = head.config
    config = own.layer.to_dict() | {"architectures": ["LlamaForCausalLM"], "bias": own.fc_bias}
    if own.qkv_bias:
        config["qkv_bias"] = True
    embeddings = target.get_input_embeddings().weight.detach()
    return write_head(path, config | changes, head.state_dict() | {"embed_tokens.weight": embeddings})
