"""Makes a pair of loaded models: what they must have in common, and what a user should know of them."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.events import ByModel, PairInfo
from specdemo.loading.errors import PairError, is_out_of_memory, reason_of
from specdemo.loading.pair import LoadDrafter, Pair
from specdemo.loading.request import ROLES
from specdemo.runtime import cuda
from specdemo.runtime.cached_head import DrafterModel, context_of_drafter
from specdemo.runtime.device import device_name
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.runtime.features import layers_of
from specdemo.runtime.gpu import has_bfloat16
from specdemo.runtime.lm import context_of, positional_cache
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
) -> Pair:
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
    return Pair(target, drafter, tokenizer, info, reason, limits_of(models), runner, load_drafter)


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


def limits_of(models: list[DrafterModel]) -> tuple[str, ...]:
    """See Pair. models: the target, and the drafter if there is one."""
    target, drafter = _both(models)
    limits = [*_ignored_processors(target), *_emulated_bfloat16(models)]
    if drafter is not None and (context := context_of_drafter(drafter)) < context_of(target):
        limits.append(f"the drafter's context is {context:,.0f} tokens: beyond that nothing is drafted")
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


def check_same_tokenizer(
    target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase, target_id: str, drafter_id: str
) -> None:
    """PairError unless both tokenizers have the same token for every id that both have, and split text
    alike."""
    ours = {token_id: word for word, token_id in target.get_vocab().items()}
    theirs = {token_id: word for word, token_id in drafter.get_vocab().items()}
    for token_id in sorted(ours.keys() & theirs.keys()):
        if ours[token_id] != theirs[token_id]:
            raise PairError(
                f"drafter {drafter_id} has another tokenizer than target {target_id}: id {token_id} is "
                f"{ascii(theirs[token_id])} in the drafter's and {ascii(ours[token_id])} in the target's"
            )
    probe = "Once upon a time, 3.14 für naïve 日本語 🙂\n\n\tdef f(x):  return x\n"
    if target(probe).input_ids != drafter(probe).input_ids:
        where = f"drafter {drafter_id} has another tokenizer than target {target_id}"
        raise PairError(f"{where}: they split the same text differently")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
