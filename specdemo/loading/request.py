"""What is asked for: which models and how they are to be held, checked as far as that goes without opening a file."""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.loading.errors import PairError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZE = {"int8": 8, "int4": 4, "int2": 2, "float8": 8}  # bits per weight of a linear layer
ROLES = ("target", "drafter")

ByRole = str | dict[str, str | None] | None


@dataclass(frozen=True)
class Part:
    """One model of a request: where it comes from and how it is to be held."""

    role: str
    id: str  # as it was named
    place: str  # where it is read from: a hub id or a directory
    device: str
    dtype: torch.dtype | None  # None is chosen when the pair's size is known
    quantize: str | None


@dataclass(frozen=True)
class Request:
    name: str
    parts: tuple[Part, ...]  # the target, and the drafter if there is one

    @property
    def device(self) -> str:
        return self.parts[0].device

    @property
    def key(self) -> tuple:
        """The same for two requests that ask for the same thing in other words."""
        known = self.name if self.name in CATALOGUE else None
        return known, *((_real(part.place), part.device, part.dtype, part.quantize) for part in self.parts)


def resolve(
    name: str | None = None,
    *,
    target=None,
    drafter=None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
) -> Request:
    """The request that `load_pair`'s arguments make; PairError when they make none."""
    name, ids, places = _named(name) if target is None and drafter is None else _given(name, target, drafter)
    devices = {role: _device(of(device, role, "device")) for role in ROLES}
    quantized = {role: _quantize(of(quantize, role, "quantize")) for role in ROLES}
    dtypes = {role: _dtype(of(dtype, role, "dtype")) for role in ROLES}
    parts = [
        Part(role, ids[role], places[role], devices[role], dtypes[role], quantized[role]) for role in ids
    ]
    return Request(name, tuple(parts))


def of(choice: ByRole, role: str, field: str) -> str | None:
    """What an option that can be given once or for each model says for one of them."""
    if isinstance(choice, dict):
        if unknown := set(choice) - set(ROLES):
            raise PairError(f"{field} must have the keys target and drafter, not {ascii(unknown.pop())}")
        return choice.get(role)
    return choice


def _named(name: str | None) -> tuple[str, dict[str, str], dict[str, str]]:
    name = "embedded" if name is None else name
    if not isinstance(name, str) or name not in CATALOGUE:
        near = get_close_matches(str(name), CATALOGUE, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise PairError(f"pair must be one of {', '.join(CATALOGUE)}, not {ascii(name)}{hint}")
    ids = {role: getattr(CATALOGUE[name], role) for role in ROLES}
    here = {role: ROOT / id for role, id in ids.items()}  # what comes with the project is named from its root
    return name, ids, {role: str(here[role]) if here[role].is_dir() else id for role, id in ids.items()}


def _given(name: str | None, target, drafter) -> tuple[str, dict[str, str], dict[str, str]]:
    if name is not None:
        raise PairError("pair: give a name or a target and drafter, not both")
    if target is None:
        raise PairError("target must be given with a drafter")
    ids = {
        role: _place(role, place)
        for role, place in zip(ROLES, (target, drafter), strict=True)
        if place is not None
    }
    return " + ".join(ids.values()), ids, ids


def _place(role: str, place: str | os.PathLike) -> str:
    if not isinstance(place, (str, os.PathLike)):
        raise PairError(
            f"{role} must be a hub id or a directory like the other, or both models in memory, not {type(place).__name__}"
        )
    return os.path.expanduser(os.fspath(place))


def _real(place: str) -> str:
    return os.path.realpath(place) if "\0" not in place and os.path.isdir(place) else place


def _device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise PairError(f"device must be cpu, cuda or cuda:N, not {ascii(device)}")
    if device != "cpu" and int(device[5:] or 0) >= torch.cuda.device_count():
        raise PairError(f"device {device} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _quantize(quantize: str | None) -> str | None:
    if quantize in (None, "none"):
        return None
    if not isinstance(quantize, str) or quantize not in QUANTIZE:
        raise PairError(f"quantize must be one of none, {', '.join(QUANTIZE)}, not {ascii(quantize)}")
    return quantize


def _dtype(dtype: str | None) -> torch.dtype | None:
    if dtype not in (None, "auto", *DTYPES):
        raise PairError(f"dtype must be one of auto, {', '.join(DTYPES)}, not {ascii(dtype)}")
    return DTYPES.get(dtype)
