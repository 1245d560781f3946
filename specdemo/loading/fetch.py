"""Brings models from the hub into its cache on this disk, from where they are loaded, and tells how far that
is.

The files come one by one, through `hf_hub_download`, which goes on where an earlier download ended and checks
each file's size. `snapshot_download` takes a part of a model for the whole where the hub does not answer, and
can bring the weights before the rest."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from io import StringIO
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import RemoteEntryNotFoundError
from tqdm import tqdm

from specdemo.drafters.table import kind_in
from specdemo.errors import LoadError, PairError, gated_error, load_errors, other_kind
from specdemo.loading.catalog import GATED
from specdemo.loading.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of
from specdemo.loading.request import Part
from specdemo.runtime.device import amount
from specdemo.runtime.weights import INDEX, OF_MODELS, WEIGHTS_FILE, shards_of, weight_files
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # each tokenizer has one of them
CONFIGS = ("config.json", ADAPTER_CONFIG)
DATA = re.compile(r"[\w.-]+\.(json|txt|model|jinja)")  # configs and tokenizers
PICKLED = re.compile(r"[\w.-]+\.(bin|pt|pth|ckpt)")
NOWHERE = Path(os.devnull)  # a path with no files in it
# Called with what is being done, and the share of it that is finished, from 0 to 1 (None where it is not
# known).
OnProgress = Callable[[Message, float | None], None]


# What is on this machine


def folder_of(part: Part) -> Path:
    """The directory with the model's files on this machine: its own, or one in the hub's cache; NOWHERE if
    not even its config is there."""
    if os.path.isdir(part.place):
        return Path(part.place)
    for name in CONFIGS:
        with suppress(ValueError):  # not a hub id
            file = try_to_load_from_cache(part.place, name, revision=part.revision)
            if isinstance(file, str):
                return Path(file).parent
    return NOWHERE


def _names_here(part: Part) -> list[str]:
    """The names of the model's files on this machine; from the cache, of those alone that can be read."""
    folder, is_own = folder_of(part), os.path.isdir(part.place)
    with suppress(OSError):
        return [name for name in os.listdir(folder) if is_own or os.path.isfile(folder / name)]
    return []


def has_tokenizer(part: Part) -> bool:
    """Whether a model or an adapter that is on this machine brings a tokenizer of its own."""
    return not {*TOKENIZERS}.isdisjoint(_names_here(part))


def is_here(part: Part) -> bool:
    """Whether the model can be loaded without the hub: from a directory, or from the hub's cache; of an
    adapter also its base. PairError as of `with_base`."""
    part = with_base(part, offline=True)
    return _is_whole(part) and (part.adapter is None or _is_whole(part.adapter))


def _is_whole(part: Part) -> bool:
    if os.path.isdir(part.place):
        return True
    folder, names = folder_of(part), {*_names_here(part)}
    if not names or part.adapter is None and ADAPTER_CONFIG in names:  # an adapter, and not the base of one
        return ADAPTER_WEIGHTS in names
    if not kind_in(folder).is_for_a_target and not has_tokenizer(part):
        return False
    with suppress(OSError, ValueError):  # a wrong index is fetched again, and what is wrong is said then
        return {file.name for file in weight_files(folder)} <= names
    return False


def check_weights(part: Part) -> None:
    """LoadError for a model here without safetensors, or whose index names other files than those that are
    beside it."""
    if names := _names_here(part):
        _weights_among(part, names, lambda: folder_of(part) / INDEX)


def _weights_among(part: Part, names: Collection[str], index: Callable[[], Path]) -> list[str]:
    """The files of weights that are loaded, of a model with files of these names. index: gives the index.
    LoadError if there are none, or not all that the index names."""
    first = next((name for name in OF_MODELS if name in names), None)
    if first is None:
        raise _no_weights(part, names)
    if ADAPTER_CONFIG in names:  # transformers would load the adapter
        raise _two_in_one(part)
    if first != INDEX:
        return [first]
    with load_errors(part.role, part.place, INDEX, part.id):
        weights = shards_of(index())
        if lacking := next((name for name in weights if name not in names), None):
            raise ValueError(f"it names {lacking}, which is not there")
    return weights


def _two_in_one(part: Part) -> PairError:
    return PairError(f"{part.named} holds both a model and a PEFT adapter: give one that holds one of them")


def _no_weights(part: Part, names: Iterable[str], file: str | None = None) -> LoadError:
    """The error for a model without weights that can be loaded. names: those of the model's files. file: the
    only one that its weights can be in."""
    who = f"{part.role}: {part.id}"
    if file is None and (kind := other_kind(names)):
        return LoadError(f"{who} {kind}")
    pickled = next(filter(PICKLED.fullmatch, sorted(names)), None)
    if pickled is None:
        lacks = f"neither {WEIGHTS_FILE} nor {INDEX}" if file is None else f"no {file}"
        return LoadError(f"{who} has {lacks}, so there are no weights to load")
    return LoadError(f"{who} has only pickled weights ({pickled}), which can hold code: give safetensors")


# What comes from the hub


def with_base(part: Part, offline: bool) -> Part:
    """For an adapter its base, with the adapter to be merged in; any other model as it is. offline: from the
    disk alone. PairError for an adapter that cannot be merged here."""
    if part.adapter is not None:
        return part
    ask = not offline and not os.path.isdir(part.place)
    names = _sizes(part) if ask else _names_here(part)
    if ADAPTER_CONFIG not in names:
        return part
    if not {*OF_MODELS}.isdisjoint(names):
        raise _two_in_one(part)
    if ADAPTER_WEIGHTS not in names and (ask or os.path.isdir(part.place)):
        raise _no_weights(part, names, ADAPTER_WEIGHTS)
    return base_of(part, _bring(part, ADAPTER_CONFIG).parent if ask else folder_of(part))


def with_config(part: Part) -> Part:
    """The part as `with_base` has it. If the model is not here, its config has come, as the hub has it now.
    PairError if the hub has no config; otherwise raises as `with_base` and `check_access`."""
    is_whole = is_here(part)
    part = with_base(part, offline=is_whole)
    check_access([part])
    if is_whole:
        return part
    with load_errors(part.role, part.place, shown=part.id):
        try:
            hf_hub_download(part.place, "config.json", revision=part.revision, tqdm_class=_bar(part))
        except RemoteEntryNotFoundError:
            if kind := other_kind(_sizes(part)):
                raise PairError(f"{part.role}: {part.id} {kind}") from None
            raise
    return part


def check_access(parts: Iterable[Part]) -> None:
    """LoadError, without a request to the hub, if a model is gated, not on this machine, and there is no
    token. A mirror may have other rules, so it is asked."""
    if get_token() or constants.ENDPOINT != constants._HF_DEFAULT_ENDPOINT:
        return
    for part in parts:
        if part.place in GATED and folder_of(part) == NOWHERE:
            raise gated_error(part.role, part.id)


def fetch(parts: Iterable[Part], on_progress: OnProgress = lambda *_: None) -> None:
    """Downloads what is not on this machine. LoadError, before anything comes, if the hub has no weights that
    can be loaded, or if there is no room for all on the disk."""
    both = [one for part in parts for one in (part, part.adapter) if one is not None]
    missing = {part: _missing(part) for part in both if not _is_whole(part)}
    needed = sum(sum(files.values()) for files in missing.values())
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.is_dir())).free
    if needed > free:
        names = " and ".join(part.named for part in missing)
        sizes = f"that takes {amount(needed)} on the disk, and {amount(free)} are free"
        raise LoadError(f"{names} cannot be downloaded: {sizes}")
    for part, files in missing.items():
        before, total = 0, sum(files.values())
        for name, size in files.items():
            _bring(part, name, _bar(part, before, total, on_progress))
            before += size


def _missing(part: Part) -> dict[str, int]:
    """The files that loading the model needs and the cache lacks, with their bytes; the weights last, so that
    a model whose weights are there is complete."""
    sizes = _sizes(part)
    is_adapter = part.adapter is None and ADAPTER_CONFIG in sizes
    weights = [ADAPTER_WEIGHTS] if is_adapter else _weights_among(part, sizes, lambda: _bring(part, INDEX))
    texts = sorted(filter(DATA.fullmatch, sizes))
    here = _names_here(part)
    return {name: sizes[name] for name in (*texts, *weights) if name not in here}


def _sizes(part: Part) -> dict[str, int]:
    """All files that the hub has of the model, with their bytes."""
    with load_errors(part.role, part.place, "list of files", part.id):
        how = {"files_metadata": True, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
        listed = HfApi().model_info(part.place, revision=part.revision, **how)
    return {file.rfilename: file.size or 0 for file in listed.siblings or []}


def _bring(part: Part, name: str, bar: type[tqdm] | None = None) -> Path:
    """Where a file of the model is in the cache, once it has come from the hub."""
    with load_errors(part.role, part.place, name, part.id):
        bar = bar or _bar(part)
        return Path(hf_hub_download(part.place, name, revision=part.revision, tqdm_class=bar))


def _bar(
    part: Part, before: int = 0, total: int = 0, on_progress: OnProgress = lambda *_: None
) -> type[tqdm]:
    """A progress bar for the hub's library that draws nothing and calls `on_progress` instead.

    The bar is for one file. before: bytes of the model's files before it. total: bytes of all of them.
    """
    furthest = 0.0

    class Bar(tqdm):
        monitor_interval = 0  # starts no monitor thread

        def __init__(self, *args: object, **options: object):
            super().__init__(*args, **options | {"file": StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            updated = super().update(n)
            # Other bars count files, or the same bytes once more.
            if self.unit == "B" and total and self.n > furthest:
                furthest = self.n
                done = min(before + furthest, total)
                megabytes = {"done": numeral(done / 1e6, ",.1f"), "all": numeral(total / 1e6, ",.1f")}
                on_progress(message(f"downloading_{part.role}", name=part.id, **megabytes), done / total)
            return updated

        def display(self, *_: object, **__: object) -> None:
            pass

    return Bar
