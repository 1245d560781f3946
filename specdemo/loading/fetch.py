"""Brings models from the hub into its cache on this disk, from where they are loaded."""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache

from specdemo.errors import LoadError
from specdemo.loading.errors import load_errors
from specdemo.loading.plan import amount
from specdemo.loading.progress import OnProgress, download_bar
from specdemo.loading.request import Part

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files of weights that are in several
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # each tokenizer has one of them
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
DATA = re.compile(r"[\w.-]+\.(json|txt|model|jinja)")  # configs and tokenizers
CODE = re.compile(r"[\w.-]+\.py")
PICKLED = re.compile(r"[\w.-]+\.(bin|pt|pth|ckpt)")


SPECULATOR = "speculators_model_type"  # the key of config.json that says that a model is a speculator


@dataclass(frozen=True)
class File:
    name: str
    bytes: int


def is_here(part: Part) -> bool:
    """Whether the model can be loaded without the hub: from a directory, or from the hub's cache."""
    if os.path.isdir(part.place):
        return True
    config = _cached(part, "config.json")
    if config is None:
        return False
    if not is_speculator(Path(config).parent) and not any(_cached(part, name) for name in TOKENIZERS):
        return False
    if part.code and not all(_cached(part, name) for name in _code_files(part)):
        return False
    if _cached(part, WEIGHTS):
        return True
    index = _cached(part, INDEX)
    return bool(index) and all(_cached(part, name) for name in _shards(Path(index)))


def is_speculator(folder: Path) -> bool:
    """Whether the model in this folder is a speculator, of whatever type. It has no tokenizer of its own."""
    try:
        return SPECULATOR in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def folder_of(part: Part, offline: bool) -> Path:
    """Where the model's config.json is on the disk. offline: it is taken from the hub's cache, or else asked
    of the hub. Raises the hub's errors."""
    if os.path.isdir(part.place):
        return Path(part.place)
    revision = part.revision or "main"
    return Path(
        hf_hub_download(part.place, "config.json", revision=revision, local_files_only=offline)
    ).parent


def has_config(part: Part) -> bool:
    """Whether the config can be read without a request to the hub."""
    return os.path.isdir(part.place) or _cached(part, "config.json") is not None


def _cached(part: Part, name: str) -> str | None:
    """The file's path in the hub's cache."""
    try:
        found = try_to_load_from_cache(part.place, name, revision=part.revision)
    except ValueError:  # not a hub id
        return None
    return found if isinstance(found, str) else None


def directory_of(part: Part) -> str:
    """Where the files of a model are that is here."""
    config = None if os.path.isdir(part.place) else _cached(part, "config.json")
    return part.place if config is None else str(Path(config).parent)


def _code_files(part: Part) -> set[str]:
    """The files of program code that the config names: {"AutoConfig": "module.Class", ...}."""
    try:
        config = json.loads((Path(directory_of(part)) / "config.json").read_text(encoding="utf-8"))
        return {
            f"{name.partition('.')[0]}.py" for name in config.get("auto_map", {}).values() if "--" not in name
        }
    except (ValueError, TypeError, AttributeError):
        return set()  # what is wrong with the config is said when it is read


def _shards(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return {WEIGHTS}  # which is not there, so the index is fetched again


def fetch(
    parts: tuple[Part, ...], on_progress: OnProgress = lambda *_: None, code_only: bool = False
) -> None:
    """Downloads what is not on this machine. Raises LoadError if there is no room for it on the disk.
    code_only: configs and program code, without weights."""
    missing = {part: _missing(part) for part in parts if not is_here(part)}
    if code_only:
        missing = {part: [file for file in files if _is_text(file.name)] for part, files in missing.items()}
    _check_disk(missing)
    for part, files in missing.items():
        before, total = 0, sum(file.bytes for file in files)
        for file in files:
            bar = download_bar(part, before, total, on_progress)
            with load_errors(part.role, part.place, file.name, part.id):
                hf_hub_download(part.place, file.name, revision=part.revision, tqdm_class=bar)
            before += file.bytes


def _is_text(name: str) -> bool:
    return bool(DATA.fullmatch(name) or CODE.fullmatch(name))


def _missing(part: Part) -> list[File]:
    """The files that loading the model needs and the cache lacks; the weights last, so that a model whose
    weights are there is complete."""
    with load_errors(part.role, part.place, "list of files", part.id):
        found = HfApi().model_info(
            part.place, revision=part.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    sizes = {file.rfilename: file.size or 0 for file in found.siblings or []}
    weights = [WEIGHTS] if WEIGHTS in sizes else sorted(filter(SHARD.fullmatch, sizes))
    if not weights:
        raise _no_weights(part, list(sizes))
    texts = filter(_is_text if part.code else DATA.fullmatch, sizes)
    names = [*sorted(texts), *weights]
    return [File(name, sizes[name]) for name in names if _cached(part, name) is None]


def check_weights(part: Part) -> None:
    """LoadError for a directory or a cached model whose only weights are pickled."""
    folder = Path(directory_of(part))
    names = os.listdir(folder) if folder.is_dir() else []
    if names and not {WEIGHTS, INDEX} & set(names) and any(map(PICKLED.fullmatch, names)):
        raise _no_weights(part, names)


def _no_weights(part: Part, names: list[str]) -> LoadError:
    pickled = next(filter(PICKLED.fullmatch, sorted(names)), None)
    if pickled is None:
        return LoadError(f"{part.role}: {part.id} has no {WEIGHTS}, so there are no weights to load")
    return LoadError(
        f"{part.role}: {part.id} has only pickled weights ({pickled}), which can hold program code: only "
        "safetensors are loaded"
    )


def _check_disk(missing: dict[Part, list[File]]) -> None:
    needed = sum(file.bytes for files in missing.values() for file in files)
    cache = Path(constants.HF_HUB_CACHE)
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if needed > free:
        names = " and ".join(f"{part.role} {part.id}" for part in missing)
        raise LoadError(
            f"{names} cannot be downloaded: that takes {amount(needed)} on the disk, and {amount(free)} are "
            "free"
        )
