"""The config.json of a head, as the speculators library writes it or as its authors do. Its numbers may be
anything, so each is checked before memory is taken for it; what is wrong is said in one sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN

C = TypeVar("C")
LayerConfig = LlamaConfig | Qwen3Config
LAYERS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
LAYER_CONFIG = "transformer_layer_config"  # where the speculators format has what the layers are built like
EMBEDDINGS = "embed_tokens.weight"  # the tensor
MASKS = ("pard_token", "ptd_token_id")  # the names of a mask token's id, of what drafts in parallel
WINDOWS = ("full_attention", "sliding_attention")  # kinds of layers
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")  # kinds of rotary positions
# Far above what any head has, and small enough that a config that lies takes no memory before it is refused.
MOST_TOKENS, MOST_UNITS, MOST_LAYERS, MOST_DRAFT_LAYERS = 10_000_000, 1_000_000, 1_000, 64

PYDANTIC = ConfigDict(strict=True, populate_by_name=True)
Positive = Annotated[float, Field(gt=0, lt=1e300), "a number above 0"]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
TokenId = Annotated[int, "a whole number, a token's id"]
LayerIds = Annotated[  # the numbers of some of the target's layers
    tuple[Annotated[int, Field(ge=0, le=MOST_LAYERS)], ...],
    Field(strict=False, min_length=1, max_length=MOST_LAYERS),
    f"a list of at most {MOST_LAYERS:,} whole numbers from 0 to {MOST_LAYERS:,}",
]
LayerTypes = Annotated[
    tuple[Literal["full_attention", "sliding_attention"], ...],
    Field(strict=False),
    f"a list of {' or '.join(WINDOWS)} for each layer",
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


@checked(frozen=True, config=PYDANTIC)
class LayerSizes:
    """What is checked of the layers' config before transformers reads it."""

    model_type: Annotated[Literal["llama", "qwen3"], "llama or qwen3"]
    vocab_size: Tokens | None = None
    hidden_size: Units | None = None
    intermediate_size: Units | None = None
    num_attention_heads: Units | None = None
    num_key_value_heads: Units | None = None
    head_dim: Units | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=MOST_DRAFT_LAYERS)] | None = 1
    sliding_window: Tokens | None = None
    max_position_embeddings: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    rms_norm_eps: Positive = 1e-6
    hidden_act: Annotated[Literal[tuple(ACT2FN)], "an activation of transformers"] = "silu"  # type: ignore[valid-type]
    layer_types: LayerTypes | None = None

    def __post_init__(self) -> None:
        kinds, layers = self.layer_types, self.num_hidden_layers
        if kinds is not None and len(kinds) != layers:
            raise ValueError(f"layer_types must have an entry for each layer, {layers}, not {len(kinds)}")
        if WINDOWS[1] in (kinds or ()) and self.sliding_window is None:
            raise ValueError(f"sliding_window must be given for layers of the type {WINDOWS[1]}")


@checked(frozen=True, config=PYDANTIC)
class Rotation:
    """What is checked of the rotary positions of all layers, as transformers has read them."""

    rope_type: Annotated[Literal[ROTATIONS], f"one of {', '.join(ROTATIONS)}"]  # type: ignore[valid-type]
    rope_theta: Positive
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1), "a number above 0 to 1"] = 1.0


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
        part: str = "",
        keys: Mapping[str, str] | None = None,
        **known: Any,
    ) -> C:
        """What stands there for these fields; ValueError for what is wrong. raw: a part of the file. part:
        begins the names of its keys in a sentence. keys: the format's own, by the names of the fields. known:
        what is not in it, or is taken in place of that, by the names of the fields."""
        names = {field.name: alias_of(config, field.name) for field in fields(config)}  # type: ignore[arg-type]
        names |= keys or {}
        raw = self.raw if raw is None else raw
        values = {name: raw[key] for name, key in names.items() if key in raw} | known
        try:
            return config(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        if "error" in first.get("ctx", {}):  # of a __post_init__
            raise ValueError(f"{part}{first['ctx']['error']}")
        name = next(name for name in names if first["loc"][0] in (name, alias_of(config, name)))
        words = allowed(get_type_hints(config, include_extras=True)[name])
        raise ValueError(f"{part}{names[name]} must be {words}, not {ascii(values.get(name))[:60]}")

    def layer(self) -> Any:
        """What the head's layers are built like, a LayerConfig, by a part of the config or, in the authors'
        format, all of it."""
        raw = self.raw if self.is_authors else self.raw.get(LAYER_CONFIG)
        if not isinstance(raw, dict):
            raise ValueError(f"{LAYER_CONFIG} must be an object, not {type(raw).__name__}")
        part, default = ("", "llama") if self.is_authors else (f"{LAYER_CONFIG}.", "qwen3")
        sizes = self.read(LayerSizes, {"model_type": default} | raw, part)
        values = {"num_hidden_layers": 1} | {key: value for key, value in raw.items() if key != "model_type"}
        layer = LAYERS[sizes.model_type](**values)
        if WINDOWS[1] in (sizes.layer_types or ()) and layer.sliding_window is None:
            raise ValueError(f"use_sliding_window must be true for layers of the type {WINDOWS[1]}")
        rope, is_apart = layer.rope_parameters, isinstance(raw.get("rope_parameters"), dict)
        if is_apart and any(isinstance(value, dict) for value in rope.values()):
            raise ValueError(
                f"{part}rope_parameters must be the same for all layers, not {ascii(rope)[:120]}"
            )
        rotation = self.read(Rotation, rope, f"{part}rope_parameters." if is_apart else part)
        rotated = rotation.partial_rotary_factor * layer.head_dim
        if rotated < 2 or int(rotated) % 2:
            raise ValueError(
                f"partial_rotary_factor must rotate an even number of the {layer.head_dim} channels of a "
                f"head, not be {rotation.partial_rotary_factor}"
            )
        if layer.num_attention_heads % layer.num_key_value_heads or layer.head_dim % 2:
            raise ValueError(
                "num_attention_heads must be a multiple of num_key_value_heads and head_dim even, not "
                f"{layer.num_attention_heads}, {layer.num_key_value_heads} and {layer.head_dim}"
            )
        return layer


def alias_of(config: type, name: str) -> str:
    return config.__pydantic_fields__[name].alias or name


def allowed(hint: object) -> str:
    """What a value of this type can be, in words; empty where the type does not tell."""
    if hint is bool:
        return "true or false"
    notes = getattr(hint, "__metadata__", ())
    if words := next((note for note in notes if isinstance(note, str)), ""):
        return words
    if bounds := [bound for note in notes for bound in note.metadata]:
        least, most = bounds
        return f"a whole number from {least.ge:,} to {most.le:,}"
    words = next(filter(None, map(allowed, get_args(hint))), "")
    return f"null or {words}" if type(None) in get_args(hint) else words


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
