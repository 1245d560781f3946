"""Tiny Medusa heads for tiny targets, and what they must say, computed anew from their tensors."""

import copy
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.drafters.medusa.head import MedusaConfig, MedusaHead
from specdemo.runtime.lm import logits_width
from tests.heads import randomised, write_head


def tiny_medusa_head(target: PreTrainedModel, seed: int = 3, heads: int = 4, **options) -> MedusaHead:
    """Heads with random weights in the default dtype. options: of MedusaConfig."""
    size = target.config.get_text_config().hidden_size
    config = MedusaConfig(logits_width(target), size, heads, **options)
    head = MedusaHead(config, torch.get_default_dtype())
    with torch.no_grad():
        for block in head.blocks:
            for layer in block["layers"]:
                if config.bias:
                    layer.bias.zero_()
    return randomised(head, seed, 2.0, None)


@torch.no_grad()
def medusa_logits(head: MedusaHead, target: PreTrainedModel, text: list[int], draft: list[int]) -> Tensor:
    """The logits [K, V] from which each of these K tokens was drafted after the text."""
    weights = {name: value.double() for name, value in head.state_dict().items()}
    known = copy.deepcopy(target)(torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=False)
    hidden, rows = known.hidden_states[-1][0, -1].double(), []  # [H], after the last norm
    for place in range(len(draft)):
        x = hidden
        for layer in range(head.config.layers):
            name = f"blocks.{place}.layers.{layer}"
            y = weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0)
            x = x + y * y.sigmoid()
        rows.append(weights[f"lm_heads.{0 if head.config.shares_output else place}.weight"] @ x)
    return torch.stack(rows)


def save_medusa_head(head: MedusaHead, path: Path, **changes) -> Path:
    """Writes heads as vLLM reads them. changes: of config.json."""
    own = head.config
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "vocab_size": own.vocab_size,
        "truncated_vocab_size": own.vocab_size,
        "hidden_size": own.hidden_size,
        "num_heads": own.heads,
        "num_hidden_layers": own.layers,
        "medusa_fc_bias": own.bias,
        "original_lm_head": own.shares_output,
    }
    return write_head(path, config | changes, head.state_dict())


def save_authors_medusa_head(head: MedusaHead, path: Path, target: Path | str, **changes) -> Path:
    """Writes heads as their authors do, in safetensors. changes: of config.json."""
    own, tensors = head.config, {}
    for name, value in head.state_dict().items():
        match name.split("."):
            case "blocks", place, "layers", layer, what:
                tensors[f"{place}.{layer}.linear.{what}"] = value
            case "lm_heads", place, what:
                tensors[f"{place}.{own.layers}.{what}"] = value
    config = {"medusa_num_heads": own.heads, "medusa_num_layers": own.layers}
    write_head(path, config | {"base_model_name_or_path": str(target)} | changes, tensors)
    return (path / "model.safetensors").rename(path / "medusa_lm_head.safetensors").parent
