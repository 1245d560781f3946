"""What a checkpoint can be beside whole weights of one causal language model, by what that is told, and what
reads it:

- in few bits: by `quantization_config` in its config.json; transformers scales the weights (`method_of`,
  `check_scales`).
- an adapter of the package PEFT: by adapter_config.json; it is its base, into which it is merged (`base_of`,
  `with_adapter`).
- a model that also sees or hears: by its class; its text part runs alone (`text_alone`).
- a head, or another model that drafts for a target: by its kind (`drafters`), which reads a head itself.

Beside these, what becomes of whole weights when they are quantised here.
"""

import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Linear, Parameter
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from specdemo.errors import HUB_ID, LoadError, PairError, is_out_of_memory, reason_of
from specdemo.loading.request import Part, without_revision
from specdemo.runtime.weights import few_bits, is_scale

# Weights in few bits. Without their scales they would be noise: transformers converts them to the dtype that
# is asked for, whatever they mean.

# What transformers needs for weights of a method: the module, and the package that brings it.
NEEDED = {
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "gptq": {"optimum.gptq": "optimum", "gptqmodel": "gptqmodel"},
    "torchao": {"torchao": "torchao"},
}
INSTEAD = "choose a checkpoint in bfloat16, float16 or float32"


def method_of(config: PreTrainedConfig) -> str | None:
    """The method by which transformers scales a checkpoint's weights, as its config names it. ValueError for
    a method that it does not know, which it would ignore, or whose package is not installed."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        given = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if given is None:
        return None
    given = given if isinstance(given, Mapping) else given.to_dict()
    method = known = given.get("quant_method")
    if given.get("load_in_8bit") or given.get("load_in_4bit"):  # transformers looks at these first
        method, known = "bitsandbytes", "bitsandbytes_4bit"
    if not isinstance(known, str) or known not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ValueError(f"its quant_method must be one that transformers knows here, not {method!a:.60}")
    needed = NEEDED.get(method, {})
    if missing := [package for module, package in needed.items() if find_spec(module) is None]:
        packages = " ".join(missing)
        raise ValueError(f"its weights are quantised by {method}, for which pip install {packages} is needed")
    return method


def check_scales(
    where: str,
    method: str | None,
    tensors: Mapping[str, str],
    unexpected: Collection[str],
    model: PreTrainedModel,
) -> None:
    """LoadError for weights in few bits where no method scales them, and where a scale of weights that were
    loaded was left out. where: the model, in a sentence. tensors: see `stored_tensors`. unexpected: those
    that the model has no place for."""
    read = {name: tensors[name] for name in tensors if name not in unexpected}
    if method is None and (name := few_bits(read)):
        raise LoadError(f"{where}: config.json names no method to scale {name} ({read[name]}): {INSTEAD}")
    weights = dict(model.named_parameters())
    layers = {name.rpartition(".")[0] for name in {*read, *weights} - {*unexpected}}
    matrices = {name.rpartition(".")[0] for name in weights if weights[name].dim() > 1}
    vectors = {name.rpartition(".")[0] for name in weights} - matrices  # a norm's weight is one
    for name in sorted(filter(is_scale, unexpected)):
        if name.rpartition(".")[0] in layers - vectors:
            raise LoadError(f"{where}: transformers does not use {name}, which scales weights: {INSTEAD}")


# Adapters of the package PEFT

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MERGED = ("LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT")  # PEFT's names of what is merged here
ANOTHER = "it was made for another model"
OF_BASE = "base_model.model."  # begins the names of an adapter's tensors


def base_of(adapter: Part, folder: Path) -> Part:
    """The model that an adapter was made for, with the adapter to be merged in. folder: the adapter's files.
    PairError if it names none, or cannot be merged here; LoadError if its config cannot be read."""
    who, config = f"{adapter.role}: {adapter.id}", _read_config(adapter, folder)
    if (kind := config.get("peft_type")) not in MERGED:
        raise PairError(f"{who} is a {kind!a:.60} adapter, and only {', '.join(MERGED)} can be merged")
    if find_spec("peft") is None:
        raise PairError(f"{who} is a PEFT adapter, and the package peft is not installed: pip install peft")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise PairError(f"{who}: base_model_name_or_path must be a hub id or a directory, not {base!a:.60}")
    shown, is_directory = f"{base} (base of {adapter.id})", Path(adapter.place).is_dir()
    if is_directory and (folder / base).is_dir():  # an absolute base stays as it is
        return replace(adapter, id=shown, place=str(folder / base), revision=None, adapter=adapter)
    if not HUB_ID.fullmatch(base):
        there = f"no directory, seen from {adapter.id}, and " if is_directory else ""
        raise PairError(f"{who}: its base {ascii(base)[:120]} is {there}no hub id of the form owner/name")
    named = f"{base}@{config['revision']}" if config.get("revision") else base
    place, revision = without_revision(adapter.role, named)
    return replace(adapter, id=shown, place=place, revision=revision, adapter=adapter)


def _read_config(adapter: Part, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        reason = f"because of its {ADAPTER_CONFIG}: {reason_of(error)}"
        raise LoadError(f"{adapter.role}: {adapter.id} cannot be loaded, {reason}") from None
    return config


def with_adapter(model: PreTrainedModel, part: Part, folder: Path) -> PreTrainedModel:
    """The model with the part's adapter merged in; nothing of PEFT is left in it. folder: the adapter's
    files. LoadError if the adapter was made for another model, or is broken."""
    adapter = part.adapter
    assert adapter is not None, "the part has an adapter"
    who = f"{part.role}: the adapter {adapter.id}"
    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        if name := next((name for name, one in tensors.items() if not one.isfinite().all()), None):
            raise LoadError(f"{who}: its tensor {name} holds values that are not finite")
        config = _read_config(adapter, folder)
        _add_tokens(model, config, tensors)
        with warnings.catch_warnings():  # of PEFT, to those who train
            warnings.simplefilter("ignore")
            return _merged(model, config, tensors, who)
    except PairError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise LoadError(f"{who} cannot be merged into its base: {reason_of(error)}") from None


def _add_tokens(model: PreTrainedModel, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Gives the model as many embeddings as the adapter holds, where tokens were added before training."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [name for name, layer in model.named_modules() if layer in (embeddings, head)]
    names = [f"{OF_BASE}{name}.weight" for name in ends]
    rows = {len(tensors[name]) for name in names if name in tensors}
    # An adapter's own embeddings, which were trained as a whole, are not the output layer that was tied to
    # the base's.
    are_own = bool(config.get("modules_to_save")) and not config.get("ensure_weight_tying")
    is_tied = head is not None and head.weight is embeddings.weight and not are_own
    is_complete = is_tied or tensors.keys() >= {*names}
    if len(rows) == 1 and is_complete and rows != {len(embeddings.weight)}:
        model.resize_token_embeddings(rows.pop(), mean_resizing=False)


def _merged(
    model: PreTrainedModel, given: dict[str, Any], tensors: dict[str, Tensor], who: str
) -> PreTrainedModel:
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    from peft.tuners.tuners_utils import BaseTunerLayer

    kind = PEFT_TYPE_TO_CONFIG_MAPPING[given["peft_type"]]
    known = {field.name for field in fields(kind)}
    if unknown := next((name for name, value in given.items() if name not in known and value), None):
        raise LoadError(f"{who}: this version of peft does not know {ascii(unknown)[:60]}, which it asks for")
    config = kind(**{name: given[name] for name in known & given.keys()})
    config.base_model_name_or_path, config.inference_mode = model.name_or_path, True
    with_layers = get_peft_model(model, config)
    places = get_peft_model_state_dict(with_layers, save_embedding_layers=False)
    for name, place in places.items():
        if name in tensors and tensors[name].shape != place.shape:
            shape, expected = [*tensors[name].shape], [*place.shape]
            raise LoadError(f"{who}: its tensor {name} has the shape {shape}, and {expected} is expected")
    try:
        outcome = set_peft_model_state_dict(with_layers, tensors)
    except KeyError as error:  # of a layer that was trained as a whole
        raise LoadError(f"{who} lacks a tensor for its base, {error.args[0]}: {ANOTHER}") from None
    if missing := [name for name in outcome.missing_keys if name.replace(".default", "", 1) in places]:
        raise LoadError(f"{who} lacks {len(missing)} tensors for its base, first {missing[0]}: {ANOTHER}")
    if unexpected := outcome.unexpected_keys:
        first = f"for which its base has no place, first {unexpected[0].replace('.default', '', 1)}"
        raise LoadError(f"{who} has {len(unexpected)} tensors {first}: {ANOTHER}")
    # Where the output layer is tied to the embeddings, what is merged into one of them would be in both.
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    embeddings, head = (one.get_base_layer() if isinstance(one, BaseTunerLayer) else one for one in layers)
    if head is not None and head.weight is embeddings.weight and (embeddings, head) != layers:
        head.weight = Parameter(torch.clone(head.weight.detach()), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = model.config.tie_word_embeddings = False
    return with_layers.merge_and_unload()


# Models that also see or hear: their text part, as a model of its own. It is of a class that has models
# without such parts, too, so that what holds for these holds for it.

# The classes of such models in transformers, and those of their text parts. Of Qwen3.5 transformers loads
# the text part alone by itself.
TEXT_CLASSES = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4UnifiedForCausalLM",
}
SENSES = ("vision_config", "audio_config")


def text_alone(model: PreTrainedModel) -> PreTrainedModel:
    """The text part of a model that also sees or hears, made of the same modules; the rest gives its memory
    back. Any other model as it is."""
    name = TEXT_CLASSES.get(type(model).__name__)
    if name is None:
        return model
    with torch.device("meta"):
        text = getattr(transformers, name)(model.config.get_text_config(decoder=True))
    text.model, text.lm_head = model.model.language_model, model.lm_head
    text.generation_config = model.generation_config
    text.config._name_or_path = model.config._name_or_path
    return text.eval()


# Weights that are quantised here


def quantized_layers(skeleton: PreTrainedModel) -> list[Linear]:
    """The layers whose weights are quantised: all linear ones but the head."""
    head = skeleton.get_output_embeddings()
    return [layer for layer in skeleton.modules() if isinstance(layer, Linear) and layer is not head]


def unpack_without_compiler() -> None:
    """Lets optimum-quanto unpack int4 and int2 weights on a CPU by the operations of torch that its C++ code
    calls. Compiling that code takes more than a minute and needs a compiler."""
    from optimum.quanto import library

    def unpack(packed: Tensor, bits: int) -> Tensor:  # uint8 of several numbers each, and of one
        return torch.cat([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)])

    library.extensions.get_extension("quanto_cpp")._lib = SimpleNamespace(unpack=unpack)


def quantise_layers(model: PreTrainedModel, kind: str) -> None:
    """Quantises a model into which an adapter has been merged, as QuantoConfig does while a model is loaded.
    kind: as in QUANTIZE."""
    from optimum.quanto import qtypes
    from optimum.quanto.nn import QLinear

    layers = quantized_layers(model)
    for name, layer in list(model.named_modules()):
        if layer in layers:
            quantised = QLinear.from_module(layer, weights=qtypes[f"q{kind}"])
            quantised.freeze()
            model.set_submodule(name, quantised.requires_grad_(False).eval())
