"""Reads the layers for multi-token prediction (MTP) that a target's checkpoint carries beside the layers of
the model itself, which transformers leaves out when it loads the model."""

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specdemo.drafters.mtp.layers import (
    MtpModel,
    as_mtp_owner,
    mtp_cache_layers,
    own_modules,
    own_parameters,
)
from specdemo.errors import in_short, is_out_of_memory, without_directories
from specdemo.runtime import cuda
from specdemo.runtime.files import few_bits, is_scale, stored_tensors
from specdemo.runtime.linear import join_weights, use_skinny_linear
from specdemo.runtime.lm import final_norm

NONE = "its target's checkpoint has no layers for multi-token prediction"
UNUSABLE = "its target's layers for multi-token prediction cannot be used"
# Kinds that transformers knows no such layers of, and whose checkpoints have one as Mellum's do; and the
# setting that counts it.
QWEN = dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), "mtp_num_hidden_layers")
# Kinds that transformers knows no such layers of, either, and whose checkpoints have them as DeepSeek-V3's
# do; and the setting that counts them.
LIKE_DEEPSEEK = dict.fromkeys(("glm4_moe_lite",), "num_nextn_predict_layers")
MOST_MTP_LAYERS = 16
NAMED = re.compile(r"(^|\.)mtp(_\w+)?\.")


def mtp_parameters(skeleton: PreTrainedModel, folder: Path | None) -> int:
    """How many parameters the layers have that are loaded with the target. folder: the checkpoint; None
    before it is on this machine, when the target's config says how many layers there are."""
    count = _declared(skeleton)
    try:
        if folder is not None:
            names = set(stored_tensors(folder))
            count = 0 if count is None else len(_prefixes(names, skeleton))
        if not count or MtpModel is None or count > MOST_MTP_LAYERS:
            return 0
        with torch.device("meta"):
            layers = MtpModel(as_mtp_owner(skeleton, count), count)
        return sum(one.numel() for one in own_parameters(layers, skeleton).values())
    except Exception:  # what is wrong is told when they are read
        return 0


def read_mtp(
    target: PreTrainedModel, folder: Path | None, quantised_here: bool = False
) -> PreTrainedModel | str:
    """The layers on the target's device, in its dtype; or, in a part of a sentence, why there are none. See
    `Way.read`.

    Raises what says that there is not enough memory. Nothing else keeps the target from running."""
    if folder is None:
        return NONE
    try:
        return _read(target, folder, quantised_here)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = without_directories(in_short(error))
        return f"{UNUSABLE}: {reason}"


def _read(target: PreTrainedModel, folder: Path, quantised_here: bool) -> PreTrainedModel | str:
    stored = stored_tensors(folder)
    names = set(stored)
    prefixes, kind = _prefixes(names, target), target.config.get_text_config().model_type
    if not prefixes and not any(NAMED.search(name) for name in names):
        return NONE
    if MtpModel is None:
        raise ValueError("this version of transformers cannot run them, and 5.24 can")
    if not prefixes or _declared(target) is None:
        raise ValueError(f"how those of {kind} compute is not known here")
    theirs = {name: stored[name] for name in names if NAMED.search(name) or _layers_of(name, prefixes)}
    is_quantised = getattr(target.config, "quantization_config", None) and not quantised_here
    if is_quantised or few_bits(theirs) or any(map(is_scale, theirs)):
        raise ValueError("its weights are quantised")
    if kind in QWEN and len(prefixes) > 1:
        raise ValueError(f"there are {len(prefixes)} of them, and of {kind} only one can be run")
    patterns = [rf"(^|\.){re.escape(prefix)}" for prefix in prefixes]
    if any(NAMED.search(name) for name in names):
        patterns.append(NAMED.pattern)
    from transformers.conversion_mapping import get_model_conversion_mapping

    owner = as_mtp_owner(
        target,
        len(prefixes),
        _keys_to_ignore_on_load_unexpected=patterns,
        _weight_conversions=get_model_conversion_mapping(target),
    )
    owner.config.name_or_path, owner.config.dtype = str(folder), target.dtype
    device = target.get_input_embeddings().weight.device
    cuda.free_cache(device)  # while another thread captures, torch frees nothing to make room
    try:
        layers = MtpModel.from_pretrained(owner, device_map={"": str(device)}).eval()
    except RuntimeError as error:
        raise _in_our_words(error) from None
    mtp_cache_layers(layers, None)
    if type(layers.layers[0].enorm) is not type(final_norm(target)):
        raise ValueError(f"how those of {kind} are normed is not known here")
    for module in own_modules(layers):
        module.requires_grad_(False)
        join_weights(module)
        if device.type == "cpu" and target.dtype == torch.float32:
            use_skinny_linear(module)
    return layers


def _in_our_words(error: RuntimeError) -> Exception:
    """An error of MtpModel's in our words, since its own are about its options."""
    if "mismatch" in str(error):
        return ValueError("their tensors have other shapes than the model's config asks for")
    if missing := re.findall(r"'(\w+\.[\w.]+)'", str(error)):
        return ValueError(f"{len(missing)} of their tensors are missing, first {missing[0]}")
    return error


def _declared(model: PreTrainedModel) -> int | None:
    """How many layers for MTP a model's config names; None for a kind whose layers are not known here."""
    config = model.config.get_text_config()
    setting = (QWEN | LIKE_DEEPSEEK).get(config.model_type)
    if setting is None and not hasattr(config, "num_mtp_layers"):
        return None
    value = getattr(config, setting or "num_mtp_layers", 1)
    return value if type(value) is int else 0


def _prefixes(names: set[str], model: PreTrainedModel) -> list[str]:
    """How the names of each layer's tensors begin, behind what the whole model is called."""
    depth = model.config.get_text_config().num_hidden_layers
    behind = [f"layers.{index}." for index in range(depth, depth + MOST_MTP_LAYERS)]
    apart = [f"mtp.layers.{index}." for index in range(MOST_MTP_LAYERS)]
    found = {prefix for name in names for prefix in _layers_of(name, [*behind, *apart])}
    return [prefix for prefix in behind if prefix in found] or [prefix for prefix in apart if prefix in found]


def _layers_of(name: str, prefixes: Iterable[str]) -> list[str]:
    """The layers' prefixes that a tensor's name has."""
    return [prefix for prefix in prefixes if f".{prefix}" in f".{name}"]
