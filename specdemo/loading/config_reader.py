"""Reads the config.json of a head, whose numbers may be anything: each is checked before memory is taken for
it."""

from transformers import LlamaConfig, Qwen3Config

from specdemo.errors import LoadError
from specdemo.loading.heads import HeadFormat

LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
LAYER_CONFIG = "transformer_layer_config"
# Their rotary positions depend on the length of the text, which would have to be read from the device.
UNSUITABLE_ROPE = ("dynamic", "longrope")
# Far above what any head has, and small enough that a config that lies takes no memory before it is refused.
MOST_TOKENS, MOST_UNITS, MOST_LAYERS = 10_000_000, 1_000_000, 1_000
UNITS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
LARGEST_SIZES = {"vocab_size": MOST_TOKENS} | dict.fromkeys(UNITS, MOST_UNITS)  # of the layer's config


class ConfigReader:
    """One config.json. `start` begins each sentence about it."""

    def __init__(self, raw: dict, found: HeadFormat, start: str):
        self.raw, self.found, self.start = raw, found, start

    def layer_config(self, most_layers: int) -> LlamaConfig | Qwen3Config:
        """What its layers are built like, from a part of the config or, in the authors' format, all of it."""
        raw, name, default = self.raw, "model_type", "llama"
        if self.found.format == "speculators":
            raw, name, default = self.raw.get(LAYER_CONFIG), f"{LAYER_CONFIG}.model_type", "qwen3"
        if not isinstance(raw, dict):
            raise self.error(f"{LAYER_CONFIG} must be an object, not {type(raw).__name__}")
        kind = raw.get("model_type", default)
        if kind not in LAYERS:
            raise self.error(f"{name} must be llama or qwen3, not {ascii(kind)[:60]}")
        layers = raw.get("num_hidden_layers", 1)
        if type(layers) is not int or not 1 <= layers <= most_layers:
            allowed = "1" if most_layers == 1 else f"a whole number from 1 to {most_layers:,}"
            raise self.error(f"num_hidden_layers must be {allowed}, not {ascii(layers)[:60]}")
        for name, most in LARGEST_SIZES.items():
            self.checked(name, raw.get(name), most)
        layer = LAYERS[kind](**{key: value for key, value in raw.items() if key != "model_type"})
        rope = layer.rope_parameters or {}
        if rope.get("rope_type", "default") in UNSUITABLE_ROPE or rope.get("partial_rotary_factor", 1) != 1:
            raise self.error(f"rotary positions of this kind cannot be run: {ascii(rope)[:200]}")
        if layer.num_attention_heads % layer.num_key_value_heads or layer.head_dim % 2:
            raise self.error(
                "num_attention_heads must be a multiple of num_key_value_heads and head_dim even, not "
                f"{layer.num_attention_heads}, {layer.num_key_value_heads} and {layer.head_dim}"
            )
        return layer

    def ids_of_layers(self, name: str, value: object, or_null: bool = True) -> tuple[int, ...] | None:
        """Which of the target's layers; None for null."""
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
        """A size; None stays None."""
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
