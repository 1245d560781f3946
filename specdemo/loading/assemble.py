"""Makes a pair of loaded models, also of those that the caller has in memory: what they must have in common,
and what a user should know of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.table import cached_drafter, drafting_by, kind_of, read_carried
from specdemo.drafters.vocabulary import OtherTokenizer, check_shared, other_tokenizer
from specdemo.errors import LoadError, PairError, is_out_of_memory, reason_of
from specdemo.events import ByModel, PairInfo
from specdemo.loading.fetch import directory_of, has_config
from specdemo.loading.pair import LoadDrafter, Pair, kind_and_longest_draft
from specdemo.loading.request import ROLES, Part
from specdemo.runtime import cuda
from specdemo.runtime.cache import layers_of
from specdemo.runtime.lm import check_writes_text, embedded_ids, logits_width, positional_cache
from specdemo.runtime.runner import Capture, Runner
from specdemo.runtime.weights import not_finite
from specdemo.words.message import Message, message


def pair_of(
    name: str,
    models: list[Module],
    ids: list[str],
    quantized: list[str | None],
    tokenizer: PreTrainedTokenizerBase | None,
    reason: Message,
    load_drafter: LoadDrafter,
    capture: Capture,
    other: OtherTokenizer | None,
    carried: Mapping[str, PreTrainedModel | str],
) -> Pair:
    """The models' pair, which has been tried. models: the target, and the drafter if there is one. other: the
    drafter's tokenizer, if it is not the target's. carried: see Pair."""
    target, drafter = _both(models)
    formats = ByModel(None, None), ByModel(*_both(quantized))
    info = PairInfo(name, *_both(ids), "", "", *formats, None, **kind_and_longest_draft(drafter))
    runner = Runner(target, drafter, cached_drafter, capture)
    how = (tokenizer, info, reason, runner, load_drafter)
    pair = Pair(target, drafter, *how, other_tokenizer=other, carried=carried)
    look_at(pair)
    return pair


def look_at(pair: Pair) -> None:
    """Checks and tries a pair's models, and notes what they are. They may belong to somebody who changes them
    between two runs, so each run begins with this; it does nothing for models that are in the state in which
    it saw them last. PairError if they cannot be used so; LoadError as of `check_forwards`."""
    if pair.states and pair.states == pair.present_states:
        return
    target, drafter = pair.target, pair.drafter
    models = [model for model in (target, drafter) if model is not None]
    ids = [pair.info.target, pair.info.drafter]
    check_devices(models, ids)
    check_caches(models, ids)
    if drafter is not None:
        check_fits(drafter, target, ids, [model.device for model in models])
    states, other = pair.present_states, pair.other_tokenizer
    if other is not None and pair.states:  # tokens can have been added, and what was unknown can be known now
        other = other_tokenizer(pair.tokenizer, other.tokenizer, *ids)
    other = with_known_ids(other, models, ids)
    with pair.runner.torch_settings():
        check_forwards(models, ids)
        carried = {
            name: own if isinstance(own, str) else drafting_by(name).tried(own, target)
            for name, own in pair.carried.items()
        }
    pair.note(states, other, carried)


def check_devices(models: list[Module], ids: list[str]) -> None:
    """PairError if a model is where nothing runs."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        if (kind := model.device.type) not in ("cpu", "cuda"):
            raise PairError(f"device must be cpu or cuda, and {role} {model_id} is on {kind}")


def check_caches(models: list[Module], ids: list[str]) -> None:
    """PairError if a model has no output layer, or no cache that can be written by position, or if the hidden
    states that a drafter needs cannot be found in the target."""
    target, *drafters = models
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if model is target:
                _check_target(target, reads_states=any(kind_of(one).reads_hidden_states for one in drafters))
            else:
                kind_of(model).check_cache(model)
        except ValueError as error:
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {error}") from None


def _check_target(target: PreTrainedModel, reads_states: bool) -> None:
    if what := kind_of(target).is_for_a_target:
        raise ValueError(f"it is {what}, which drafts for a target: give it as the drafter")
    check_writes_text(target)
    if not hasattr(target, "generation_config"):
        raise ValueError("it has no generation_config, which classes have that inherit GenerationMixin")
    positional_cache(target)
    if reads_states:
        layers_of(target)


def check_forwards(models: list[Module], ids: list[str]) -> None:
    """PairError if a model's forward fails, or predicts something else with a cache than without one;
    LoadError if it has weights that are not finite."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if name := not_finite(model):
                raise LoadError(f"{role} {model_id}: its tensor {name} holds values that are not finite")
            if kind_of(model).agrees(model, models[0]):
                continue
            reason = "its predictions with a cache differ from those without one"
        except LoadError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if cuda.is_cuda(model.device) and isinstance(error, RuntimeError):
                cuda.raise_if_lost(error, model.device)
            reason = f"its forward fails: {reason_of(error)}"
        raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {reason}")


def _both(things: list) -> tuple:
    """What belongs to the target, and what belongs to the drafter or None."""
    return things[0], things[1] if len(things) == 2 else None


def with_known_ids(other: OtherTokenizer | None, models: list, ids: list[str]) -> OtherTokenizer | None:
    """`other` without ids that a tokenizer has and its model has not. models: target and drafter. PairError
    if no token in common is left, or if the drafter must have the target's tokenizer."""
    if other is None:
        return None
    target, drafter = models
    if not kind_of(drafter).takes_other_tokenizer:
        raise PairError(
            f"drafter {ids[1]} drafts in parallel, so its tokenizer must be that of target {ids[0]}, and it "
            "is another one"
        )
    widths = logits_width(target), min(logits_width(drafter), embedded_ids(drafter))
    shared = ((ours, theirs) for ours, theirs in other.shared if ours < widths[0] and theirs < widths[1])
    known = replace(other, shared=tuple(shared))
    check_shared(known, *ids)
    return known


TRUSTED = "program code that comes with the models is trusted and run (trust_remote_code)"
DYNAMIC = "transformers_modules"  # where transformers puts program code that comes with models


def code_note(models: list[Module]) -> str:
    """What a user should know of models that were loaded with trust_remote_code."""
    theirs = [type(model).__name__ for model in models if type(model).__module__.startswith(DYNAMIC)]
    ran = (
        f"{' and '.join(theirs)} came with it" if theirs else "these models came with none for their forwards"
    )
    return f"{TRUSTED}: {ran}"


def pair_in_memory(
    target: PreTrainedModel,
    drafter: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None,
    load_drafter: LoadDrafter,
) -> Pair:
    """The pair of models in memory, see `load_pair`. load_drafter: for the pair's `attach` and `detach`."""
    models = [target, drafter] if drafter else [target]
    names = [model.name_or_path or type(model).__name__ for model in models]
    check_devices(models, names)
    # A captured forward would bypass the owner's hooks and patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    ours, theirs = _tokenizers(tokenizer)
    are_two = drafter and ours and theirs and theirs is not ours
    other = other_tokenizer(ours, theirs, *names) if are_two else None
    carried = read_carried(target, _checkpoint_of(target))
    how = (ours, message("as_given"), load_drafter, capture, other, carried)
    return pair_of(" + ".join(names), models, names, [None] * len(models), *how)


def _checkpoint_of(target: PreTrainedModel) -> Path | None:
    """Where a model in memory was loaded from, if that is still on this machine."""
    place, revision = target.config.name_or_path, getattr(target.config, "_commit_hash", None)
    part = Part("target", place, place, "cpu", None, None, revision)
    return Path(directory_of(part)) if place and has_config(part) else None


def _tokenizers(
    given: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """The target's and the drafter's, of those given with models in memory."""
    by_role = given if isinstance(given, dict) else dict.fromkeys(ROLES, given)
    if given is not None and set(by_role) != set(ROLES):
        raise PairError(
            f"tokenizer must be one tokenizer or have the keys target and drafter, not {[*by_role]!a:.60}"
        )
    for tokenizer in by_role.values():
        if given is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
    return by_role["target"], by_role["drafter"]


def check_fits(
    drafter: Module, target: PreTrainedModel, ids: list[str], devices: list[str | torch.device]
) -> None:
    """PairError unless the drafter, or its skeleton, fits the target. ids, devices: those of the target and
    of the drafter."""
    kind = kind_of(drafter)
    kind.check_fit(drafter, target, ids[1], ids[0])
    why = kind.needs_targets_device(drafter)
    if why and devices[0] != devices[1]:
        raise PairError(f"device must be the same for both, because drafter {ids[1]} {why}")
