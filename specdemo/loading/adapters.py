"""Adapters of the package PEFT: the models that they were made for, and how they are merged into these."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from specdemo.errors import HUB_ID, LoadError, PairError, is_out_of_memory, reason_of
from specdemo.loading.request import Part, without_revision

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MERGED = ("LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT")  # PEFT's names of what is merged here
OF_BASE = "base_model.model."  # begins the names of an adapter's tensors


def base_of(adapter: Part, folder: Path) -> Part:
    """The model that an adapter was made for, with the adapter to be merged in. folder: the adapter's files.
    PairError if it names none, or cannot be merged here; LoadError if its config cannot be read."""
    who, config = f"{adapter.role}: {adapter.id}", _read_config(adapter, folder)
    if (kind := config.get("peft_type")) not in MERGED:
        raise PairError(
            f"{who} is an adapter of the kind {ascii(kind)[:60]}, and only those of the kinds "
            f"{', '.join(MERGED)} can be merged into a model"
        )
    if find_spec("peft") is None:
        raise PairError(
            f"{who} is a PEFT adapter ({ADAPTER_CONFIG}), and the package peft, which merges it into its "
            "base, is not installed: pip install peft"
        )
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise PairError(
            f"{who}: base_model_name_or_path in its {ADAPTER_CONFIG} must be a hub id or a directory, not "
            f"{ascii(base)[:60]}"
        )
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
        told = set_peft_model_state_dict(with_layers, tensors)
    except KeyError as error:  # of a layer that was trained as a whole
        raise _another_base(who, f"lacks a tensor for its base, {error.args[0]}") from None
    if missing := [name for name in told.missing_keys if name.replace(".default", "", 1) in places]:
        raise _another_base(who, f"lacks {len(missing)} tensors for its base, first {missing[0]}")
    if unexpected := told.unexpected_keys:
        first = unexpected[0].replace(".default", "", 1)
        raise _another_base(
            who, f"has {len(unexpected)} tensors for which its base has no place, first {first}"
        )
    _untie(model)
    return with_layers.merge_and_unload()


def _another_base(who: str, what: str) -> LoadError:
    return LoadError(f"{who} {what}: it was made for another model")


def _untie(model: PreTrainedModel) -> None:
    """Gives a model whose output layer is tied to its embeddings weights of its own for it, if the adapter
    changes one of them: what is merged into one would else be in both."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = model.get_input_embeddings(), model.get_output_embeddings()
    embeddings, head = (one.get_base_layer() if isinstance(one, BaseTunerLayer) else one for one in layers)
    if head is not None and head.weight is embeddings.weight and (embeddings, head) != layers:
        head.weight = Parameter(torch.clone(head.weight.detach()), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = model.config.tie_word_embeddings = False
