"""From a request to a pair: what loading it takes, its models, and what these must have in common, also those
that the caller has in memory."""

import os
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.base import why_not_used
from specdemo.drafters.table import HEAD, MTP, cached_drafter, kind_in, kind_of
from specdemo.drafters.vocabulary import OtherTokenizer, check_shared, other_tokenizer
from specdemo.engine.compiled import compiled
from specdemo.errors import LoadError, PairError, is_out_of_memory, load_errors
from specdemo.events import ByModel, PairInfo, Params
from specdemo.loading import fetch
from specdemo.loading.fetch import OnProgress
from specdemo.loading.pair import AnyPair, Pair
from specdemo.loading.plan import LoadPlan, check_free_memory, plan_from
from specdemo.loading.read import kind_of_part, read_model, read_skeleton, read_tokenizer
from specdemo.loading.request import ROLES, ByRole, PairRequest, drafter_part, in_project, resolve
from specdemo.runtime.cache import layers_of
from specdemo.runtime.lm import check_writes_text, embedded_ids, logits_width, positional_cache
from specdemo.runtime.runner import Capture, Runner
from specdemo.servers.pair import connect
from specdemo.words.message import message

Tokenizers = PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None  # one for both, or by role


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer: Tokenizers = None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
    server: str | None = None,
    server_key: str | None = None,
) -> AnyPair:
    """A pair by its name in the catalogue (the embedded pair if left out), by hub ids (ID or ID@REVISION) or
    directories, or from models in memory, which are not changed. A target in memory takes a drafter of either
    kind; one that is loaded gets its device and dtype, as by `Pair.attach`. A drafter that is loaded can be a
    speculator (an EAGLE-3 head); then the target can be left out: it is the verifier that its config.json
    names.

    tokenizer, device, dtype and quantize: one for both models or {"target": ..., "drafter": ...}. None
    chooses the device and the dtype (`Pair.dtype_reason` says why) and does not quantise. Raises PairError
    for a wrong request, LoadError when loading failed.

    server: the address of a running server, http://host:8000, of vLLM or llama.cpp, which takes the place of
    all the rest. server_key: the key of its --api-key, kept out of all that is shown and saved.
    """
    how = {"device": device, "dtype": dtype, "quantize": quantize}
    if server is not None:
        others = (name, target, drafter, tokenizer, *how.values())
        if any(value is not None for value in others):
            raise PairError("server must be given alone: it has loaded its models")
        return connect(server, server_key)
    if server_key is not None:
        raise PairError("server_key must be left out without server: it is the key of a server")
    if isinstance(target, PreTrainedModel) and name is None:
        if given := next((option for option, value in how.items() if value is not None), None):
            raise PairError(f"{given} must be left out for models given in memory: they are used as they are")
        return _pair_in_memory(target, drafter, tokenizer)
    if name is None:
        target = target_for(target, drafter)
    request = resolve(name, target=target, drafter=drafter, **how)
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: it is loaded with them")
    return load(request)


def target_for(target: object, drafter: object) -> Any:
    """The target as it is given. If it is not, the verifier that the drafter's config.json names, which that
    of a head may do. Raises as `load_pair` does."""
    if target is not None or not isinstance(drafter, (str, os.PathLike)):
        return target
    part = fetch.with_config(drafter_part(drafter, "cpu", torch.float32))
    folder = fetch.folder_of(part)
    with load_errors(part.role, part.place, shown=part.id):
        verifier = HEAD.verifier(folder) if kind_in(folder) is HEAD else None
    if not verifier:
        return None
    return verifier if os.path.isdir(verifier) else in_project(verifier)


def plan(request: PairRequest, beside: Pair | None = None) -> LoadPlan:
    """How a request would be loaded, from the models' configs alone; in place of an adapter its base with the
    adapter. beside: the pair that the drafter of the request is for. Raises as `load_pair` does."""
    fetch.check_access(request.parts)
    parts = tuple(map(fetch.with_config, request.parts))
    skeletons = [*map(read_skeleton, parts)]
    planned = plan_from(replace(request, parts=parts), skeletons)
    models, ids = skeletons, [part.id for part in parts]
    if beside is not None:
        models, ids = [beside.target, *skeletons], [beside.info.target, *ids]
    check_fits(models, ids, [part.device for part in parts])
    return planned


def load(request: PairRequest, beside: Pair | None = None) -> Pair:
    """Loads what a request asks for, once it is on this machine. beside: the pair that its drafter is for."""
    planned = plan(request, beside)
    check_free_memory(planned)
    fetch.fetch(planned.request.parts)
    return load_planned(planned, beside=beside)


def load_planned(
    plan: LoadPlan, on_progress: OnProgress = lambda *_: None, beside: Pair | None = None
) -> Pair:
    """Loads a plan's models, checks that they fit each other and can be rewound, and warms them up. They must
    be on this machine: nothing here asks the hub. beside: the pair that the plan's drafter is for, which is
    loaded alone then, and not warmed up. LoadError if there is not enough memory; its traceback does not hold
    what has been loaded so far."""
    try:
        return _load_here(plan, on_progress, beside)
    except Exception as error:
        if isinstance(error, PairError) or not is_out_of_memory(error):
            raise
    names = " and ".join(part.named for part in plan.request.parts)
    smaller = "a smaller pair" if beside is None else "a smaller one"
    raise LoadError(f"there is not enough memory for {names}: choose {smaller}")


def _load_here(plan: LoadPlan, on_progress: OnProgress, beside: Pair | None) -> Pair:
    parts, last = plan.request.parts, plan.request.parts[-1]
    for part in parts:
        fetch.check_weights(part)
    on_progress(message("tokenizers"), None)
    tokenizer = read_tokenizer(parts[0]) if beside is None else beside.tokenizer
    ids, other = [*([beside.info.target] if beside else []), *(part.given for part in parts)], None
    if last.role == "drafter" and tokenizer is not None and not kind_of_part(last).is_for_a_target:
        other = other_tokenizer(tokenizer, read_tokenizer(last), *ids)
    models = [read_model(part, dtype, on_progress) for part, dtype in zip(parts, plan.dtypes, strict=True)]
    on_progress(message("caches"), None)
    if beside is not None:
        pair = beside.beside(models[0], last.given, other)
        look_at(pair)
        return pair
    carried = MTP.read_carried(models[0], fetch.folder_of(parts[0]), parts[0].quantize is not None)
    known = {"dtype_reason": plan.reason, "other_tokenizer": other, "carried": carried}
    quantized = [part.quantize for part in parts]
    pair = _pair_of(plan.request.name, models, ids, quantized, "auto", tokenizer=tokenizer, **known)
    on_progress(message("warming_up"), None)
    pair.runner.warm_up(Params().gamma)
    if pair.target.device.type == "cpu":
        compiled()
    return pair


def load_drafter(pair: Pair, drafter: str | os.PathLike) -> Pair:
    """A pair of the same target with another drafter, loaded and checked; for `Pair.attach`."""
    if drafter is None:
        raise PairError("drafter must be a hub id or a directory, not None: detach takes the drafter off")
    part = drafter_part(drafter, str(pair.target.device), pair.target.dtype)
    return load(PairRequest(part.id, (part,)), pair)


def _pair_in_memory(target: PreTrainedModel, drafter: object, tokenizer: Tokenizers) -> Pair:
    """The pair of a target in memory, see `load_pair`."""
    if isinstance(drafter, (str, os.PathLike)):
        if isinstance(tokenizer, dict):
            raise PairError("tokenizer must be the target's alone: the drafter's is loaded with it")
        pair = _pair_in_memory(target, None, tokenizer)
        pair.attach(drafter)
        return pair
    if drafter is not None and not isinstance(drafter, PreTrainedModel):
        raise PairError(f"drafter must be a model, a hub id or a directory, not {type(drafter).__name__}")
    models = [target] if drafter is None else [target, drafter]
    names = [model.name_or_path or type(model).__name__ for model in models]
    check_models(models, names)
    by_role = tokenizer if isinstance(tokenizer, dict) else dict.fromkeys(ROLES, tokenizer)
    if set(by_role) != set(ROLES):
        raise PairError(f"tokenizer must be one, or have the keys target and drafter, not {[*by_role]!a:.60}")
    for one in by_role.values():
        if tokenizer is not None and not isinstance(one, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(one).__name__}")
    ours, theirs = by_role["target"], by_role["drafter"]
    other = other_tokenizer(ours, theirs, *names) if drafter is not None and ours is not theirs else None
    carried = MTP.read_carried(target, None)
    # A captured forward would bypass the owner's hooks and patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    known = {"dtype_reason": message("as_given"), "other_tokenizer": other, "carried": carried}
    return _pair_of(" + ".join(names), models, names, [None] * 2, capture, tokenizer=ours, **known)


def _pair_of(
    name: str, models: list[Module], ids: list[str], quantized: list, capture: Capture, **known: Any
) -> Pair:
    """The models' pair, which has been looked at. models: the target, and the drafter if there is one. known:
    the other fields of Pair."""
    (target, drafter), ids, quantized = ([*one, None][:2] for one in (models, ids, quantized))
    info = PairInfo(name, *ids, "", "", ByModel(None, None), ByModel(*quantized), None)
    runner = Runner(target, drafter, cached_drafter, capture)
    pair = Pair(target, drafter, info=info, runner=runner, load_drafter=load_drafter, **known)
    look_at(pair)
    return pair


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
