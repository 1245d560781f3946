"""Checkpoints of tiny models, and ways to change one. Tiny models with what today's publishers give them to
draft with: checkpoints that carry layers for multi-token prediction, named as theirs are, and Gemma 4's
assistants."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.small import small_config
from tests.tiny import WINDOW, random_weights, tokenizer

# What each kind's config needs besides, and where in a checkpoint the parts of its layers for MTP are.
DEEPSEEK = dict(enorm="enorm", hnorm="hnorm", eh_proj="eh_proj", post_norm="shared_head.norm")
QWEN = dict(enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", eh_proj="fc", post_norm="norm")
SLIDES_LAST = ["full_attention", "sliding_attention"]
ONE_EACH = dict(num_key_value_heads=4)
MTP_KINDS = {
    "deepseek_v3": (dict(ONE_EACH, first_k_dense_replace=1), DEEPSEEK),
    "glm4_moe": (dict(first_k_dense_replace=1), DEEPSEEK),
    "glm4_moe_lite": (dict(ONE_EACH, mlp_layer_types=["dense", "sparse"]), DEEPSEEK),
    "sarvam_moe": (dict(first_k_dense_replace=1), DEEPSEEK),
    "bailing_hybrid": (ONE_EACH, DEEPSEEK),
    "mellum": (dict(num_nextn_predict_layers=1, layer_types=SLIDES_LAST, rope_parameters=None), QWEN),
    "qwen3_next": (dict(), QWEN),
    "qwen3_5_text": (dict(), QWEN),
    "qwen3_5_moe_text": (dict(), QWEN),
}


def model_with_mtp(folder, kind: str, count: int = 1, seed: int = 0, scale: float = 2.0, **changes):
    """A tiny target, saved in this folder with so many layers for MTP, all with random weights."""
    more, names = MTP_KINDS[kind]
    target = _model(kind, seed, scale, more | changes)
    target.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed + 7)
    width = target.config.get_text_config().hidden_size
    depth = target.config.get_text_config().num_hidden_layers
    apart = names is QWEN
    for index in range(count):
        # Its last layer is of the form that layers for MTP have.
        donor = folder / f"donor-{index}"
        _model(kind, seed + 1 + index, scale, more | changes).save_pretrained(donor)
        block = f"mtp.layers.{index}." if apart else f"model.layers.{depth + index}."
        for name, tensor in load_file(donor / "model.safetensors").items():
            if name.startswith(f"model.layers.{depth - 1}."):
                tensors[block + name.removeprefix(f"model.layers.{depth - 1}.")] = tensor
        beside = "mtp." if apart else block
        for part in ("enorm", "hnorm", "post_norm"):
            tensors[f"{beside}{names[part]}.weight"] = 1 + 0.2 * torch.randn(width, generator=generator)
        projection = torch.randn(width, 2 * width, generator=generator) * scale / (2 * width) ** 0.5
        tensors[f"{beside}{names['eh_proj']}.weight"] = projection
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return target


def _model(kind: str, seed: int, scale: float, changes: dict):
    config = small_config(CONFIG_MAPPING[kind], 2)
    config = type(config)(**config.to_dict() | changes)
    torch.manual_seed(seed)
    model = random_weights(AutoModelForCausalLM.from_config(config), seed, scale).eval()
    model.generation_config.eos_token_id = None
    return model


def gemma4(layers: int = 4, shared: int = 2, seed: int = 0, **changes):
    """A tiny Gemma 4 target. Its last `shared` layers read the keys and values of earlier ones."""
    model = random_weights(Gemma4ForCausalLM(_gemma4_text(layers, shared, 32, 8, changes)), seed).eval()
    model.generation_config.eos_token_id = None
    return model


def gemma4_assistant(target, seed: int = 1, backbone: int = 32, ordered: bool = False, **changes):
    """A tiny assistant for such targets. ordered: its output layer looks at some tokens only."""
    text = _gemma4_text(2, 0, 16, 0, dict(vocab_size=target.config.vocab_size) | changes)
    config = Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=backbone,
        use_ordered_embeddings=ordered,
        num_centroids=4,
        centroid_intermediate_top_k=2,
    )
    model = random_weights(Gemma4AssistantForCausalLM(config), seed).eval()
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.arange(text.vocab_size).flip(0))
    return model


def _gemma4_text(layers: int, shared: int, width: int, per_layer: int, changes: dict):
    sizes = dict(
        vocab_size=96,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        num_kv_shared_layers=shared,
        hidden_size_per_layer_input=per_layer,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    sizes |= changes
    sizes["vocab_size_per_layer_input"] = sizes["vocab_size"] if per_layer else 0
    return Gemma4TextConfig(**sizes)


NARROW = dict.fromkeys(["depth", "num_hidden_layers", "num_layers"], 1)  # of parts for pictures
NARROW |= dict.fromkeys(["hidden_size", "intermediate_size", "out_hidden_size", "mm_embed_dim"], 32)
NARROW |= dict.fromkeys(["num_heads", "num_attention_heads", "num_key_value_heads"], 2)
NARROW |= dict(head_dim=16, global_head_dim=16, image_size=28, patch_size=14, deepstack_visual_indexes=[0])
NARROW |= dict(num_position_embeddings=16, position_embedding_size=16, mm_posemb_size=16)


def composite(kind: str):
    """A tiny model of a kind that also sees, with random weights and 304 tokens."""
    config = small_config(CONFIG_MAPPING[kind], 2)
    sees = config.vision_config or CONFIG_MAPPING[f"{kind}_vision"]()
    known = sees.to_dict()
    config.vision_config = type(sees)(**known | {name: NARROW[name] for name in NARROW if name in known})
    text = config.get_text_config()
    for name in ("vocab_size", "vocab_size_per_layer_input"):
        if hasattr(text, name):
            setattr(text, name, 304)
    text.sliding_window = WINDOW if "gemma" in kind else None
    model = random_weights(AutoModelForImageTextToText.from_config(config)).eval()
    model.generation_config.eos_token_id = None
    return model


def with_tokenizer(folder):
    """The folder, with the files of a tokenizer of 300 tokens."""
    tokenizer().save_pretrained(folder)
    return folder


def saved_in(folder: Path, model, words=None) -> Path:
    """The folder, with the files of a model and of a tokenizer."""
    model.save_pretrained(folder)
    (words or tokenizer()).save_pretrained(folder)
    return folder


def change_config(folder: Path, inside: str | None = None, **changes) -> None:
    """inside: the field of config.json that holds what is changed."""
    config = json.loads((folder / "config.json").read_text())
    (config[inside] if inside else config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def change_adapter(folder: Path, **changes) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors"
) -> None:
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def cut_in_half(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
