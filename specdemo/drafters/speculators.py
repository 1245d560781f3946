"""Reads heads in two formats: that of the speculators library (config.json with a `speculators_model_type`),
and those in which their authors publish them, which formats.py tells by classes, keys and tensors. Neither
library is needed."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specdemo.drafters.config_reader import EMBEDDINGS, ConfigReader
from specdemo.drafters.dflash.format import DFlashReader
from specdemo.drafters.dflash2.format import DFlash2Reader
from specdemo.drafters.eagle.format import EagleReader
from specdemo.drafters.eagle3.format import Eagle3Reader
from specdemo.drafters.formats import describes_head, format_of, read_config
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.heads import CachedHead, DraftHead, HeadConfig
from specdemo.drafters.peagle.format import PEagleReader
from specdemo.errors import LoadError, load_errors
from specdemo.runtime.files import stored_tensors, weight_files

# What may be copies of the target's, some of them for training alone.
COPIES = {"verifier_lm_head.weight", "verifier_norm.weight", EMBEDDINGS, "lm_head.weight"}
MAPS = {"d2t", "t2d"}


@dataclass(frozen=True)
class Speculator:
    """What a head's config.json says."""

    config: HeadConfig
    verifier: str | None  # the target that it was trained for: a hub id or a directory
    speculative_tokens: int | None  # how many it was trained to draft
    reader: ConfigReader

    def empty_head(self, dtype: torch.dtype = torch.float32) -> DraftHead:
        """The head without its weights: on the meta device, if that is torch's default device."""
        return self.reader.head(self.config, dtype)


def read_speculator(folder: Path, shown: str | None = None) -> Speculator:
    """Reads config.json. LoadError if it describes no head that can be run. shown: what the sentence calls
    the head, in place of its folder."""
    place = shown or str(folder)
    with load_errors("drafter", str(folder), shown=place):
        start = f"drafter: {place} cannot be loaded, because of its config.json"
        raw = read_config(folder)
        if not isinstance(raw, dict):
            raise LoadError(f"{start}: it must hold an object, not {type(raw).__name__}")
        found = format_of(raw, start)
        # Before its weights have come from the hub, it counts as one with embeddings of its own.
        with load_errors("drafter", str(folder), "weights", place):
            tensors = set(stored_tensors(folder)) if _are_here(folder) else {EMBEDDINGS}
        reader = READERS[found.kind](raw, found, start)
        return Speculator(reader.config(tensors), *reader.origin(), reader)


def read_head(
    folder: Path, speculator: Speculator, dtype: torch.dtype, shown: str | None = None
) -> DraftHead:
    """The head on the CPU, in this dtype, detached from any target. LoadError if its tensors are not those
    that its config.json asks for."""
    place = shown or str(folder)
    where = f"drafter {place}"
    with load_errors("drafter", str(folder), "weights", place):
        with torch.device("meta"):
            head = speculator.empty_head(dtype)
        own_names = {speculator.reader.in_file(name): name for name in head.state_dict()}
        expected = {name: head.state_dict()[own] for name, own in own_names.items()}
        tensors: dict[str, Tensor] = {}
        for file in weight_files(folder):
            with safe_open(file, "pt") as content:
                for name in content.keys():  # noqa: SIM118, which is no dict
                    shape = content.get_slice(name).get_shape()
                    _check_tensor(name, shape, expected, where, speculator)
                    tensors[name] = content.get_tensor(name)
        missing = sorted(expected.keys() - tensors.keys() - {"t2d"})
        if missing:
            what = f"{len(missing)} tensors, first" if len(missing) > 1 else "the tensor"
            raise LoadError(f"{where} lacks {what} {missing[0]}, which its config.json asks for")
        _check_values(tensors, expected, head, where)
        used = {own: tensors[name] for name, own in own_names.items()}
        used = {name: value.to(dtype) if value.is_floating_point() else value for name, value in used.items()}
        head.load_state_dict(used, assign=True)
        head.requires_grad_(False).begin_run()
        return head.eval()


class AnyHead(HeadKind[DraftHead, CachedHead]):
    """Heads in files: which kind of head they have is seen when they are read."""

    def describes(self, folder: Path) -> bool:
        return describes_head(folder)

    def skeleton(self, folder: Path, shown: str) -> DraftHead:
        return read_speculator(folder, shown).empty_head()

    def read(self, folder: Path, dtype: torch.dtype, shown: str) -> DraftHead:
        return read_head(folder, read_speculator(folder, shown), dtype, shown)

    def verifier(self, folder: Path, shown: str) -> str | None:
        return read_speculator(folder, shown).verifier


READERS: dict[str, type[ConfigReader]] = {
    "eagle3": Eagle3Reader,
    "peagle": PEagleReader,
    "eagle": EagleReader,
    "dflash": DFlashReader,
    "dflash2": DFlash2Reader,
    "dspark": DFlashReader,
}


def _are_here(folder: Path) -> bool:
    """Whether all files of its weights have come from the hub."""
    with suppress(OSError, ValueError):  # what is wrong is said when the weights are read
        return all(file.is_file() for file in weight_files(folder))
    return False


def _check_tensor(
    name: str, shape: list[int], expected: dict[str, Tensor], head: str, speculator: Speculator
) -> None:
    config = speculator.config
    is_unused = name in COPIES or (name in MAPS and config.draft_vocab_size == config.vocab_size)
    if name not in expected and is_unused:
        return
    if name not in expected:
        raise LoadError(f"{head} has a tensor {name}, which its config.json does not ask for")
    if list(shape) != list(expected[name].shape):
        raise LoadError(
            f"{head}: its tensor {name} has the shape {shape}, and config.json asks for "
            f"{list(expected[name].shape)}"
        )


def _check_values(
    tensors: dict[str, Tensor], expected: dict[str, Tensor], head: DraftHead, where: str
) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and value.itemsize == 1:  # float8, which needs a scale
            raise LoadError(f"{where}: its tensor {name} cannot be of {value.dtype}")
        if value.is_floating_point() and not value.isfinite().all():
            raise LoadError(f"{where}: its tensor {name} holds values that are not finite")
        if name in expected and value.is_floating_point() is (name in MAPS):
            raise LoadError(f"{where}: its tensor {name} cannot be of {value.dtype}")
    d2t = tensors.get("d2t")
    if d2t is None:
        return
    if head.d2t is None and d2t.any():
        raise LoadError(f"{where}: its tensor d2t must be 0 everywhere, since draft_vocab_size is vocab_size")
    width = head.config.vocab_size
    ids = torch.arange(len(d2t)) + d2t.long()
    if ids.min() < 0 or ids.max() >= width or len(ids.unique()) != len(ids):
        raise LoadError(f"{where}: its tensor d2t does not give a different id below {width:,} to each token")
    can_draft = torch.zeros(width, dtype=torch.bool).index_fill_(0, ids, True)
    if not torch.equal(tensors.setdefault("t2d", can_draft).bool(), can_draft):
        raise LoadError(f"{where}: its tensors d2t and t2d name different tokens")
    tensors["d2t"], tensors["t2d"] = d2t.long(), can_draft
