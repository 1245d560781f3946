"""Loads pairs of models. No other module loads through transformers or quantises."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import constants, get_token
from torch.nn import Linear, Module
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    QuantoConfig,
)
from transformers.pytorch_utils import Conv1D

from specdemo.drafters.base import Drafting
from specdemo.drafters.table import count_carried, kind_in, kind_of, read_carried
from specdemo.drafters.vocabulary import OtherTokenizer, other_tokenizer
from specdemo.engine.compiled import compiled
from specdemo.errors import LoadError, PairError, gated_error, is_out_of_memory, load_errors
from specdemo.events import Params
from specdemo.loading.adapters import with_adapter
from specdemo.loading.assemble import (
    check_caches,
    check_fits,
    check_forwards,
    code_note,
    pair_in_memory,
    pair_of,
    with_known_ids,
)
from specdemo.loading.catalog import GATED
from specdemo.loading.composites import NOT_CAUSAL, has_senses, text_alone
from specdemo.loading.fetch import (
    OnProgress,
    adapters_directory,
    check_weights,
    directory_of,
    fetch,
    folder_of,
    has_config,
    has_tokenizer,
    is_here,
    patience,
    stored_dtypes,
    with_base,
)
from specdemo.loading.pair import AnyPair, LoadedDrafter, Pair
from specdemo.loading.plan import (
    LoadPlan,
    check_depth,
    check_free_memory,
    check_memory,
    check_quantize,
    plan_from,
)
from specdemo.loading.quantised import (
    check_scales,
    check_stored,
    is_written_out,
    method_of,
    quantise_layers,
    unpack_without_compiler,
    written_out,
)
from specdemo.loading.request import ByRole, PairRequest, Part, drafter_part, dtype_name, in_project, resolve
from specdemo.runtime import cuda
from specdemo.runtime.files import stored_tensors
from specdemo.runtime.linear import align_weights, join_weights, use_skinny_linear
from specdemo.runtime.native import is_small
from specdemo.servers.pair import connect
from specdemo.words.message import about, message

FROM_DISK = {"local_files_only": True}
Loaded = TypeVar("Loaded")
CLASSIFIERS = re.compile(r"(For\w*Classification|ForQuestionAnswering|ForMultipleChoice|RewardModel)$")
NO_TEXT = "predicts no next token: give a causal language model"


@patience()
def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None = None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
    trust_remote_code: bool = False,
    server: str | None = None,
    server_key: str | None = None,
    vllm: str | None = None,
    vllm_key: str | None = None,
) -> AnyPair:
    """A pair by its name in the catalogue (the embedded pair if left out), by hub ids (ID or ID@REVISION) or
    directories, or from models in memory, which are not changed. A target in memory takes a drafter of either
    kind; one that is loaded gets its device and dtype, as by `Pair.attach`. A drafter that is loaded can be a
    speculator (an EAGLE-3 head); then the target can be left out: it is the verifier that its config.json
    names.

    tokenizer, device, dtype and quantize: one for both models or {"target": ..., "drafter": ...}. None
    chooses the device and the dtype (`Pair.dtype_reason` says why) and does not quantise.
    trust_remote_code: runs program code that comes with the models, of the same revision. Raises PairError
    for a wrong request, LoadError when loading failed.

    server: the address of a running server, http://host:8000, of vLLM or llama.cpp, which takes the place of
    all the rest. server_key: the key of its --api-key, kept out of all that is shown and saved.
    vllm, vllm_key: their older names.
    """
    if server is None:
        server, vllm = vllm, None
    if server_key is None:
        server_key, vllm_key = vllm_key, None
    if server is not None:
        others = (name, target, drafter, tokenizer, device, dtype, quantize, vllm, vllm_key)
        if any(value is not None for value in others) or trust_remote_code:
            raise PairError("server must be given alone: it has loaded its models")
        return connect(server, server_key)
    if server_key is not None:
        raise PairError("server_key must be left out without server: it is the key of a server")
    how = {"device": device, "dtype": dtype, "quantize": quantize}
    if isinstance(target, PreTrainedModel) and name is None:
        for option, value in how.items():
            if value is not None:
                raise PairError(
                    f"{option} must be left out for models given in memory: they are used as they are"
                )
        if trust_remote_code:
            raise PairError(
                "trust_remote_code must be left out for models given in memory: nothing is loaded"
            )
        if isinstance(drafter, (str, os.PathLike)):
            if isinstance(tokenizer, dict):
                raise PairError("tokenizer must be the target's alone: the drafter's is loaded with it")
            pair = pair_in_memory(target, None, tokenizer, load_drafter)
            pair.attach(drafter)
            return pair
        if drafter is not None and not isinstance(drafter, PreTrainedModel):
            raise PairError(
                f"drafter must be a transformers model, a hub id or a directory, not {type(drafter).__name__}"
            )
        return pair_in_memory(target, drafter, tokenizer, load_drafter)
    if name is None:
        target = target_for(target, drafter, trust_remote_code)
    request = resolve(name, target=target, drafter=drafter, **how, trust_remote_code=trust_remote_code)
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: it is loaded with them")
    planned = plan(request)
    check_free_memory(planned)
    fetch(planned.request.parts)
    return load_planned(planned)


def plan(request: PairRequest) -> LoadPlan:
    """How a request would be loaded, from the models' configs alone; in place of an adapter its base with the
    adapter. Raises as `load_pair` does."""
    check_access(request)
    request = replace(request, parts=tuple(with_base(part, is_here(part)) for part in request.parts))
    check_access(request)
    if (lost := cuda.lost()) and any(cuda.is_cuda(part.device) for part in request.parts):
        raise LoadError(lost)
    skeletons = [read_skeleton(part, offline=is_here(part)) for part in request.parts]
    planned = plan_from(request, skeletons)
    if len(skeletons) == 2:
        check_fits(skeletons[1], skeletons[0], *_ids_and_devices(request.parts))
    check_memory(planned)
    return planned


def _ids_and_devices(parts: tuple[Part, ...]) -> tuple[list[str], list[str]]:
    return [part.id for part in parts], [part.device for part in parts]


def check_access(request: PairRequest) -> None:
    """LoadError, without a request to the hub, if a model is gated, not on this machine, and there is no
    token. A mirror may have other rules, so it is asked."""
    if get_token() or constants.ENDPOINT != constants._HF_DEFAULT_ENDPOINT:
        return
    for part in request.parts:
        if part.place in GATED and not has_config(part):
            raise gated_error(part.role, part.id)


def read_skeleton(part: Part, offline: bool = False) -> Module:
    """A model on the meta device, from its config. offline: only from the disk, without a request to the
    hub."""
    with load_errors(part.role, part.place, shown=part.id), torch.device("meta"):
        if (kind := kind_of_part(part, offline)).is_head:
            if part.adapter is not None:
                raise PairError(f"{part.role}: {part.id} is a head, and an adapter's base must be a model")
            return kind.skeleton(folder_of(part, offline=True), part.id)
        if part.code:
            fetch((part,), code_only=True)
        # from_config would take the code of the main revision, except from a directory.
        place = directory_of(part) if part.code else part.place
        how = FROM_DISK | _version(part)  # where the config is now
        check_depth(PreTrainedConfig.get_config_dict(place, **how)[0])
        config = AutoConfig.from_pretrained(place, **how)
        _check_architecture(part, config)
        _check_method(part, method_of(config))
        model = _loader(config).from_config(config, trust_remote_code=part.code)
        folder = Path(directory_of(part)) if is_here(part) else None
        model.carried_parameters = count_carried(model, folder) if part.role == "target" else 0
        return model


def _loader(config: PreTrainedConfig) -> type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]:
    """What makes and loads a config's models."""
    return AutoModelForImageTextToText if config.model_type in NOT_CAUSAL else AutoModelForCausalLM


def _check_method(part: Part, method: str | None) -> None:
    """PairError if what is asked for needs whole weights, and a method has quantised them."""
    if method is None:
        return
    if part.adapter is not None:
        raise PairError(
            f"{part.role}: the weights of {part.id} are quantised, and an adapter can be merged only into "
            "weights that are not"
        )
    if part.quantize is not None:
        asked = {"model": f"{part.role} {part.id}", "given": part.quantize}
        raise PairError(about("quantize", "quantised_already", name=method, **asked))


def _check_architecture(part: Part, config: PreTrainedConfig) -> None:
    """PairError for a classifier: its embeddings could be taken for the head that it lacks."""
    named = getattr(config, "architectures", None) or []
    if named and all(isinstance(name, str) and CLASSIFIERS.search(name) for name in named):
        raise PairError(f"{part.role} {part.id} is a {named[0]}, which {NO_TEXT}")


def load_planned(plan: LoadPlan, on_progress: OnProgress = lambda *_: None) -> Pair:
    """Loads a plan's models, checks that they fit each other and can be rewound, and warms them up. They must
    be on this machine: nothing here asks the hub."""
    names = " and ".join(f"{part.role} {part.id}" for part in plan.request.parts)
    load = partial(_load_here, plan, on_progress)
    return _with_memory(load, f"{names}: choose a smaller pair")


def _with_memory(load: Callable[[], Loaded], models: str) -> Loaded:
    """What `load` returns. LoadError if there is not enough memory; its traceback does not hold what has been
    loaded so far."""
    try:
        return load()
    except Exception as error:
        if isinstance(error, PairError) or not is_out_of_memory(error):
            raise
    raise LoadError(f"there is not enough memory for {models}")


def _load_here(plan: LoadPlan, on_progress: OnProgress) -> Pair:
    parts = plan.request.parts
    for part in parts:
        check_weights(part)
    on_progress(message("tokenizers"), None)
    ids = [part.given for part in parts]
    tokenizer, other = _tokenizer(parts[0]), None
    if len(parts) == 2 and kind_of_part(parts[1]).has_tokenizer:
        other = other_tokenizer(tokenizer, _tokenizer(parts[1]), *ids)
    models = [_load(parts[0], plan.dtypes[0], on_progress)]
    if len(parts) == 2:
        models.append(_load_drafter(parts[1], plan.dtypes[1], on_progress))
        # This is checked again, because whether a head has embeddings of its own is known only when its
        # weights are here.
        check_fits(models[1], models[0], *_ids_and_devices(parts))
    on_progress(message("caches"), None)
    carried = read_carried(models[0], Path(directory_of(parts[0])), parts[0].quantize is not None)
    how = (tokenizer, plan.reason, load_drafter, "auto", other, carried)
    pair = pair_of(plan.request.name, models, ids, [part.quantize for part in parts], *how)
    on_progress(message("warming_up"), None)
    pair.runner.warm_up(Params().gamma)
    if pair.target.device.type == "cpu":
        compiled()
    return replace(pair, of_code=(code_note(models),)) if parts[0].code else pair


def _version(part: Part) -> dict[str, Any]:
    """Which of a model's files count. Without trust_remote_code=False transformers would ask on the terminal
    whether to run program code that comes with a model."""
    return {"revision": part.revision or "main", "trust_remote_code": part.code}


def _tokenizer(part: Part) -> PreTrainedTokenizerBase:
    """The model's, or that of the adapter which is merged into it, if this one has its own."""
    own = part.adapter if part.adapter is not None and has_tokenizer(part.adapter) else part
    with load_errors(part.role, part.place, "tokenizer", own.id):
        return AutoTokenizer.from_pretrained(own.place, **_version(own), **FROM_DISK)


def _load(part: Part, dtype: torch.dtype, on_progress: OnProgress) -> PreTrainedModel:
    on_progress(message(f"loading_{part.role}", name=part.id), None)
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True}
    options |= FROM_DISK | _version(part)
    options["adapter_kwargs"] = FROM_DISK  # else transformers would ask the hub for an adapter, where peft is
    quantize_now = part.quantize is not None and part.adapter is None
    if part.quantize:
        unpack_without_compiler()
    if quantize_now:
        options["quantization_config"] = QuantoConfig(weights=part.quantize)
    if part.device != "cpu" and (quantize_now or _takes_host_memory(part, dtype)):
        # Each tensor goes there by itself, and is quantised there. One device needs no hooks.
        options["device_map"] = {"": part.device}
    cuda.free_cache(part.device)  # while another thread captures, torch frees nothing to make room
    on_gpu = "device_map" in options and cuda.is_cuda(part.device)
    drawing = RandomNumbersAlone() if on_gpu else nullcontext()
    where = f"{part.role} {part.id}"
    with load_errors(part.role, part.place, "weights", part.id), drawing:
        stored = stored_tensors(Path(directory_of(part)))
        config = AutoConfig.from_pretrained(part.place, **_version(part), **FROM_DISK)
        method = method_of(config)
        if how := written_out(method):
            options["quantization_config"] = how
        model, info = _loader(config).from_pretrained(part.place, **options)
    if method is None:
        check_stored(where, {name: stored[name] for name in stored if name not in info["unexpected_keys"]})
    check_scales(where, stored, info["unexpected_keys"], model)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        _check_head(part, model, missing)
        lacks = f"lacks {len(missing)} weights, first {missing[0]}"
        raise LoadError(f"{where} {lacks}: its files are incomplete")
    notes = [("written_out", {"name": method})] if method and is_written_out(model) else []
    if part.adapter is not None:
        model = with_adapter(model.to(part.device), part, Path(adapters_directory(part.adapter)))
        base = Path(part.place).resolve().name if os.path.isdir(part.place) else part.place
        notes.append(("adapter_merged", {"name": base, "reason": part.adapter.id}))
    model = text_alone(model)
    if has_senses(config):
        notes.append(("text_part", {"name": (config.architectures or [config.model_type])[0]}))
    _keep_score_cap(model)
    if part.quantize:
        quantise_layers(model, part.quantize, (Conv1D,) if quantize_now else (Conv1D, Linear))
    model.loaded_as = tuple(notes)
    return _placed(model, part, dtype)


def _check_head(part: Part, model: PreTrainedModel, missing: list[str]) -> None:
    """PairError if nothing but the output layer is missing: it is a model without a head for language."""
    head = model.get_output_embeddings()
    own = [name for name, weight in model.named_parameters() if head and weight in {*head.parameters()}]
    if {*missing} <= {*own}:
        kind = (model.config.architectures or [type(model).__name__])[0]
        raise PairError(
            f"{part.role} {part.id}, a {kind}, lacks its output layer, {missing[0]}, and {NO_TEXT}"
        )


def _keep_score_cap(model: PreTrainedModel) -> None:
    """Chooses eager attention for models that cap attention's scores (Gemma 2): transformers before 5.21
    chooses torch's attention for them, which ignores the cap."""
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


class RandomNumbersAlone(TorchDispatchMode):
    """While this thread draws random numbers, nothing is captured: during a capture a GPU's generator gives
    none to other threads. transformers draws some for models with recurrent layers, and does not use them.

    The rest of loading allocates memory, copies on the default stream, and waits for that stream. None of
    this ends another thread's capture, which is in the mode "thread_local" and on a stream that does not wait
    for the default stream."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        with cuda.ALONE if is_random else nullcontext():
            return operation(*args, **(kwargs or {}))


def _takes_host_memory(part: Part, dtype: torch.dtype) -> bool:
    """Whether the weights would take memory of their own on the CPU. Else the system maps their files, and
    `to` reads those; a device map would do the same, but it takes the GPU's memory as one block, of which
    `join_weights` could give nothing back. On ZeroGPU only `to` knows the GPU that is not there yet."""
    if os.environ.get("SPACES_ZERO_GPU"):
        return False
    return sys.platform == "win32" or stored_dtypes(part) != {dtype}


def _placed(model: Module, part: Part, dtype: torch.dtype) -> Module:
    """The model on its device, with its weights as the engine multiplies them."""
    with load_errors(part.role, part.place, "weights", part.id):
        model = model.to(part.device)  # after a device map: only quanto's unused scales move
        if is_small(model):
            align_weights(model)
        join_weights(model)
        cuda.free_cache(part.device)  # where the weights were before they were joined
    if part.device == "cpu" and dtype == torch.float32 and not part.quantize:
        use_skinny_linear(model)
    return model


def _load_drafter(part: Part, dtype: torch.dtype, on_progress: OnProgress) -> Module:
    if not (kind := kind_of_part(part)).is_head:
        return _load(part, dtype, on_progress)
    on_progress(message(f"loading_{part.role}", name=part.id), None)
    head = kind.read(folder_of(part, offline=True), dtype, part.id)
    check_quantize(part, dtype, head)  # before its weights were here, it may have counted as a model
    cuda.free_cache(part.device)  # as in _load
    return _placed(head, part, dtype)


def kind_of_part(part: Part, offline: bool = True) -> Drafting:
    """The model's kind, from its config. PairError for a target of a kind that drafts for one. offline:
    without a request to the hub."""
    part = with_base(part, offline)
    kind = kind_in(folder_of(part, offline))
    if part.role == "target" and (what := kind.is_for_a_target):
        raise PairError(f"target: {part.id} is {what}, which drafts for a target: give it as the drafter")
    return kind


def target_for(target: object, drafter: object, trust_remote_code: object) -> Any:
    """The target as it is given. If it is not, the verifier that the drafter's config.json names, which that
    of a head may do; PairError if its program code would be trusted. Raises as `load_pair` does."""
    if target is not None or not isinstance(drafter, (str, os.PathLike)):
        return target
    part = drafter_part(drafter, "cpu", torch.float32)
    part = with_base(part, offline=has_config(part) or is_here(part))
    with load_errors(part.role, part.place, shown=part.id):
        folder = folder_of(part, offline=has_config(part))
        verifier = kind_in(folder).verifier(folder, part.id)
    if not verifier:
        return None
    if trust_remote_code:
        raise PairError(
            "trust_remote_code: give the target, too, since the drafter's config.json alone would choose "
            "whose program code is run"
        )
    return verifier if os.path.isdir(verifier) else in_project(verifier)


def load_drafter(pair: Pair, drafter: str | os.PathLike | None) -> LoadedDrafter:
    """What `Pair.attach` puts on, loaded and checked; what the pair is without a drafter for None."""
    if drafter is None:
        return LoadedDrafter(None, None, None, None)
    part = drafter_part(drafter, str(pair.target.device), pair.target.dtype)
    planned = plan(PairRequest(part.id, (part,)))
    part = planned.request.parts[0]
    check_free_memory(planned)
    fetch((part,))
    model, other = _with_memory(partial(_fitting, pair, part), f"drafter {part.id}: choose a smaller one")
    return LoadedDrafter(model, part.given, dtype_name(model.dtype), other)


def _fitting(pair: Pair, part: Part) -> tuple[Module, OtherTokenizer | None]:
    """The drafter, which has been checked with the pair's target, and its tokenizer if it is another."""
    check_weights(part)
    ids, other = [pair.info.target, part.given], None
    if not kind_of_part(part).has_tokenizer:
        skeleton = read_skeleton(part, offline=True)
        kind_of(skeleton).check_fit(skeleton, pair.target, part.id, ids[0])
    elif pair.tokenizer is not None:
        other = other_tokenizer(pair.tokenizer, _tokenizer(part), *ids)
    models = [pair.target, _load_drafter(part, pair.target.dtype, lambda *_: None)]
    kind_of(models[1]).check_fit(models[1], models[0], part.id, ids[0])
    check_caches(models, ids)
    with pair.runner.torch_settings():
        check_forwards(models, ids)
    return models[1], with_known_ids(other, models, ids)
