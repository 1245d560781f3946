"""Makes a pair of loaded models: what they must have in common, and what a user should know of them."""

from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.errors import PairError, is_out_of_memory
from specdemo.events import ByModel, PairInfo
from specdemo.loading.errors import reason_of
from specdemo.loading.pair import LoadDrafter, Pair
from specdemo.loading.request import ROLES
from specdemo.loading.vocabulary import OtherTokenizer, check_shared
from specdemo.runtime import cuda
from specdemo.runtime.cached_head import DrafterModel, context_of_drafter
from specdemo.runtime.device import device_name
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.runtime.features import layers_of
from specdemo.runtime.gpu import has_bfloat16
from specdemo.runtime.lm import context_of, logits_width, positional_cache
from specdemo.runtime.probe import agrees_with_itself, head_agrees_with_itself
from specdemo.runtime.runner import Capture, Runner


def pair_of(
    name: str,
    target: PreTrainedModel,
    drafter: DrafterModel | None,
    ids: list[str],
    quantized: list[str | None],
    tokenizer: PreTrainedTokenizerBase | None,
    reason: str,
    load_drafter: LoadDrafter,
    capture: Capture = "auto",
    cudnn_attention: bool = False,
    other: OtherTokenizer | None = None,
) -> Pair:
    """other: the drafter's tokenizer, if it is not the target's."""
    models = [target] if drafter is None else [target, drafter]
    check_caches(models, ids)
    _set_cudnn_attention(models, cudnn_attention)
    device = target.get_input_embeddings().weight.device
    dtypes = [dtype_name(model.dtype) for model in models]
    info = PairInfo(
        name,
        *_both(ids),
        str(device),
        device_name(device),
        ByModel(*_both(dtypes)),
        ByModel(*_both(quantized)),
    )
    runner = Runner(target, drafter, capture)
    other = with_known_ids(other, models, ids)
    limits = limits_of(models, other)
    return Pair(target, drafter, tokenizer, info, reason, limits, runner, load_drafter, other_tokenizer=other)


def check_caches(models: list[DrafterModel], ids: list[str]) -> None:
    """PairError if a model has no cache that can be written by position, or if the hidden states that a head
    needs cannot be found in the target."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if isinstance(model, Eagle3Head):
                role, model_id, model = ROLES[0], ids[0], models[0]
                layers_of(models[0])
            else:
                positional_cache(model)
        except ValueError as error:
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {error}") from None


def limits_of(models: list[DrafterModel], other: OtherTokenizer | None) -> tuple[str, ...]:
    """See Pair. models: the target, and the drafter if there is one. other: see `pair_of`."""
    target, drafter = _both(models)
    limits = [*_ignored_processors(target), *_emulated_bfloat16(models)]
    if drafter is not None and (context := context_of_drafter(drafter)) < context_of(target):
        limits.append(f"the drafter's context is {context:,.0f} tokens: beyond that nothing is drafted")
    if other is not None:
        limits.append(
            f"the drafter has another tokenizer, with {len(other.shared):,} of the target's "
            f"{logits_width(target):,} tokens: it reads the end of the text anew in each round; at "
            "temperature 0 its drafts go through text, otherwise they are tokens that both have"
        )
    return tuple(limits)


def check_forwards(models: list[DrafterModel], ids: list[str]) -> None:
    """PairError if a model's forward fails, or predicts something else with a cache than without one."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if isinstance(model, Eagle3Head):
                agrees = head_agrees_with_itself(model, models[0])
            else:
                agrees = agrees_with_itself(model)
            if agrees:
                continue
            reason = "its predictions with a cache differ from those without one"
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if cuda.is_cuda(model.device) and isinstance(error, RuntimeError):
                cuda.raise_if_lost(error, model.device)
            reason = f"its forward fails: {reason_of(error)}"
        raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {reason}")


def _set_cudnn_attention(models: list[DrafterModel], enabled: bool) -> None:
    """For the whole process, if a model is on a GPU. torch prefers cuDNN's attention on some, but it builds a
    plan for each new length of the cache, which takes tens of milliseconds."""
    if any(model.device.type == "cuda" for model in models):
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _both(things: list) -> tuple:
    """The target's, and the drafter's or None."""
    return things[0], things[1] if len(things) == 2 else None


# Options of a generation config that change the target's distribution: the value that switches each off.
PROCESSORS = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "min_length": 0,
    "min_new_tokens": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def _ignored_processors(target: PreTrainedModel) -> list[str]:
    config = target.generation_config
    ignored = [name for name, off in PROCESSORS.items() if getattr(config, name, None) not in (None, off)]
    if not ignored:
        return []
    return [f"not applied, though the target's generation config asks for it: {', '.join(ignored)}"]


def _emulated_bfloat16(models: list[DrafterModel]) -> list[str]:
    """It is allowed, because it was asked for or is the models' own, but its user should know."""
    return [
        f"the {role} computes in bfloat16, which {model.device} only emulates: float16 is faster there"
        for role, model in zip(ROLES, models, strict=False)
        if model.dtype == torch.bfloat16 and model.device.type == "cuda" and not has_bfloat16(model.device)
    ]


def with_known_ids(other: OtherTokenizer | None, models: list, ids: list[str]) -> OtherTokenizer | None:
    """Without ids that a tokenizer has and its model has not. models: target and drafter. PairError if no
    token in common is left."""
    if other is None:
        return None
    target, drafter = models
    widths = logits_width(target), min(logits_width(drafter), drafter.get_input_embeddings().weight.shape[0])
    shared = ((ours, theirs) for ours, theirs in other.shared if ours < widths[0] and theirs < widths[1])
    known = replace(other, shared=tuple(shared))
    check_shared(known, *ids)
    return known


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


TRUSTED = "program code that comes with the models is trusted and run (trust_remote_code)"
DYNAMIC = "transformers_modules"  # where transformers puts program code that comes with models


def code_note(models: list[DrafterModel]) -> str:
    """What a user should know of models that were loaded with trust_remote_code."""
    theirs = [type(model).__name__ for model in models if type(model).__module__.startswith(DYNAMIC)]
    ran = (
        f"{' and '.join(theirs)} came with it" if theirs else "these models came with none for their forwards"
    )
    return f"{TRUSTED}: {ran}"
