"""Which models are to be loaded, and how: the arguments of `load_pair`, checked without opening a file."""

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

import torch

from specdemo.errors import PairError
from specdemo.loading.catalog import CATALOGUE, DTYPES, QUANTIZE, ROOT, names_in_words
from specdemo.runtime import cuda
from specdemo.words.message import refusal

ROLES = ("target", "drafter")

ByRole = str | dict[str, str | None] | None  # one value for both models, or one for each


@dataclass(frozen=True)
class Part:
    """One model of a request: where it is loaded from, and how."""

    role: str
    id: str  # as the user wrote it
    place: str  # where it is read from: a hub id or a directory
    device: str
    dtype: torch.dtype | None  # None: chosen when the size of the pair is known
    quantize: str | None
    revision: str | None = None  # of the hub: a branch, a tag or a commit; None: main
    adapter: "Part | None" = None  # what is merged into it: the PEFT adapter that the user named in its place

    @property
    def given(self) -> str:
        """What the user wrote."""
        return self.id if self.adapter is None else self.adapter.id

    @property
    def named(self) -> str:
        """The model in a sentence."""
        return f"{self.role} {self.id}"


@dataclass(frozen=True)
class PairRequest:
    name: str
    parts: tuple[Part, ...]  # the target, and the drafter if there is one

    @property
    def device(self) -> str:
        """The target's device."""
        return self.parts[0].device

    @property
    def key(self) -> tuple:
        """A key that is equal for two requests that would load the same pair, however they are written."""
        parts = []
        for part in self.parts:
            place = os.path.realpath(part.place) if os.path.isdir(part.place) else part.place
            parts.append(replace(part, role="", id="", place=place))
        return self.name if self.name in CATALOGUE else None, *parts


def resolve(
    name: str | None = None,
    *,
    target: str | os.PathLike | None = None,
    drafter: str | os.PathLike | None = None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
) -> PairRequest:
    """The request that these arguments of `load_pair` make; PairError for a wrong one."""
    usual, is_named = None, target is None and drafter is None  # usual: the kind of weights if none is asked
    if is_named:
        name = "embedded" if name is None else name
        if not isinstance(name, str) or name not in CATALOGUE:
            near = get_close_matches(str(name), CATALOGUE, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise PairError(f"pair must be one of {names_in_words(CATALOGUE)}, not {ascii(name)}{hint}")
        entry = CATALOGUE[name]
        usual, ids = entry.quantize, {role: getattr(entry, role) for role in ROLES}
    else:
        if name is not None:
            raise PairError("pair: give a name or a target and drafter, not both")
        if target is None:
            raise PairError("target must be given, unless the drafter is a head whose config.json names it")
        given = zip(ROLES, (target, drafter), strict=True)
        ids = {role: _place(role, place) for role, place in given if place is not None}
        name = " + ".join(ids.values())
    parts = []
    for role in ROLES:
        how = (
            _device(for_role(device, role, "device")),
            _dtype(for_role(dtype, role, "dtype")),
            _quantize(for_role(quantize, role, "quantize"), usual),
        )
        if role in ids:
            place, revision = without_revision(role, ids[role])
            place = in_project(place) if is_named else place
            parts.append(Part(role, ids[role], place, *how, revision))
    return PairRequest(name, tuple(parts))


def drafter_part(place: object, device: str, dtype: torch.dtype) -> Part:
    """A drafter alone, for a target that is loaded; PairError for what is no place."""
    model_id = _place("drafter", place)
    directory, revision = without_revision("drafter", model_id)
    return Part("drafter", model_id, directory, device, dtype, None, revision)


def for_role(choice: ByRole, role: str, option: str) -> str | None:
    """One model's value of an option that is given once for both or once for each."""
    if isinstance(choice, dict):
        if unknown := set(choice) - set(ROLES):
            raise PairError(f"{option} must have the keys target and drafter, not {ascii(unknown.pop())}")
        return choice.get(role)
    return choice


def in_project(model_id: str) -> str:
    """The directory of a model that comes with the project; any other id as it is."""
    directory = ROOT / model_id
    return str(directory) if os.path.isdir(directory) else model_id


def _place(role: str, place: object) -> str:
    if not isinstance(place, (str, os.PathLike)):
        raise PairError(f"{role} must be a hub id or a directory, not {type(place).__name__}")
    return os.path.expanduser(os.fspath(place))


def without_revision(role: str, model_id: str) -> tuple[str, str | None]:
    """The place and the revision that ID@REVISION names. A directory may have an @ in its name."""
    place, at, revision = model_id.rpartition("@")
    if not at or "\0" in model_id or os.path.isdir(model_id) or os.path.isabs(model_id):
        return model_id, None
    if not re.fullmatch(r"\w[\w./-]*", revision) or ".." in revision:
        raise PairError(f"{role} must be a hub id, ID@REVISION or a directory, not {ascii(model_id)}")
    if os.path.isdir(place):
        raise PairError(f"{role} must be given without @{revision}: the directory {place} has no revisions")
    return place, None if revision == "main" else revision


def _device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise PairError(f"device must be cpu, cuda or cuda:N, not {ascii(device)}")
    if cuda.is_cuda(device) and int(device[5:] or 0) >= torch.cuda.device_count():
        raise PairError(f"device {device} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _quantize(kind: str | None, usual: str | None) -> str | None:
    """The kind that is asked for, None for none. usual: the kind where none is asked for."""
    kind = usual if kind is None else kind
    if kind in (None, "none"):
        return None
    if not isinstance(kind, str) or kind not in QUANTIZE:
        raise PairError(refusal("quantize", "choice", kind, names=", ".join(["none", *QUANTIZE])))
    return kind


def _dtype(name: str | None) -> torch.dtype | None:
    if name not in (None, "auto", *DTYPES):
        raise PairError(refusal("dtype", "choice", name, names=", ".join(["auto", *DTYPES])))
    return getattr(torch, name) if name in DTYPES else None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
