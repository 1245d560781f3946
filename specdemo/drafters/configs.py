"""What a config.json says: which kind of drafter a model is, and what a head is built like, in the format of
the speculators library or in its authors'. Its numbers may be anything, so each that costs memory is checked
before that is taken. pydantic and transformers say what else is wrong."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked
from safetensors import SafetensorError, safe_open
from transformers import LlamaConfig, Qwen3Config

from specdemo.events import DRAFTER_KINDS

C = TypeVar("C")
LayerConfig = LlamaConfig | Qwen3Config
LAYERS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
LAYER_CONFIG = "transformer_layer_config"  # where the speculators format has what the layers are built like
EMBEDDINGS = "embed_tokens.weight"  # the tensor
SPECULATOR = "speculators_model_type"  # a key of the speculators format alone
PUBLISHED = {kind.name: kind.authors for kind in DRAFTER_KINDS.values() if kind.authors is not None}
# The kinds of assistants (`model_type`), and the kind of the text model of the targets that each is made for.
ASSISTANTS = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
MASKS = ("pard_token", "ptd_token_id")  # the names of a mask token's id, of what drafts in parallel
WINDOWS = ("full_attention", "sliding_attention")  # kinds of layers
ROTATIONS = ("default", "linear", "dynamic", "yarn", "llama3")  # kinds of rotary positions
# Far above what any head has, and small enough that a config that lies takes no memory before it is refused.
MOST_TOKENS, MOST_UNITS, MOST_LAYERS, MOST_DRAFT_LAYERS = 10_000_000, 1_000_000, 1_000, 64
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
MOST = {"num_hidden_layers": MOST_DRAFT_LAYERS, "vocab_size": MOST_TOKENS} | dict.fromkeys(SIZES, MOST_UNITS)

PYDANTIC = ConfigDict(strict=True, populate_by_name=True)
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
LayerIds = Annotated[  # the numbers of some of the target's layers
    tuple[Annotated[int, Field(ge=0, le=MOST_LAYERS)], ...],
    Field(strict=False, min_length=1, max_length=MOST_LAYERS),
]


@checked(frozen=True, config=PYDANTIC)
class HeadConfig:
    """What all heads' configs tell. The sizes of the layers, V and the rotary positions are in `layer`.
    bounds: the names of fields that some heads have, and of those that they are at most."""

    bounds: ClassVar[dict[str, str]] = {"draft_vocab_size": "vocab_size"}
    layer: Any  # a LayerConfig, into which pydantic cannot look

    def get_text_config(self) -> Any:
        """What `context_of` asks of a transformers config: here, the layers' config."""
        return self.layer

    @property
    def vocab_size(self) -> int:
        """V: the number of the target's tokens."""
        return self.layer.vocab_size

    @property
    def hidden_size(self) -> int:
        """H, the head's hidden size."""
        return self.layer.hidden_size

    @property
    def feature_size(self) -> int:
        """The target's hidden size."""
        return self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The target's layers whose inputs the head reads, for a target of so many layers; see `Features`."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for name, bound in self.bounds.items():
            value, most = getattr(self, name, 0), getattr(self, bound)
            if value > most:
                field = alias_of(type(self), name)
                raise ValueError(f"{field} must be at most {bound}, {most:,}, not {value:,}")
        mask = getattr(self, "mask_token_id", 0)
        if not 0 <= mask < self.vocab_size:
            last = f"{self.vocab_size - 1:,}, not {ascii(mask)[:60]}"
            raise ValueError(f"mask_token_id must be a whole number from 0 to {last}")


@dataclass(frozen=True)
class HeadJson:
    """A head's config.json. kind: a name in DRAFTER_KINDS. tensors: the names of those in the head's files;
    of no more than its embeddings before the files have come from the hub."""

    raw: dict[str, Any]
    kind: str
    is_authors: bool
    tensors: set[str]

    def read(
        self,
        config: type[C],
        raw: Mapping[str, Any] | None = None,
        keys: Mapping[str, str] | None = None,
        **known: Any,
    ) -> C:
        """What stands there for these fields; ValueError for what is wrong. raw: in place of the file. keys:
        the format's own, by the names of the fields. known: what is not in it, or is taken in place of that,
        by the names of the fields."""
        names = {field.name: alias_of(config, field.name) for field in fields(config)}  # type: ignore[arg-type]
        names |= keys or {}
        raw = self.raw if raw is None else raw
        values = {name: raw[key] for name, key in names.items() if key in raw} | known
        try:
            return config(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        if "error" in first.get("ctx", {}):  # of a __post_init__
            raise ValueError(str(first["ctx"]["error"]))
        name = next(name for name in names if first["loc"][0] in (name, alias_of(config, name)))
        raise ValueError(f"{names[name]}: {first['msg']}, not {ascii(values.get(name))[:60]}")

    def layer(self) -> Any:
        """What the head's layers are built like, a LayerConfig, by a part of the config or, in the authors'
        format, all of it."""
        raw = self.raw if self.is_authors else self.raw.get(LAYER_CONFIG)
        if not isinstance(raw, dict):
            raise ValueError(f"{LAYER_CONFIG} must be an object, not {type(raw).__name__}")
        kind = raw.get("model_type", "llama" if self.is_authors else "qwen3")
        if not isinstance(kind, str) or kind not in LAYERS:
            raise ValueError(f"model_type must be llama or qwen3, not {ascii(kind)[:60]}")
        values = {"num_hidden_layers": 1} | {key: value for key, value in raw.items() if key != "model_type"}
        for name, most in MOST.items():
            value = values.get(name, 1)
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise ValueError(f"{name} must be a whole number from 1 to {most:,}, not {ascii(value)[:60]}")
        layer = LAYERS[kind](**values)
        scales = {
            "rms_norm_eps": layer.rms_norm_eps,
            "rope_theta": layer.rope_parameters.get("rope_theta", 1),
        }
        if wrong := [name for name, value in scales.items() if not value > 0]:
            raise ValueError(f"{wrong[0]} must be above 0, not {scales[wrong[0]]}")
        kinds = getattr(layer, "layer_types", None) or ()
        if not {*kinds} <= {*WINDOWS}:
            raise ValueError(f"layer_types must have only {' and '.join(WINDOWS)}, not {ascii(kinds)[:60]}")
        if WINDOWS[1] in kinds and getattr(layer, "sliding_window", None) is None:
            needed = "sliding_window must be given, and use_sliding_window be true"
            raise ValueError(f"{needed}, for layers of the type {WINDOWS[1]}")
        if (rotation := layer.rope_parameters.get("rope_type")) not in ROTATIONS:
            names = ", ".join(ROTATIONS)
            raise ValueError(f"rope_parameters.rope_type must be one of {names}, not {ascii(rotation)[:60]}")
        return layer


def alias_of(config: type, name: str) -> str:
    return config.__pydantic_fields__[name].alias or name


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


def kind_in(folder: Path) -> str:
    """What the model in this folder is: "head", of any kind, or what `kind_of_model` says."""
    config = known_config(folder)
    if config is None:
        return "model"
    is_head = SPECULATOR in config or authors_kind(config) is not None or has_eagle_tensors(folder)
    return "head" if is_head else kind_of_model(config)


def kind_of_model(config: Mapping[str, Any]) -> str:
    """The name in DRAFTER_KINDS of a model of transformers with this config, as a drafter."""
    if str(config.get("model_type")) in ASSISTANTS:
        return "assistant"
    return "pard" if masks_in(config) else "model"


def has_eagle_tensors(folder: Path) -> bool:
    """Whether the weights in this folder are those of an EAGLE, EAGLE-2 or HASS head, by their names: its
    config.json is that of a Llama with one layer."""
    try:
        with safe_open(folder / "model.safetensors", "pt") as content:
            names = set(content.keys())
    except (OSError, SafetensorError):
        return False
    return {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= names and "lm_head.weight" not in names


def authors_kind(config: Mapping[str, object]) -> str | None:
    """The name in DRAFTER_KINDS of the head that its authors publish with such a config. None for a model."""
    classes = config.get("architectures")
    names = [config.get("model_type"), *(classes if isinstance(classes, list) else [])]
    for kind, pattern in PUBLISHED.items():
        if any(isinstance(name, str) and re.search(pattern, name.lower()) for name in names):
            return kind
    return None


def masks_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config names as the mask token, by the name that it has there; nothing of a model that does not
    draft in parallel."""
    return {name: config[name] for name in MASKS if config.get(name) is not None}
