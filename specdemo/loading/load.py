"""Loads pairs of models. Apart from training/, no other module loads through transformers or quantises."""

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from huggingface_hub import constants, get_token
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    QuantoConfig,
)

from specdemo.errors import LoadError, PairError, is_out_of_memory
from specdemo.events import Params
from specdemo.loading.assemble import (
    TRUSTED,
    check_caches,
    check_forwards,
    code_note,
    dtype_name,
    limits_of,
    pair_of,
    with_known_ids,
)
from specdemo.loading.catalog import GATED
from specdemo.loading.errors import gated_error, load_errors
from specdemo.loading.fetch import check_weights, directory_of, fetch, has_config, is_here
from specdemo.loading.heads import check_head_fits, is_head, load_head, skeleton_of_head, target_for
from specdemo.loading.memory import pair_in_memory
from specdemo.loading.pair import AnyPair, Drafting, Pair
from specdemo.loading.plan import Plan, check_free_memory, check_memory, plan_from
from specdemo.loading.progress import OnProgress, loading_weights
from specdemo.loading.request import ByRole, Part, Request, drafter_part, resolve
from specdemo.loading.speculator import check_fit
from specdemo.loading.vocabulary import OtherTokenizer, other_tokenizer
from specdemo.runtime import cuda
from specdemo.runtime.cached_head import DrafterModel
from specdemo.runtime.joined import join_weights
from specdemo.runtime.skinny_linear import use_skinny_linear
from specdemo.vllm.pair import connect

FROM_DISK = {"local_files_only": True}


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None = None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
    cudnn_attention: bool = False,
    trust_remote_code: bool = False,
    vllm: str | None = None,
    vllm_key: str | None = None,
) -> AnyPair:
    """A pair by its name in the catalogue (the embedded pair if left out), by hub ids (ID or ID@REVISION) or
    directories, or from models in memory, which are not changed. A drafter that is loaded can be a speculator
    (an EAGLE-3 head); then the target can be left out: it is the verifier that its config.json names.

    tokenizer, device, dtype and quantize: one for both models or {"target": ..., "drafter": ...}. None
    chooses the device and the dtype (`Pair.dtype_reason` says why) and does not quantise. cudnn_attention: a
    pair on CUDA switches cuDNN's attention off in the whole process, or on if this is True.
    trust_remote_code: runs program code that comes with the models, of the same revision. Raises PairError
    for a wrong request, LoadError when loading failed.

    vllm: the address of a running vLLM server, http://host:8000, which takes the place of all the rest.
    vllm_key: of its --api-key, kept out of all that is shown and saved.
    """
    if vllm is not None:
        others = (name, target, drafter, tokenizer, device, dtype, quantize)
        if any(value is not None for value in others) or trust_remote_code:
            raise PairError("vllm must be given alone: the server has loaded its models")
        return connect(vllm, vllm_key)
    if vllm_key is not None:
        raise PairError("vllm_key must be left out without vllm: it is the key of a server")
    if isinstance(target, PreTrainedModel) and name is None:
        for option, value in (("device", device), ("dtype", dtype), ("quantize", quantize)):
            if value is not None:
                raise PairError(
                    f"{option} must be left out for models given in memory: they are used as they are"
                )
        if trust_remote_code:
            raise PairError(
                "trust_remote_code must be left out for models given in memory: nothing is loaded"
            )
        if drafter is not None and not isinstance(drafter, PreTrainedModel):
            raise PairError(
                f"drafter must be a transformers model like the target, not {type(drafter).__name__}"
            )
        return pair_in_memory(target, drafter, tokenizer, cudnn_attention, load_drafter)
    if name is None:
        target = target_for(target, drafter, trust_remote_code)
    request = resolve(
        name,
        target=target,
        drafter=drafter,
        device=device,
        dtype=dtype,
        quantize=quantize,
        trust_remote_code=trust_remote_code,
    )
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: it is loaded with them")
    planned = plan(request)
    check_free_memory(planned)
    fetch(request.parts)
    return load(planned, cudnn_attention=cudnn_attention)


def plan(request: Request) -> Plan:
    """How a request would be loaded, from the models' configs alone. Raises as `load_pair` does."""
    check_access(request)
    if (lost := cuda.lost()) and any(cuda.is_cuda(part.device) for part in request.parts):
        raise LoadError(lost)
    skeletons = [read_skeleton(part, offline=is_here(part)) for part in request.parts]
    planned = plan_from(request, skeletons)
    if len(skeletons) == 2:
        check_head_fits(skeletons[1], skeletons[0], request.parts)
    check_memory(planned)
    return planned


def check_access(request: Request) -> None:
    """LoadError, without a request to the hub, if a model is gated, not on this machine, and there is no
    token. A mirror may have other rules, so it is asked."""
    if get_token() or constants.ENDPOINT != constants._HF_DEFAULT_ENDPOINT:
        return
    for part in request.parts:
        if part.place in GATED and not has_config(part):
            raise gated_error(part.role, part.id)


def read_skeleton(part: Part, offline: bool = False) -> DrafterModel:
    """A model on the meta device, from its config. offline: only from the disk, without a request to the
    hub."""
    with load_errors(part.role, part.place, shown=part.id), torch.device("meta"):
        if is_head(part, offline):
            return skeleton_of_head(part, offline)
        if part.code:
            fetch((part,), code_only=True)
        # from_config would take the code of the main revision, except from a directory.
        place = directory_of(part) if part.code else part.place
        config = AutoConfig.from_pretrained(place, local_files_only=offline or part.code, **_version(part))
        return AutoModelForCausalLM.from_config(config, trust_remote_code=part.code)


def load(plan: Plan, on_progress: OnProgress = lambda *_: None, cudnn_attention: bool = False) -> Pair:
    """Loads a plan's models, checks that they fit each other and can be rewound, and warms them up. They must
    be on this machine: nothing here asks the hub."""
    parts = plan.request.parts
    try:
        return _load_here(plan, parts, on_progress, cudnn_attention)
    except Exception as error:
        if isinstance(error, PairError) or not is_out_of_memory(error):
            raise
    names = " and ".join(f"{part.role} {part.id}" for part in parts)
    raise LoadError(f"there is not enough memory for {names}: choose a smaller pair")


def _load_here(plan: Plan, parts: tuple[Part, ...], on_progress: OnProgress, cudnn_attention: bool) -> Pair:
    on_progress("Reading the tokenizers", None)
    ids = [part.id for part in parts]
    tokenizer, other = _tokenizer(parts[0]), None
    if len(parts) == 2 and not is_head(parts[1]):
        other = other_tokenizer(tokenizer, _tokenizer(parts[1]), *ids)
    target = _load(parts[0], plan.dtypes[0], on_progress)
    drafter = _load_drafter(parts[1], plan.dtypes[1], on_progress) if len(parts) == 2 else None
    if drafter is not None:
        # Again, because whether a head has embeddings of its own is known only when its weights are here.
        check_head_fits(drafter, target, parts)
    pair = pair_of(
        plan.request.name,
        target,
        drafter,
        ids,
        [part.quantize for part in parts],
        tokenizer,
        plan.reason,
        load_drafter,
        cudnn_attention=cudnn_attention,
        other=other,
    )
    on_progress("Checking that the caches can be rewound", None)
    models = [target] if drafter is None else [target, drafter]
    check_forwards(models, ids)
    on_progress("Warming up", None)
    pair.runner.warm_up(Params().gamma)
    return replace(pair, limits=(*pair.limits, code_note(models))) if parts[0].code else pair


def _version(part: Part) -> dict[str, Any]:
    """Which of a model's files count. Without trust_remote_code=False transformers would ask on the terminal
    whether to run program code that comes with a model."""
    return {"revision": part.revision or "main", "trust_remote_code": part.code}


def _tokenizer(part: Part) -> PreTrainedTokenizerBase:
    with load_errors(part.role, part.place, "tokenizer", part.id):
        return AutoTokenizer.from_pretrained(part.place, **_version(part), **FROM_DISK)


def _load(part: Part, dtype: torch.dtype, on_progress: OnProgress) -> PreTrainedModel:
    on_progress(loading_weights(part), None)
    check_weights(part)
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True}
    options |= FROM_DISK | _version(part)
    if part.quantize:
        options["quantization_config"] = QuantoConfig(weights=part.quantize)
    if part.quantize and part.device != "cpu":
        options["device_map"] = {"": part.device}  # quantises the weights there; one device needs no hooks
    with load_errors(part.role, part.place, "weights", part.id):
        with cuda.alone_on(part.device) if "device_map" in options else nullcontext():
            model, info = AutoModelForCausalLM.from_pretrained(part.place, **options)
        with cuda.alone_on(part.device):
            model = model.to(part.device)  # after a device map: only quanto's unused scales move
            join_weights(model)
            cuda.free_cache(part.device)  # where the weights were before they were joined
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        lacks = f"lacks {len(missing)} weights, first {missing[0]}"
        raise LoadError(f"{part.role} {part.id} {lacks}: its files are incomplete")
    if part.device == "cpu" and dtype == torch.float32 and not part.quantize:
        use_skinny_linear(model)
    return model


def _load_drafter(part: Part, dtype: torch.dtype, on_progress: OnProgress) -> DrafterModel:
    if not is_head(part):
        return _load(part, dtype, on_progress)
    on_progress(loading_weights(part), None)
    return load_head(part, dtype)


def load_drafter(pair: Pair, drafter: str | os.PathLike | None) -> Drafting:
    """What `Pair.attach` puts on, loaded and checked; what the pair is without a drafter for None."""
    of_code = [limit for limit in pair.limits if limit.startswith(TRUSTED)]
    if drafter is None:
        return Drafting(None, None, None, (*limits_of([pair.target], None), *of_code), None)
    part = drafter_part(drafter, str(pair.target.device), pair.target.dtype)
    planned = plan(Request(part.id, (part,)))
    check_free_memory(planned)
    fetch((part,))
    try:
        model, other = _fitting(pair, part)
    except Exception as error:
        if isinstance(error, PairError) or not is_out_of_memory(error):
            raise
    else:
        limits = (*limits_of([pair.target, model], other), *of_code)
        return Drafting(model, part.id, dtype_name(model.dtype), limits, other)
    raise LoadError(f"there is not enough memory for drafter {part.id}: choose a smaller one")


def _fitting(pair: Pair, part: Part) -> tuple[DrafterModel, OtherTokenizer | None]:
    """The drafter, which has been checked with the pair's target, and its tokenizer if it is another."""
    ids, other = [pair.info.target, part.id], None
    if is_head(part):
        check_fit(skeleton_of_head(part, offline=True).config, pair.target, part.id, ids[0])
    elif pair.tokenizer is not None:
        other = other_tokenizer(pair.tokenizer, _tokenizer(part), *ids)
    models = [pair.target, _load_drafter(part, pair.target.dtype, lambda *_: None)]
    check_caches(models, ids)
    check_forwards(models, ids)
    return models[1], with_known_ids(other, models, ids)
