"""Reads the config.json of a head, whose numbers may be anything: each is checked before memory is taken for
it."""

from typing import ClassVar

from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN

from specdemo.drafters.formats import HeadFormat
from specdemo.drafters.heads import DraftHead, HeadConfig
from specdemo.errors import LoadError

LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
LAYER_CONFIG = "transformer_layer_config"
EMBEDDINGS = "embed_tokens.weight"  # the tensor
# Far above what any head has, and small enough that a config that lies takes no memory before it is refused.
MOST_TOKENS, MOST_UNITS, MOST_LAYERS = 10_000_000, 1_000_000, 1_000
MOST_DRAFT_LAYERS = 64
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")  # kinds of rotary positions
UNITS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
LARGEST_SIZES = {"vocab_size": MOST_TOKENS} | dict.fromkeys(UNITS, MOST_UNITS)  # of the layers' config
LARGEST_SIZES |= {"num_hidden_layers": MOST_DRAFT_LAYERS, "sliding_window": MOST_TOKENS}
LARGEST_SIZES |= {"max_position_embeddings": 1_000_000_000}


def is_positive(value: object) -> bool:
    """Whether the value is a finite number above 0."""
    return type(value) in (int, float) and 0 < value < 1e300


class ConfigReader:
    """One config.json. `start` begins each sentence about it."""

    head: ClassVar[type[DraftHead]]  # what it describes

    def __init__(self, raw: dict, found: HeadFormat, start: str):
        self.raw, self.found, self.start = raw, found, start

    def config(self, tensors: set[str]) -> HeadConfig:
        """The head's config. tensors: the names of the tensors in the head's files; of no more than its
        embeddings before the files have come from the hub."""
        raise NotImplementedError

    def in_file(self, name: str) -> str:
        """What the format calls a tensor of the head's."""
        return name

    def layer_config(self) -> LlamaConfig | Qwen3Config:
        """What the head's layers are built like, from a part of the config or, in the authors' format, all of
        it."""
        raw, name, default = self.raw, "model_type", "llama"
        if self.found.format == "speculators":
            raw, name, default = self.raw.get(LAYER_CONFIG), f"{LAYER_CONFIG}.model_type", "qwen3"
        if not isinstance(raw, dict):
            raise self.error(f"{LAYER_CONFIG} must be an object, not {type(raw).__name__}")
        kind = raw.get("model_type", default)
        if not isinstance(kind, str) or kind not in LAYERS:
            raise self.error(f"{name} must be llama or qwen3, not {ascii(kind)[:60]}")
        for name, most in LARGEST_SIZES.items():
            self.checked(name, raw.get(name), most)
        values = {"num_hidden_layers": 1} | {key: value for key, value in raw.items() if key != "model_type"}
        self._check_windows(raw, values["num_hidden_layers"])
        eps, activation = raw.get("rms_norm_eps", 1e-6), raw.get("hidden_act", "silu")
        if not is_positive(eps):
            raise self.error(f"rms_norm_eps must be a number above 0, not {ascii(eps)[:60]}")
        if not isinstance(activation, str) or activation not in ACT2FN:
            raise self.error(
                f"hidden_act must be an activation of transformers, not {ascii(activation)[:60]}"
            )
        for place in (raw, raw.get("rope_parameters")):
            theta = place.get("rope_theta", 1e4) if isinstance(place, dict) else 1e4
            if not is_positive(theta):
                raise self.error(f"rope_theta must be a number above 0, not {ascii(theta)[:60]}")
        layer = LAYERS[kind](**values)
        if "sliding_attention" in (raw.get("layer_types") or ()) and layer.sliding_window is None:
            raise self.error("use_sliding_window must be true for layers of the type sliding_attention")
        self._check_rotation(layer)
        if layer.num_attention_heads % layer.num_key_value_heads or layer.head_dim % 2:
            raise self.error(
                "num_attention_heads must be a multiple of num_key_value_heads and head_dim even, not "
                f"{layer.num_attention_heads}, {layer.num_key_value_heads} and {layer.head_dim}"
            )
        return layer

    def _check_windows(self, raw: dict, layers: object) -> None:
        kinds, known = raw.get("layer_types"), ("full_attention", "sliding_attention")
        if kinds is None:
            return
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            words = f"{layers} times {' or '.join(known)}"
            raise self.error(f"layer_types must be a list of {words}, not {ascii(kinds)[:60]}")
        if "sliding_attention" in kinds and raw.get("sliding_window") is None:
            raise self.error("sliding_window must be given for layers of the type sliding_attention")

    def _check_rotation(self, layer: LlamaConfig | Qwen3Config) -> None:
        rope = layer.rope_parameters
        is_nested = any(isinstance(value, dict) for value in rope.values())  # one for each type of layer
        if is_nested or rope.get("rope_type") not in ROTATIONS:
            raise self.error(
                f"rope_parameters must be of one rotation with a rope_type of {', '.join(ROTATIONS)}, not "
                f"{ascii(rope)[:120]}"
            )
        part = rope.get("partial_rotary_factor", 1)
        rotated = part * layer.head_dim if isinstance(part, (int, float)) else 0
        if not 2 <= rotated <= layer.head_dim or int(rotated) % 2:
            raise self.error(
                "partial_rotary_factor must be above 0 to 1 and rotate an even number of the "
                f"{layer.head_dim} channels of a head, not {ascii(part)[:60]}"
            )

    def ids_of_layers(self, name: str, value: object, or_null: bool = True) -> tuple[int, ...] | None:
        """The numbers of some of the target's layers, which have been checked; None for null."""
        if value is None and or_null:
            return None
        is_list = isinstance(value, list) and 1 <= len(value) <= MOST_LAYERS
        if not is_list or not all(type(i) is int and 0 <= i <= MOST_LAYERS for i in value):
            raise self.error(
                f"{name} must be {'null or ' if or_null else ''}a list of at most {MOST_LAYERS:,} whole "
                f"numbers from 0 to {MOST_LAYERS:,}, not {ascii(value)[:60]}"
            )
        return tuple(value)

    def draft_vocab_size(self, default: int, vocab_size: int) -> int:
        size = self.number("draft_vocab_size", MOST_TOKENS, default)
        if size > vocab_size:
            raise self.error(f"draft_vocab_size must be at most vocab_size, {vocab_size:,}, not {size:,}")
        return size

    def mask_token(self, vocab_size: int) -> int:
        token = self.raw.get("mask_token_id")
        if type(token) is not int or not 0 <= token < vocab_size:
            raise self.error(
                f"mask_token_id must be a whole number from 0 to {vocab_size - 1:,}, not {ascii(token)[:60]}"
            )
        return token

    def origin(self) -> tuple[str | None, int | None]:
        """The verifier's name, and the number of drafted tokens."""
        match self.raw.get("speculators_config"):
            case {"verifier": {"name_or_path": str(verifier)}, **rest}:
                pass
            case rest:
                verifier = None
        match rest:
            case {"proposal_methods": [{"speculative_tokens": int(tokens)}, *_]}:
                return verifier, tokens
        return verifier, None

    def number(self, name: str, most: int, default: int | None = None) -> int | None:
        value = self.raw.get(name, default)
        if value is None and default is not None:
            raise self.error(f"{name} must be a whole number from 1 to {most:,}, not None")
        return self.checked(name, value, most)

    def checked(self, name: str, value: object, most: int) -> int | None:
        """A size that has been checked; None stays None."""
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise self.error(f"{name} must be a whole number from 1 to {most:,}, not {ascii(value)[:60]}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} must be true or false, not {ascii(value)[:60]}")
        return value

    def error(self, what: str) -> LoadError:
        return LoadError(f"{self.start}: {what}")
