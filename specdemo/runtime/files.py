"""The files of a model's weights: which there are, and which tensors they hold."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open

WEIGHTS_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files of weights that are in several
OF_MODELS = (WEIGHTS_FILE, INDEX)  # a model's weights are read by the first that is there
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")  # beside the index that names it
# The names of scales of activations, and of keys and values in a cache, which are not quantised here.
NOT_OF_WEIGHTS = re.compile(r"((input|output|act)\w*|[qkv]|kv|qk|logit)_scales?|scale_(input|output)")


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
    found = next((name for name in OF_MODELS if (folder / name).is_file()), INDEX)
    return [folder / name for name in (shards_of(folder / INDEX) if found == INDEX else [found])]


def stored_tensors(folder: Path) -> dict[str, str]:
    """The tensors in a model's files: their names, and their dtypes as safetensors calls them. Raises what
    reading the files does."""
    found = {}
    for file in weight_files(folder):
        with safe_open(file, "pt") as content:
            found |= {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
    return found


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
