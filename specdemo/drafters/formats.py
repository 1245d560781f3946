"""Which config.json describes a head, that is a drafter made for one target, and in whose format."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdemo.errors import LoadError
from specdemo.events import DRAFTER_KINDS, drafter_label

SPECULATOR = "speculators_model_type"  # the key of a config in the format of the speculators library
Format = Literal["speculators", "authors"]
LONGEST_HEADER = 10_000_000  # bytes of a safetensors file that name its tensors
MASKS = ("pard_token", "ptd_token_id")  # the names of a mask token's id, of what drafts in parallel
PUBLISHED = {kind.name: kind.authors for kind in DRAFTER_KINDS.values() if kind.authors is not None}
NOT_RUN = {"MLP speculator": r"mlp_?speculator", "Medusa": r"medusa"}  # what is known besides
OF_MEDUSA = "medusa_num_heads"  # the key of its authors' config.json that tells it


@dataclass(frozen=True)
class HeadFormat:
    """What a head's config.json describes: a kind of head, and in which format."""

    kind: str  # a name in DRAFTER_KINDS
    format: Format


def read_config(folder: Path) -> object:
    """What is in config.json. OSError or ValueError if it cannot be read."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def known_config(folder: Path) -> dict[str, Any] | None:
    """The object in config.json; None if there is none, which reading the model reports."""
    try:
        config = read_config(folder)
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def describes_head(folder: Path) -> bool:
    """Whether the model in this folder is a head of any kind."""
    config = known_config(folder)
    return config is not None and (
        SPECULATOR in config or authors_kind(config) is not None or has_eagle_tensors(folder)
    )


def has_eagle_tensors(folder: Path) -> bool:
    """Whether the weights in this folder are those of an EAGLE, EAGLE-2 or HASS head, by their names: its
    config.json is that of a Llama with one layer."""
    try:
        with (folder / "model.safetensors").open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            names = json.loads(file.read(min(size, LONGEST_HEADER))).keys()
    except (OSError, ValueError, AttributeError):
        return False
    return {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= names and "lm_head.weight" not in names


def authors_kind(config: Mapping[str, object]) -> str | None:
    """The name of the kind of head that its authors publish with such a config: one in DRAFTER_KINDS, or what
    a sentence calls a kind that cannot be run. None for a whole model."""
    if OF_MEDUSA in config:
        return "Medusa"
    classes = config.get("architectures")
    names = [config.get("model_type"), *(classes if isinstance(classes, list) else [])]
    for kind, pattern in (PUBLISHED | NOT_RUN).items():
        if any(isinstance(name, str) and re.search(pattern, name.lower()) for name in names):
            is_parallel = kind == "eagle3" and any(config.get(mask) is not None for mask in MASKS)
            return "P-EAGLE outside of the speculators format" if is_parallel else kind
    return None


def format_of(config: Mapping[str, object], start: str) -> HeadFormat:
    """What a head's config.json describes. LoadError, whose sentence begins with `start`, for a kind of head
    that cannot be run."""
    if SPECULATOR in config:
        name = config[SPECULATOR]
        types = [kind.name for kind in DRAFTER_KINDS.values() if kind.in_speculators]
        if name not in types:
            *most, last = types
            allowed = f"{', '.join(most)} or {last}, the types that can be run here"
            raise LoadError(f"{start}: {SPECULATOR} must be {allowed}, not {ascii(name)[:60]}")
        return HeadFormat(str(name), "speculators")
    kind = authors_kind(config) or "eagle"  # told by their tensors alone
    if kind not in PUBLISHED:
        *most, last = (drafter_label("model", name).removesuffix(" head") for name in PUBLISHED)
        can = f"{', '.join(most)} and {last}"
        raise LoadError(f"{start}: heads of the kind {kind} cannot be run here, only those of {can}")
    return HeadFormat(kind, "authors")
