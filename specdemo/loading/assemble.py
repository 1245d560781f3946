"""Makes a pair of loaded models: what they must have in common, and what a user should know of them."""

from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.events import ByModel, PairInfo
from specdemo.loading.errors import PairError, is_out_of_memory, reason_of
from specdemo.loading.pair import Pair
from specdemo.loading.request import ROLES
from specdemo.loading.vocabulary import OtherTokenizer
from specdemo.runtime import cuda
from specdemo.runtime.device import device_name
from specdemo.runtime.gpu import has_bfloat16
from specdemo.runtime.lm import context_of, logits_width, positional_cache
from specdemo.runtime.probe import agrees_with_itself
from specdemo.runtime.runner import Capture, Runner


def pair_of(
    name: str,
    models: list[PreTrainedModel],
    ids: list[str],
    quantized: list[str | None],
    tokenizer: PreTrainedTokenizerBase | None,
    reason: str,
    capture: Capture = "auto",
    cudnn_attention: bool = False,
    other: OtherTokenizer | None = None,
) -> Pair:
    """other: the drafter's tokenizer, if it is not the target's."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            positional_cache(model)
        except ValueError as error:
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {error}") from None
    _set_cudnn_attention(models, cudnn_attention)
    device = models[0].get_input_embeddings().weight.device
    dtypes = [dtype_name(model.dtype) for model in models]
    info = PairInfo(
        name,
        *_both(ids),
        str(device),
        device_name(device),
        ByModel(*_both(dtypes)),
        ByModel(*_both(quantized)),
    )
    target, drafter = _both(models)
    limits = [*_ignored_processors(target), *_emulated_bfloat16(models)]
    if drafter is not None and (context := context_of(drafter)) < context_of(target):
        limits.append(f"the drafter's context is {context:,.0f} tokens: beyond that nothing is drafted")
    if other is not None:
        other = _with_known_ids(other, target, drafter)
        limits.append(
            f"the drafter has another tokenizer, with {len(other.shared):,} of the target's "
            f"{logits_width(target):,} tokens: it reads the end of the text anew in each round; at "
            "temperature 0 its drafts go through text, otherwise they are tokens that both have"
        )
    runner = Runner(target, drafter, capture)
    return Pair(target, drafter, tokenizer, info, reason, tuple(limits), runner, other_tokenizer=other)


def check_forwards(models: list[PreTrainedModel], ids: list[str]) -> None:
    """PairError if a model's forward fails, or predicts something else with a cache than without one."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if agrees_with_itself(model):
                continue
            reason = "its predictions with a cache differ from those without one"
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if cuda.is_cuda(model.device) and isinstance(error, RuntimeError):
                cuda.raise_if_lost(error, model.device)
            reason = f"its forward fails: {reason_of(error)}"
        raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {reason}")


def _set_cudnn_attention(models: list[PreTrainedModel], enabled: bool) -> None:
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


def _emulated_bfloat16(models: list[PreTrainedModel]) -> list[str]:
    """It is allowed, because it was asked for or is the models' own, but its user should know."""
    return [
        f"the {role} computes in bfloat16, which {model.device} only emulates: float16 is faster there"
        for role, model in zip(ROLES, models, strict=False)
        if model.dtype == torch.bfloat16 and model.device.type == "cuda" and not has_bfloat16(model.device)
    ]


def _with_known_ids(
    other: OtherTokenizer, target: PreTrainedModel, drafter: PreTrainedModel
) -> OtherTokenizer:
    """Without ids that a tokenizer has and its model has not."""
    widths = logits_width(target), min(logits_width(drafter), drafter.get_input_embeddings().weight.shape[0])
    shared = ((ours, theirs) for ours, theirs in other.shared if ours < widths[0] and theirs < widths[1])
    return replace(other, shared=tuple(shared))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
