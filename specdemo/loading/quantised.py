"""Checkpoints whose weights are stored in few bits: which of them would be loaded without their scales, as
noise. transformers converts such weights to the dtype that is asked for, whatever they mean."""

import re
from collections.abc import Collection, Mapping

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from specdemo.errors import LoadError

KNOWN_METHOD = "that this version of transformers knows"
INSTEAD = "choose a checkpoint in bfloat16, float16 or float32"
# Of activations, and of keys and values in a cache, which are not quantised here.
NOT_OF_WEIGHTS = re.compile(r"(input|output|act\w*|[qkv]|kv)_scales?|scale_(input|output)")


def has_method(config: PreTrainedConfig) -> bool:
    """Whether transformers scales the weights by a method that the config names. ValueError for a method that
    it does not know: it would ignore it."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        given = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if not isinstance(given, Mapping):
        return given is not None
    method = given.get("quant_method")
    if given.get("load_in_8bit") or given.get("load_in_4bit"):
        method = "bitsandbytes_4bit"  # transformers looks at these first
    if not isinstance(method, str) or method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ValueError(f"its quant_method must be one {KNOWN_METHOD}, not {ascii(method)[:60]}")
    return True


def few_bits(tensors: Mapping[str, str]) -> str | None:
    """The first weight that has a meaning only together with a scale. tensors: see `fetch.stored_tensors`."""
    for name, dtype in sorted(tensors.items()):
        is_weight = name.endswith(("weight", "_proj"))  # masks are stored in integers, too
        if re.match("F[468](_|$)", dtype) or (is_weight and dtype in ("I8", "U8")):
            return name
    return None


def is_scale(name: str) -> bool:
    """Whether a tensor is called like a scale of weights."""
    last = name.rpartition(".")[2]
    return "scale" in last and not NOT_OF_WEIGHTS.fullmatch(last)


def check_stored(where: str, tensors: Mapping[str, str]) -> None:
    """LoadError for weights in few bits, where no method scales them. where: the model, in a sentence."""
    if name := few_bits(tensors):
        raise LoadError(
            f"{where}: its tensor {name} is stored as {tensors[name]}, and its config.json names no method "
            f"to scale it by {KNOWN_METHOD}: {INSTEAD}"
        )


def check_scales(
    where: str, tensors: Mapping[str, str], unexpected: Collection[str], model: PreTrainedModel
) -> None:
    """LoadError if a scale of weights that were loaded was left out. unexpected: the tensors that the model
    has no place for."""
    used = {*tensors, *(name for name, _ in model.named_parameters())} - {*unexpected}
    scaled = {name.rpartition(".")[0] for name in used}
    for name in sorted(filter(is_scale, unexpected)):
        if name.rpartition(".")[0] in scaled:
            raise LoadError(
                f"{where}: its tensor {name} scales weights, and this version of transformers does not use "
                f"it: {INSTEAD}"
            )
