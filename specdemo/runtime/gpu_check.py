"""Whether a GPU writes what the CPU writes: tried once for each GPU and set of versions. The user's cache
directory remembers it."""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from specdemo import __version__

DIFFERS = (
    "{} writes another text than the CPU with the embedded pair in float32, where both should be equal (from "
    "token {} on): its numbers may be wrong. python -m specdemo doctor says more"
)
FAILED = "the text of {} could not be compared with the CPU's: {}"

_lock = threading.RLock()  # the comparison runs pairs itself
_known: dict[str, str | None] = {}  # GPU and versions -> what is wrong


def difference(device: torch.device, write: Callable[[str], list[int]]) -> str | None:
    """What is wrong with the GPU's text, in a sentence; None if nothing is. write: the ids of a greedy text
    in float32, written on the device of that name."""
    name = torch.cuda.get_device_name(device)
    key = f"{name}, specdemo {__version__}, torch {torch.__version__}, transformers {version('transformers')}"
    with _lock:
        if key in _known:
            return _known[key]
        _known[key] = None  # so that the runs of the comparison are not compared themselves
        if key in _remembered():
            return None
        try:
            ours, theirs = write(str(device)), write("cpu")
        except Exception as error:
            _known[key] = FAILED.format(name, f"{type(error).__name__}: {error}")
            return _known[key]
        if ours == theirs:
            _remember(key)
        else:
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            first = next(i for i, (a, b) in enumerate(pairs) if a != b)
            _known[key] = DIFFERS.format(name, first + 1)
        return _known[key]


def _file() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "specdemo" / "gpus.json"


def _remembered() -> list[str]:
    """GPUs and versions whose text was right."""
    with suppress(OSError, ValueError):
        keys = json.loads(_file().read_text(encoding="utf-8"))
        return keys if isinstance(keys, list) else []
    return []


def _remember(key: str) -> None:
    with suppress(OSError):  # then it is tried again in the next process
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(json.dumps([*_remembered(), key], indent=1), encoding="utf-8")
