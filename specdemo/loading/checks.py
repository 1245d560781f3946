"""What a pair's models must be, alone and together. They are checked when a request is planned, when they are
loaded, and before each run."""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import Module
from transformers import PreTrainedModel

from specdemo.drafters.base import why_not_used
from specdemo.drafters.table import MTP, kind_of
from specdemo.drafters.vocabulary import OtherTokenizer, check_shared, other_tokenizer
from specdemo.errors import PairError
from specdemo.loading.pair import Pair
from specdemo.loading.request import ROLES
from specdemo.runtime.cache import layers_of
from specdemo.runtime.lm import check_writes_text, embedded_ids, logits_width, positional_cache


def look_at(pair: Pair) -> None:
    """Checks and tries a pair's models, and notes what they are. They may belong to somebody who changes them
    between two runs, so each run begins with this; it does nothing for models that are in the state in which
    it saw them last. PairError if they cannot be used so; LoadError as of `check_forwards`."""
    states, other = pair.present_states, pair.other_tokenizer
    if pair.states and pair.states == states:
        return
    models = [model for model in (pair.target, pair.drafter) if model is not None]
    ids = [pair.info.target, pair.info.drafter]
    check_models(models, ids)
    check_fits(models, ids, [model.device for model in models])
    if other is not None and pair.states:  # tokens can have been added, and what was unknown can be known now
        other = other_tokenizer(pair.tokenizer, other.tokenizer, *ids)
    other = other and with_known_ids(other, models, ids)
    with pair.runner.torch_settings():
        check_forwards(models, ids)
        carried = pair.carried if isinstance(pair.carried, str) else MTP.tried(pair.carried, pair.target)
    pair.note(states, other, carried)


def check_models(models: list[Module], ids: list[str]) -> None:
    """PairError if a model is where nothing runs; if it has no output layer, or no cache that can be written
    by position; or if the hidden states that a drafter needs cannot be found in the target."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        if (device := model.device.type) not in ("cpu", "cuda"):
            raise PairError(f"device must be cpu or cuda, and {role} {model_id} is on {device}")
        kind = kind_of(model)
        try:
            if role == "drafter":
                kind.check_cache(model)
                continue
            if what := kind.is_for_a_target:
                raise ValueError(f"it is {what}, which drafts for a target: give it as the drafter")
            check_writes_text(model)
            if not hasattr(model, "generation_config"):
                raise ValueError("it has no generation_config: its class does not inherit GenerationMixin")
            positional_cache(model)
            if any(kind_of(one).is_for_a_target for one in models[1:]):
                layers_of(model)
        except ValueError as error:
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {error}") from None


def check_fits(models: list[Module], ids: list[str], devices: list[str | torch.device]) -> None:
    """PairError unless the drafter, if there is one, or its skeleton fits the target. devices: where the
    models that are loaded are or will be."""
    if len(models) == 1:
        return
    target, drafter = models
    kind = kind_of(drafter)
    kind.check_fit(drafter, target, ids[1], ids[0])
    why = kind.needs_targets_device(drafter)
    if why and devices[0] != devices[-1]:
        raise PairError(f"device must be the same for both, because drafter {ids[1]} {why}")


def with_known_ids(other: OtherTokenizer, models: list[Module], ids: list[str]) -> OtherTokenizer:
    """`other` without ids that a tokenizer has and its model has not. models: target and drafter. PairError
    if no token in common is left, or if the drafter must have the target's tokenizer."""
    target, drafter = models
    if not kind_of(drafter).takes_other_tokenizer:
        raise PairError(f"drafter {ids[1]} drafts in parallel, so it must share the tokenizer of {ids[0]}")
    widths = logits_width(target), min(logits_width(drafter), embedded_ids(drafter))
    pairs = other.shared.items()
    shared = {ours: theirs for ours, theirs in pairs if ours < widths[0] and theirs < widths[1]}
    known = replace(other, shared=shared, known=widths[1])
    check_shared(known, *ids)
    return known


def check_forwards(models: list[Module], ids: list[str]) -> None:
    """PairError if a model's forward fails, or predicts something else with a cache than without one."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        if why := why_not_used("its", partial(_fault, model, models[0])):
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {why}")


def _fault(model: Module, target: PreTrainedModel) -> str | None:
    agrees = kind_of(model).agrees(model, target)
    return None if agrees else "its predictions with a cache differ from those without one"
