"""Reads heads in two formats: that of the speculators library (config.json with a `speculators_model_type`),
and the one in which their authors publish them (config.json like a small model's, a class named *Eagle3* or
DFlashDraftModel). Neither library is needed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specdemo.drafters.config_reader import MOST_UNITS, ConfigReader
from specdemo.drafters.dflash.format import DFlashReader
from specdemo.drafters.dflash.head import DFlashConfig, DFlashHead
from specdemo.drafters.dflash2.format import DFlash2Reader
from specdemo.drafters.dflash2.head import DFlash2Config, DFlash2Head
from specdemo.drafters.eagle.format import EagleReader
from specdemo.drafters.eagle.head import EagleConfig, EagleHead
from specdemo.drafters.eagle3.head import Eagle3Config, Eagle3Head
from specdemo.drafters.formats import (
    DFLASH2_KIND,
    DFLASH_KIND,
    DSPARK_KIND,
    EAGLE3_KIND,
    EAGLE_KIND,
    MEDUSA_KIND,
    PEAGLE_KIND,
    describes_head,
    format_of,
    read_config,
)
from specdemo.drafters.head_kind import HeadKind
from specdemo.drafters.heads import CachedHead, DraftHead
from specdemo.drafters.medusa.format import MedusaReader
from specdemo.drafters.medusa.head import MedusaConfig, MedusaHead
from specdemo.drafters.peagle.head import PEagleConfig, PEagleHead
from specdemo.errors import LoadError, load_errors
from specdemo.runtime.files import stored_shapes, weight_files

UNUSED = {"verifier_lm_head.weight", "verifier_norm.weight"}  # copies of the verifier's, for training alone
MAPS = {"d2t", "t2d"}
EMBEDDINGS, OUTPUT = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Speculator:
    """What a head's config.json says."""

    config: Eagle3Config | EagleConfig | MedusaConfig | DFlashConfig
    verifier: str | None  # the target that it was trained for: a hub id or a directory
    speculative_tokens: int | None  # how many it was trained to draft
    in_file: Callable[[str], str]  # what the format calls a tensor of the head's

    def empty_head(self, dtype: torch.dtype = torch.float32) -> DraftHead:
        """The head without its weights: on the meta device, if that is torch's default device."""
        return HEADS[type(self.config)](self.config, dtype)

    @property
    def unused(self) -> set[str]:
        """Tensors that are copies of the target's."""
        if isinstance(self.config, Eagle3Config):
            return UNUSED
        is_whole = self.config.draft_vocab_size == self.config.vocab_size
        return UNUSED | {EMBEDDINGS} | ({OUTPUT} if is_whole else set())


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
            tensors = stored_shapes(folder) if _are_here(folder) else {EMBEDDINGS: []}
        reader = READERS[found.kind](raw, found, start)
        return Speculator(reader.config(tensors), *reader.origin(), reader.in_file)


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
        own_names = {speculator.in_file(name): name for name in head.state_dict()}
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


class Eagle3Reader(ConfigReader):
    def in_file(self, name: str) -> str:
        return name.replace("layers.0.", "midlayer.", 1) if self.found.format == "authors" else name

    def config(self, tensors: Mapping[str, list[int]]) -> Eagle3Config:
        ids = self._layer_ids()
        layer = self.layer_config()
        default = 32000 if self.found.format == "speculators" else layer.vocab_size
        parallel = self.found.kind == PEAGLE_KIND
        mask = {"mask_token_id": self.mask_token(layer.vocab_size)} if parallel else {}
        config = (PEagleConfig if parallel else Eagle3Config)(
            layer=layer,
            draft_vocab_size=self.draft_vocab_size(default, layer.vocab_size),
            layer_ids=ids,
            features=len(ids or (0, 0, 0)),
            target_hidden_size=self.number("target_hidden_size", MOST_UNITS),
            norm_before_residual=self.flag("norm_before_residual"),
            norm_before_fc=self.flag("norm_before_fc"),
            fc_norm=self.flag("fc_norm"),
            norm_output=self.flag("norm_output"),
            own_embeddings=EMBEDDINGS in tensors,
            **mask,
        )
        if config.norm_before_fc and config.fc_norm:
            raise self.error("norm_before_fc and fc_norm cannot both be true")
        return config

    def _layer_ids(self) -> tuple[int, ...] | None:
        name = "eagle_aux_hidden_state_layer_ids"
        ids, own = self.raw.get(name), self.raw.get("eagle_config")  # some authors' place for it
        if ids is None and isinstance(own, dict):
            ids = own.get(name)
        return self.ids_of_layers(name, ids)


READERS: dict[str, type[ConfigReader]] = {
    EAGLE3_KIND: Eagle3Reader,
    PEAGLE_KIND: Eagle3Reader,
    EAGLE_KIND: EagleReader,
    MEDUSA_KIND: MedusaReader,
    DFLASH_KIND: DFlashReader,
    DFLASH2_KIND: DFlash2Reader,
    DSPARK_KIND: DFlashReader,
}
HEADS: dict[type, type[DraftHead]] = {
    Eagle3Config: Eagle3Head,
    PEagleConfig: PEagleHead,
    EagleConfig: EagleHead,
    MedusaConfig: MedusaHead,
    DFlashConfig: DFlashHead,
    DFlash2Config: DFlash2Head,
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
    if name in speculator.unused or (name in MAPS and config.draft_vocab_size == config.vocab_size):
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
