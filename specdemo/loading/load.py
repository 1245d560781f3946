"""From a request to a pair, or from models that the caller has in memory. What loading takes (dtypes, memory)
follows from the models' configs, before anything is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.drafters.table import HEAD, MTP, cached_drafter, kind_in
from specdemo.drafters.vocabulary import other_tokenizer
from specdemo.engine.compiled import compiled
from specdemo.errors import LoadError, PairError, is_out_of_memory, load_errors
from specdemo.events import ByModel, PairInfo, Params
from specdemo.loading import fetch
from specdemo.loading.catalog import QUANTIZE
from specdemo.loading.checkpoints import quantized_layers
from specdemo.loading.checks import check_fits, check_models, look_at
from specdemo.loading.fetch import OnProgress
from specdemo.loading.pair import AnyPair, Pair
from specdemo.loading.read import check_quantize, kind_of_part, read_model, read_skeleton, read_tokenizer
from specdemo.loading.request import ROLES, ByRole, PairRequest, drafter_part, in_project, resolve
from specdemo.runtime.device import amount, free_memory, has_bfloat16, memory_of
from specdemo.runtime.runner import Capture, Runner
from specdemo.servers.pair import connect
from specdemo.words.message import Message, message

Tokenizers = PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None  # one for both, or by role


class MemoryNeed(NamedTuple):
    """Memory that the weights will take on one device."""

    device: str
    bytes: int
    models: str  # which of them, and the verb: "target x and drafter y need"


@dataclass(frozen=True)
class LoadPlan:
    """A request, and what follows from the configs of its models. needs: of each model, and then of both
    together if they are on the same device."""

    request: PairRequest
    dtypes: tuple[torch.dtype, ...]  # of each part
    sizes: tuple[int, ...]  # of each part's weights in memory, in bytes
    needs: tuple[MemoryNeed, ...]
    reason: Message  # why these dtypes


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


def plan_from(request: PairRequest, skeletons: list[Module]) -> LoadPlan:
    """The plan for models whose skeletons have been read, whether they fit this machine's memory or not."""
    automatic, reason = automatic_dtype(request.device, sum(model.num_parameters() for model in skeletons))
    parts, dtypes = request.parts, tuple(part.dtype or automatic for part in request.parts)
    sizes, needs = [], []
    for part, dtype, skeleton in zip(parts, dtypes, skeletons, strict=True):
        check_quantize(part, dtype, skeleton)
        # An adapter is merged into weights that are quantised only then.
        sizes.append(bytes_of(skeleton, dtype, None if part.adapter else part.quantize))
        needs.append(MemoryNeed(part.device, sizes[-1], f"{part.named} needs"))
    if len(parts) > 1 and len({part.device for part in parts}) == 1:
        names = " and ".join(part.named for part in parts)
        needs.append(MemoryNeed(request.device, sum(sizes), f"{names} need"))
    given = [part.role for part in parts if part.dtype]
    if len(given) == len(dtypes):
        reason = message("requested")
    elif given:
        reason = message(f"{given[0]}_requested", reason=reason)
    return LoadPlan(request, dtypes, tuple(sizes), tuple(needs), reason)


def automatic_dtype(device: str, parameters: int) -> tuple[torch.dtype, Message]:
    """The dtype for a pair of that many parameters, and why."""
    if device != "cpu":
        if has_bfloat16(device):
            return torch.bfloat16, message("half", name="bfloat16")
        return torch.float16, message("no_bfloat16")
    if 4 * parameters < memory_of("cpu") / 2:
        return torch.float32, message("float32")
    return torch.bfloat16, message("bfloat16")


def bytes_of(skeleton: Module, dtype: torch.dtype, quantize: str | None) -> int:
    """Memory that the model's weights will take, in bytes.

    quanto keeps the scales of quantised weights in the dtype: one for each row, or below 8 bits a scale and a
    shift for each group of weights. Each layer also has two float32 scales for activations.
    """
    total = dtype.itemsize * skeleton.num_parameters()
    total += sum(buffer.numel() * buffer.itemsize for buffer in skeleton.buffers())
    if quantize is None:
        return total
    bits = QUANTIZE[quantize]
    for layer in quantized_layers(skeleton):
        weights = layer.weight.numel()
        group = next((size for size in (128, 96, 64) if layer.in_features % size == 0), 32)
        scales = layer.out_features if bits == 8 else 2 * (weights // group)
        total += weights * bits // 8 + (scales - weights) * dtype.itemsize + 2 * 4
    return total


def check_free_memory(planned: LoadPlan, could_free: Callable[[str], int] = lambda device: 0) -> None:
    """LoadError if the memory that is free now is not enough. could_free: bytes of a device's memory that
    can be freed for it."""
    for need in planned.needs:
        free = free_memory(need.device) + could_free(need.device)
        if need.bytes > free:
            left = f"{amount(free)} of {amount(memory_of(need.device))} are free on {need.device}"
            raise LoadError(f"{need.models} about {amount(need.bytes)} of memory, but {left}")


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
