"""Brings models from the hub into its cache on this disk, from where they are loaded, and tells how far that
is."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from huggingface_hub import HfApi, constants, get_session, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import parse_ratelimit_headers
from safetensors import SafetensorError
from tqdm import tqdm

from specdemo.drafters.table import kind_in
from specdemo.errors import LoadError, PairError, load_errors, no_config, other_kind
from specdemo.loading.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of
from specdemo.loading.request import Part
from specdemo.runtime.device import amount
from specdemo.runtime.files import INDEX, OF_MODELS, WEIGHTS_FILE, shards_of, stored_tensors
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, harmless, message

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # each tokenizer has one of them
OF_ADAPTERS = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
DATA = re.compile(r"[\w.-]+\.(json|txt|model|jinja)")  # configs and tokenizers
CODE = re.compile(r"[\w.-]+\.py")
PICKLED = re.compile(r"[\w.-]+\.(bin|pt|pth|ckpt)")
# The dtypes by the names that safetensors gives them.
FLOATS_IN_FILES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# Called with what is being done, and the share of it that is finished, from 0 to 1 (None where it is not
# known).
OnProgress = Callable[[Message, float | None], None]
_T = TypeVar("_T")
LONGEST_WAIT = 10**9  # seconds that are told
DOWNLOAD_SECONDS = 1_800.0  # the longest time for a download, and for waiting because the hub asks to


class _Patience(NamedTuple):
    """The time for a download, when it is over, by time.monotonic, and who is told of waiting."""

    seconds: float
    until: float
    on_progress: OnProgress

    @classmethod
    def of(cls, seconds: float, on_progress: OnProgress) -> "_Patience":
        return cls(seconds, time.monotonic() + seconds, on_progress)


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)
_asking: ContextVar[bool] = ContextVar("asking", default=False)


class _AsksToWait(Exception):
    """The hub answers that it will take this call only after so many seconds."""


def _on_stderr() -> OnProgress:
    """Writes each message once."""
    told = set[Message]()

    def on_progress(what: Message, share: float | None) -> None:
        if what not in told:
            print(harmless(f"specdemo: {what}"), file=sys.stderr, flush=True)
        told.add(what)

    return on_progress


@contextmanager
def patience(seconds: float = DOWNLOAD_SECONDS, on_progress: OnProgress | None = None) -> Iterator[None]:
    """Within this block or function a hub that asks to wait is waited for, until these seconds are over.
    on_progress: is told of it; None: standard error."""
    token = _patience.set(_Patience.of(seconds, on_progress or _on_stderr()))
    try:
        yield
    finally:
        _patience.reset(token)


def _ask(part: Part, call: Callable[..., _T], *given: Any, **options: Any) -> _T:
    """Calls the hub's library for a model and returns its answer. Waits here if the hub asks for it, since
    the library would wait as long as it is told, or not at all. LoadError if that is too long."""
    most = _patience.get() or _Patience.of(DOWNLOAD_SECONDS, _on_stderr())
    while True:
        hooks = get_session().event_hooks["response"]  # of a new client after a failed connection
        if _hear not in hooks:
            hooks.append(_hear)
        token = _asking.set(True)
        try:
            return call(part.place, *given, **options)
        except _AsksToWait as error:
            (asked,) = error.args
        finally:
            _asking.reset(token)
        seconds = numeral(asked, ",.0f")
        if time.monotonic() + asked > most.until:
            limit = numeral(most.seconds, ",.0f")
            raise LoadError(
                message("hub_asks_too_long", name=part.role, reason=part.id, seconds=seconds, most=limit)
            )
        for _ in range(max(1, asked)):  # on_progress raises where nobody wants the download any more
            most.on_progress(message("hub_asks_time", name=part.id, seconds=seconds), None)
            time.sleep(1)


def _hear(response: Any) -> None:
    """Called with each answer that the library gets: _AsksToWait where the hub asks `_ask` to wait."""
    if _asking.get() and (response.status_code == 429 or response.status_code >= 500):
        seconds = _asked_seconds(response)
        if seconds is not None:
            raise _AsksToWait(seconds)


def _asked_seconds(response: Any) -> int | None:
    """How long the hub asks to wait, None if it does not tell: as RateLimit (only where that is used up), or
    as Retry-After, a number or a date."""
    limit = parse_ratelimit_headers(response.headers)
    if response.status_code == 429 and limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds
    told = response.headers.get("Retry-After", "").strip()
    with suppress(TypeError, ValueError):
        if told.isdecimal():
            return min(int(told), LONGEST_WAIT)
        return max(0, ceil((parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds()))
    return None


def with_base(part: Part, offline: bool) -> Part:
    """For an adapter its base, with the adapter to be merged in; any other model as it is. offline: from the
    disk alone. PairError for an adapter that cannot be merged here."""
    if part.adapter is not None:
        return part
    if os.path.isdir(part.place):
        names = os.listdir(part.place) if os.access(part.place, os.R_OK | os.X_OK) else []
    elif offline:
        names = [name for name in (*OF_ADAPTERS, *OF_MODELS) if _cached(part, name)]
    else:
        names = list(_sizes(part))
    if ADAPTER_CONFIG not in names:
        return part
    if not {*OF_MODELS}.isdisjoint(names):
        raise PairError(
            f"{part.role}: {part.id} holds both a model and a PEFT adapter ({ADAPTER_CONFIG}): give one that "
            "holds one of them"
        )
    if ADAPTER_WEIGHTS not in names and (os.path.isdir(part.place) or not offline):
        raise no_weights(part, names, ADAPTER_WEIGHTS)
    if os.path.isdir(part.place):
        return base_of(part, Path(part.place))
    with load_errors(part.role, part.place, ADAPTER_CONFIG, part.id):
        how = {"revision": part.revision or "main", "local_files_only": offline}
        config = _ask(part, hf_hub_download, ADAPTER_CONFIG, **how)
    return base_of(part, Path(config).parent)


def is_here(part: Part) -> bool:
    """Whether the model can be loaded without the hub: from a directory, or from the hub's cache; of an
    adapter also its base. PairError as of `with_base`."""
    part = with_base(part, offline=True)
    if part.adapter is not None and not _adapter_is_here(part.adapter):
        return False
    return _is_here(part)


def _adapter_is_here(adapter: Part) -> bool:
    return os.path.isdir(adapter.place) or _cached(adapter, ADAPTER_WEIGHTS) is not None


def _is_here(part: Part) -> bool:
    if os.path.isdir(part.place):
        return True
    config = _cached(part, "config.json")
    if config is None:
        return False
    needs_tokenizer = kind_in(Path(config).parent).has_tokenizer
    if needs_tokenizer and not any(_cached(part, name) for name in TOKENIZERS):
        return False
    if part.code and not all(_cached(part, name) for name in _code_files(part)):
        return False
    found = next((name for name in OF_MODELS if _cached(part, name)), None)
    if found != INDEX:
        return found is not None
    index = _cached(part, INDEX)
    with suppress(OSError, ValueError):  # a wrong index is fetched again, and what is wrong is said then
        return index is not None and all(_cached(part, name) for name in shards_of(Path(index)))
    return False


def folder_of(part: Part, offline: bool) -> Path:
    """Where the model's config.json is on the disk. offline: it is taken from the hub's cache, or else asked
    of the hub. Raises the hub's errors, and PairError if the hub has none."""
    if os.path.isdir(part.place):
        return Path(part.place)
    revision = part.revision or "main"
    try:
        how = {"revision": revision, "local_files_only": offline}
        config = _ask(part, hf_hub_download, "config.json", **how)
    except EntryNotFoundError as error:
        if isinstance(error, LocalEntryNotFoundError):
            raise
        raise no_config(part.role, part.id, _sizes(part)) from None
    return Path(config).parent


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
    """The directory with the files of a model that is on this machine."""
    return _directory(part, "config.json")


def adapters_directory(adapter: Part) -> str:
    """The directory with the files of an adapter that is on this machine."""
    return _directory(adapter, ADAPTER_CONFIG)


def _directory(part: Part, name: str) -> str:
    file = None if os.path.isdir(part.place) else _cached(part, name)
    return part.place if file is None else str(Path(file).parent)


def has_tokenizer(adapter: Part) -> bool:
    """Whether an adapter that is on this machine brings a tokenizer of its own."""
    return any((Path(adapters_directory(adapter)) / name).is_file() for name in TOKENIZERS)


def _code_files(part: Part) -> set[str]:
    """The files of program code that the config names: {"AutoConfig": "module.Class", ...}."""
    try:
        config = json.loads((Path(directory_of(part)) / "config.json").read_text(encoding="utf-8"))
        return {
            f"{name.partition('.')[0]}.py" for name in config.get("auto_map", {}).values() if "--" not in name
        }
    except (ValueError, TypeError, AttributeError):
        return set()  # what is wrong with the config is said when it is read


def fetch(
    parts: tuple[Part, ...], on_progress: OnProgress = lambda *_: None, code_only: bool = False
) -> None:
    """Downloads what is not on this machine. Raises LoadError if there is no room for it on the disk.
    code_only: configs and program code, without weights."""
    missing = {part: _missing(part, code_only) for part in parts if not _is_here(part)}
    for adapter in (part.adapter for part in parts if part.adapter is not None):
        if not _adapter_is_here(adapter):
            missing[adapter] = _uncached(adapter, _sizes(adapter), [ADAPTER_WEIGHTS])
    _check_disk(missing)
    for part, files in missing.items():
        before, total = 0, sum(files.values())
        for name, size in files.items():
            bar = download_bar(part, before, total, on_progress)
            with load_errors(part.role, part.place, name, part.id):
                _ask(part, hf_hub_download, name, revision=part.revision, tqdm_class=bar)
            before += size


def _is_text(name: str) -> bool:
    return bool(DATA.fullmatch(name) or CODE.fullmatch(name))


def _missing(part: Part, code_only: bool) -> dict[str, int]:
    """The files that loading the model needs and the cache lacks, with their bytes; the weights last, so that
    a model whose weights are there is complete. code_only: see `fetch`."""
    sizes = _sizes(part)
    found = next((name for name in OF_MODELS if name in sizes), None)
    if found is None:
        raise no_weights(part, sizes)
    weights = [found]
    if found == INDEX:
        with load_errors(part.role, part.place, INDEX, part.id):
            silent = download_bar(part, 0, 0, lambda *_: None)
            index = _ask(part, hf_hub_download, INDEX, revision=part.revision, tqdm_class=silent)
            weights = shards_of(Path(index))
            _check_shards(weights, sizes)
    return _uncached(part, sizes, [] if code_only else weights)


def _uncached(part: Part, sizes: Mapping[str, int], weights: Collection[str]) -> dict[str, int]:
    texts = filter(_is_text if part.code else DATA.fullmatch, sizes)
    return {name: sizes[name] for name in (*sorted(texts), *weights) if _cached(part, name) is None}


def _sizes(part: Part) -> dict[str, int]:
    """All files that the hub has of the model, with their bytes."""
    with load_errors(part.role, part.place, "list of files", part.id):
        how = {"files_metadata": True, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
        found = _ask(part, HfApi().model_info, revision=part.revision, **how)
    return {file.rfilename: file.size or 0 for file in found.siblings or []}


def _check_shards(names: Iterable[str], there: Collection[str]) -> None:
    if lacking := next((name for name in names if name not in there), None):
        raise ValueError(f"it names {lacking}, which is not there")


def check_weights(part: Part) -> None:
    """LoadError for a directory or a cached model without safetensors, or whose index names other files than
    those that are beside it."""
    folder = Path(directory_of(part))
    names = os.listdir(folder) if folder.is_dir() else []
    if names and not {*OF_MODELS} & set(names):
        raise no_weights(part, names)
    if INDEX in names and WEIGHTS_FILE not in names:
        with load_errors(part.role, part.place, INDEX, part.id):
            _check_shards(shards_of(folder / INDEX), names)


def stored_dtypes(part: Part) -> set[torch.dtype]:
    """The dtypes of the floating-point numbers in a model's files, which are here; empty if the files cannot
    be read, which loading them reports."""
    with suppress(OSError, ValueError, SafetensorError):
        found = set(stored_tensors(Path(directory_of(part))).values())
        return {FLOATS_IN_FILES[dtype] for dtype in found & FLOATS_IN_FILES.keys()}
    return set()


def no_weights(part: Part, names: Iterable[str], file: str | None = None) -> LoadError:
    """The error for a model without weights that can be loaded. names: those of the model's files. file: the
    only one that its weights can be in."""
    who = f"{part.role}: {part.id}"
    if file is None and (kind := other_kind(names)):
        return LoadError(f"{who} {kind}")
    pickled = next(filter(PICKLED.fullmatch, sorted(names)), None)
    if pickled is None:
        lacks = f"neither {WEIGHTS_FILE} nor {INDEX}" if file is None else f"no {file}"
        return LoadError(f"{who} has {lacks}, so there are no weights to load")
    return LoadError(
        f"{who} has only pickled weights ({pickled}), which can hold program code: only safetensors are "
        "loaded"
    )


def _check_disk(missing: dict[Part, dict[str, int]]) -> None:
    needed = sum(sum(files.values()) for files in missing.values())
    cache = Path(constants.HF_HUB_CACHE)
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if needed > free:
        names = " and ".join(f"{part.role} {part.id}" for part in missing)
        raise LoadError(
            f"{names} cannot be downloaded: that takes {amount(needed)} on the disk, and {amount(free)} are "
            "free"
        )


def download_bar(part: Part, before: int, total: int, on_progress: OnProgress) -> type[tqdm]:
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
