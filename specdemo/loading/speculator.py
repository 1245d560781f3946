"""Reads EAGLE-3 heads in two formats: that of the speculators library (config.json with a
`speculators_model_type`), and the one in which their authors publish them (config.json like a small model's,
a class named *Eagle3*). Neither library is needed."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from specdemo.errors import LoadError, load_errors
from specdemo.loading.fetch import INDEX, WEIGHTS_FILE, no_weights
from specdemo.loading.heads import Format, format_of, read_config
from specdemo.runtime.eagle3 import Eagle3Config, Eagle3Head

LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
LAYER_CONFIG = "transformer_layer_config"
UNUSED = {"verifier_lm_head.weight", "verifier_norm.weight"}  # copies of the verifier's, for training alone
MAPS = {"d2t", "t2d"}
EMBEDDINGS = "embed_tokens.weight"
# Far above what any head has, and small enough that a config that lies takes no memory before it is refused.
MOST_TOKENS, MOST_UNITS, MOST_LAYERS = 10_000_000, 1_000_000, 1_000
MOST_DRAFT_LAYERS = 64
ROTATIONS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")  # kinds of rotary positions
UNITS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
LARGEST_SIZES = {"vocab_size": MOST_TOKENS} | dict.fromkeys(UNITS, MOST_UNITS)  # of the layers' config
LARGEST_SIZES |= {"num_hidden_layers": MOST_DRAFT_LAYERS, "sliding_window": MOST_TOKENS}


@dataclass(frozen=True)
class Speculator:
    """What a speculator's config.json says."""

    config: Eagle3Config
    verifier: str | None  # the target that it was trained for: a hub id or a directory
    speculative_tokens: int | None  # how many it was trained to draft
    format: Format = "speculators"

    def in_file(self, name: str) -> str:
        """What the format calls a tensor of Eagle3Head's."""
        return name.replace("layers.0.", "midlayer.", 1) if self.format == "authors" else name


def read_speculator(folder: Path, shown: str | None = None) -> Speculator:
    """Reads config.json. LoadError if it describes no head that can be run. shown: what the sentence calls
    the head, in place of its folder."""
    place = shown or str(folder)
    with load_errors("drafter", str(folder), shown=place):
        start = f"drafter: {place} cannot be loaded, because of its config.json"
        reader = ConfigReader(read_config(folder), start)
        # Before its weights have come from the hub, it counts as one with embeddings of its own.
        is_here = any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX))
        return reader.speculator(_tensor_names(folder, place) if is_here else {EMBEDDINGS})


def read_head(
    folder: Path, speculator: Speculator, dtype: torch.dtype, shown: str | None = None
) -> Eagle3Head:
    """The head on the CPU, in this dtype, detached from any target. LoadError if its tensors are not those
    that its config.json asks for."""
    place = shown or str(folder)
    where = f"drafter {place}"
    with load_errors("drafter", str(folder), "weights", place):
        with torch.device("meta"):
            head = Eagle3Head(speculator.config, dtype)
        own_names = {speculator.in_file(name): name for name in head.state_dict()}
        expected = {name: head.state_dict()[own] for name, own in own_names.items()}
        tensors: dict[str, Tensor] = {}
        for file in _weight_files(folder, place):
            with safe_open(file, "pt") as content:
                for name in content.keys():  # noqa: SIM118, which is no dict
                    shape = content.get_slice(name).get_shape()
                    _check_tensor(name, shape, expected, where, speculator.config)
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


class ConfigReader:
    """One config.json. `start` begins each sentence about it."""

    def __init__(self, raw: object, start: str):
        if not isinstance(raw, dict):
            raise LoadError(f"{start}: it must hold an object, not {type(raw).__name__}")
        self.raw = raw
        self.start = start
        self.format = format_of(raw, start)

    def speculator(self, tensors: set[str]) -> Speculator:
        ids = self.layer_ids()
        layer = self.layer()
        default = 32000 if self.format == "speculators" else layer.vocab_size
        config = Eagle3Config(
            layer=layer,
            draft_vocab_size=self.number("draft_vocab_size", MOST_TOKENS, default),
            layer_ids=ids,
            features=len(ids or (0, 0, 0)),
            target_hidden_size=self.number("target_hidden_size", MOST_UNITS),
            norm_before_residual=self.flag("norm_before_residual"),
            norm_before_fc=self.flag("norm_before_fc"),
            fc_norm=self.flag("fc_norm"),
            norm_output=self.flag("norm_output"),
            own_embeddings=EMBEDDINGS in tensors,
        )
        if config.norm_before_fc and config.fc_norm:
            raise self.error("norm_before_fc and fc_norm cannot both be true")
        if config.draft_vocab_size > config.layer.vocab_size:
            raise self.error(
                f"draft_vocab_size must be at most vocab_size, {config.layer.vocab_size:,}, not "
                f"{config.draft_vocab_size:,}"
            )
        return Speculator(config, *self.origin(), self.format)

    def layer(self) -> LlamaConfig | Qwen3Config:
        raw, name, default = self.raw, "model_type", "llama"
        if self.format == "speculators":
            raw, name, default = self.raw.get(LAYER_CONFIG), f"{LAYER_CONFIG}.model_type", "qwen3"
        if not isinstance(raw, dict):
            raise self.error(f"{LAYER_CONFIG} must be an object, not {type(raw).__name__}")
        kind = raw.get("model_type", default)
        if kind not in LAYERS:
            raise self.error(f"{name} must be llama or qwen3, not {ascii(kind)[:60]}")
        for name, most in LARGEST_SIZES.items():
            self.checked(name, raw.get(name), most)
        values = {"num_hidden_layers": 1} | {key: value for key, value in raw.items() if key != "model_type"}
        self.check_windows(raw, values["num_hidden_layers"])
        layer = LAYERS[kind](**values)
        self.check_rotation(layer)
        if layer.num_attention_heads % layer.num_key_value_heads or layer.head_dim % 2:
            raise self.error(
                "num_attention_heads must be a multiple of num_key_value_heads and head_dim even, not "
                f"{layer.num_attention_heads}, {layer.num_key_value_heads} and {layer.head_dim}"
            )
        return layer

    def check_windows(self, raw: dict, layers: object) -> None:
        kinds, known = raw.get("layer_types"), ("full_attention", "sliding_attention")
        if kinds is None:
            return
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            words = f"{layers} times {' or '.join(known)}"
            raise self.error(f"layer_types must be a list of {words}, not {ascii(kinds)[:60]}")
        if "sliding_attention" in kinds and raw.get("sliding_window") is None:
            raise self.error("sliding_window must be given for layers of the type sliding_attention")

    def check_rotation(self, layer: LlamaConfig | Qwen3Config) -> None:
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

    def layer_ids(self) -> tuple[int, ...] | None:
        ids = self.raw.get("eagle_aux_hidden_state_layer_ids")
        own = self.raw.get("eagle_config")  # some authors' place for it
        if ids is None and isinstance(own, dict):
            ids = own.get("eagle_aux_hidden_state_layer_ids")
        if ids is None:
            return None
        is_list = isinstance(ids, list) and 1 <= len(ids) <= MOST_LAYERS
        if not is_list or not all(type(i) is int and 0 <= i <= MOST_LAYERS for i in ids):
            raise self.error(
                f"eagle_aux_hidden_state_layer_ids must be null or a list of at most {MOST_LAYERS:,} whole "
                f"numbers from 0 to {MOST_LAYERS:,}, not {ascii(ids)[:60]}"
            )
        return tuple(ids)

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

    def flag(self, name: str) -> bool:
        value = self.raw.get(name, False)
        if type(value) is not bool:
            raise self.error(f"{name} must be true or false, not {ascii(value)[:60]}")
        return value

    def error(self, what: str) -> LoadError:
        return LoadError(f"{self.start}: {what}")


def _weight_files(folder: Path, place: str) -> list[Path]:
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX).is_file():
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / Path(name).name for name in sorted(names)]
    raise no_weights("drafter", place, os.listdir(folder))


def _tensor_names(folder: Path, place: str) -> set[str]:
    names: set[str] = set()
    for file in _weight_files(folder, place):
        with load_errors("drafter", str(folder), "weights", place), safe_open(file, "pt") as content:
            names |= set(content.keys())
    return names


def _check_tensor(
    name: str, shape: list[int], expected: dict[str, Tensor], head: str, config: Eagle3Config
) -> None:
    if name in UNUSED or (name in MAPS and config.draft_vocab_size == config.layer.vocab_size):
        return
    if name not in expected:
        raise LoadError(f"{head} has a tensor {name}, which its config.json does not ask for")
    if list(shape) != list(expected[name].shape):
        raise LoadError(
            f"{head}: its tensor {name} has the shape {shape}, and config.json asks for "
            f"{list(expected[name].shape)}"
        )


def _check_values(
    tensors: dict[str, Tensor], expected: dict[str, Tensor], head: Eagle3Head, where: str
) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise LoadError(f"{where}: its tensor {name} holds values that are not finite")
        if name in expected and value.is_floating_point() is (name in MAPS):
            raise LoadError(f"{where}: its tensor {name} cannot be of {value.dtype}")
    d2t = tensors.get("d2t")
    if d2t is None:
        return
    if head.d2t is None and d2t.any():
        raise LoadError(f"{where}: its tensor d2t must be 0 everywhere, since draft_vocab_size is vocab_size")
    width = head.config.layer.vocab_size
    ids = torch.arange(len(d2t)) + d2t.long()
    if ids.min() < 0 or ids.max() >= width or len(ids.unique()) != len(ids):
        raise LoadError(f"{where}: its tensor d2t does not give a different id below {width:,} to each token")
    can_draft = torch.zeros(width, dtype=torch.bool).index_fill_(0, ids, True)
    if not torch.equal(tensors.setdefault("t2d", can_draft).bool(), can_draft):
        raise LoadError(f"{where}: its tensors d2t and t2d name different tokens")
    tensors["d2t"], tensors["t2d"] = d2t.long(), can_draft
