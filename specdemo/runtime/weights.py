"""A model's weights. In memory: where they are, how many bytes it holds, and how many a forward reads. In
files: which there are, and which tensors they hold."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import Module, Parameter

# What transformers 5.24 calls the second argument of a layer's experts, which tells through which of them a
# token goes, and the field of a config that says through how many.
CHOSEN = ("top_k_index", "router_indices")
EACH_TOKENS = ("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_top_k")
WEIGHTS_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files of weights that are in several
OF_MODELS = (WEIGHTS_FILE, INDEX)  # a model's weights are read by the first that is there
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")  # beside the index that names it
# The names of scales of activations, and of keys and values in a cache, which are not quantised here.
NOT_OF_WEIGHTS = re.compile(r"((input|output|act)\w*|[qkv]|kv|qk|logit)_scales?|scale_(input|output)")


def tensors_of(modules: list[Module]) -> list[Tensor]:
    """Their parameters and buffers, a shared one as often as it is there."""
    kept = (tensors for module in modules for tensors in (module._parameters, module._buffers))
    return [tensor for tensors in kept for tensor in tensors.values() if tensor is not None]


def held_bytes(*models: Module) -> int:
    """Bytes of the models' parameters and buffers. A quantised weight consists of inner tensors; tied and
    shared ones count once."""
    storages = {}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            for part in stored(tensor):
                storage = part.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def weight_bytes(model: Module) -> int:
    """Bytes of weights that a forward of one token reads; quantised weights as they are in memory. A forward
    of a few tokens reads as many, but for a model with experts.

    An embedding table is not counted, because a forward reads only one row per token, unless it is the output
    matrix, too (tied). The cache of keys and values is not counted."""
    head = model.get_output_embeddings()
    output = None if head is None else head.weight.untyped_storage().data_ptr()
    tables = {
        storage.data_ptr(): storage.nbytes()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for storage in (module.weight.untyped_storage(),)
    }
    unread = round(expert_weights(model).unread)
    return held_bytes(model) - unread - sum(size for address, size in tables.items() if address != output)


class ExpertWeights(NamedTuple):
    """The weights of a model's experts. chosen: which share of a layer's experts a token goes through."""

    size: int  # bytes
    chosen: float

    @property
    def unread(self) -> float:
        """Bytes that a token does not go through."""
        return self.size * (1 - self.chosen)


def expert_weights(model: Module) -> ExpertWeights:
    """No bytes for a model without experts, or whose config does not say how many a token goes through."""
    layers = expert_layers(model)
    if not layers:
        return ExpertWeights(0, 1.0)
    config = model.config.get_text_config()
    places = (config, getattr(config, "ffn_config", None))  # DBRX has it in the second
    counts = (getattr(place, name, None) for place in places for name in EACH_TOKENS)
    each = next(filter(None, counts), None)
    if not isinstance(each, int):  # a list, where layers differ
        return ExpertWeights(0, 1.0)
    return ExpertWeights(held_bytes(*layers), min(1.0, each / max(layer.num_experts for layer in layers)))


def expert_layers(model: Module) -> list[Module]:
    """The parts of a model that hold a layer's experts, and are told which of them are chosen."""
    return [part for part in model.modules() if hasattr(part, "num_experts") and _is_told(type(part))]


@cache
def _is_told(kind: type[Module]) -> bool:
    with suppress(TypeError, ValueError, AttributeError):  # a forward may have no signature
        second = [*inspect.signature(kind.forward).parameters][2:3]  # after `self`
        return any(name in CHOSEN for name in second)
    return False


def in_this_thread(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook for forwards in this thread alone: another pair may share the model."""
    thread = get_ident()

    def guarded(*given: object) -> None:
        if get_ident() == thread:
            hook(*given)

    return guarded


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor is torch's own; false for quantised weights."""
    return type(tensor) in (Parameter, Tensor)


def is_made_of_parts(tensor: Tensor) -> bool:
    """Whether the tensor is a quantised one that holds others, in a layer that is torch's own."""
    return hasattr(tensor, "__tensor_flatten__")


def weights_address(model: Module) -> tuple[list, list]:
    """The model's modules, and where its weights are in memory: equal while what was made of their places may
    be used."""
    modules = list(model.modules())
    places = [(id(tensor), [part.data_ptr() for part in stored(tensor)]) for tensor in tensors_of(modules)]
    return modules, places


def stored(tensor: Tensor) -> list[Tensor]:
    """The tensor itself, or the inner tensors of a quantised weight. Those are replaced when the weight
    moves. An operation on the weight itself can make optimum-quanto compile code for that."""
    if is_dense(tensor) or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in stored(getattr(tensor, name))]


def rounds_activations(model: Module) -> bool:
    """Whether layers of a quantised checkpoint round what they multiply to few bits: transformers' own for
    float8, and those of bitsandbytes, torchao and compressed-tensors. A number's last digit can then make a
    whole step."""
    for layer in model.modules():
        scheme, weight = getattr(layer, "quantization_scheme", None), getattr(layer, "weight", None)
        if type(layer).__name__ in ("FP8Linear", "Linear8bitLt") or getattr(weight, "act_quant_kwargs", None):
            return True
        if getattr(scheme, "input_activations", None):
            return True
    return False


def shards_of(index: Path) -> list[str]:
    """The files of weights that an index names, in order. Raises ValueError if it names anything but
    safetensors files beside it, OSError if it cannot be read."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        names = set()
    if not names:
        raise ValueError("it names no files of weights")
    for name in names:
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise ValueError(f"it names {ascii(name)[:60]}, which is no safetensors file beside it")
    return sorted(names)


def weight_files(folder: Path) -> list[Path]:
    """The files of weights of the model in this folder. Raises what `shards_of` does."""
    first = next((name for name in OF_MODELS if (folder / name).is_file()), INDEX)
    return [folder / name for name in (shards_of(folder / INDEX) if first == INDEX else [first])]


def stored_tensors(folder: Path) -> dict[str, str]:
    """The tensors in a model's files: their names, and their dtypes as safetensors calls them. Raises what
    reading the files does."""
    dtypes = {}
    for file in weight_files(folder):
        with safe_open(file, "pt") as content:
            dtypes |= {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
    return dtypes


def few_bits(tensors: Mapping[str, str]) -> str | None:
    """The first weight that has a meaning only together with a scale. tensors: see `stored_tensors`."""
    for name, dtype in sorted(tensors.items()):
        is_weight = name.endswith(("weight", "_proj"))  # masks are stored in integers, too
        if re.match("F[468](_|$)", dtype) or (is_weight and dtype in ("I8", "U8")):
            return name
    return None


def is_scale(name: str) -> bool:
    """Whether a tensor is called like a scale of weights."""
    last = name.rpartition(".")[2]
    return "scale" in last and not NOT_OF_WEIGHTS.fullmatch(last)
