"""Makes a pair of loaded models, also of those that the caller has in memory: what they must have in common,
and what a user should know of them."""

from dataclasses import replace

import torch
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdemo.errors import LoadError, PairError, is_out_of_memory, reason_of
from specdemo.events import ByModel, PairInfo
from specdemo.loading.mtp import NONE, UNUSABLE, read_mtp
from specdemo.loading.pair import LoadDrafter, Pair, kind_of, longest_draft_of
from specdemo.loading.request import ROLES
from specdemo.loading.vocabulary import OtherTokenizer, check_shared, other_tokenizer
from specdemo.runtime import cuda
from specdemo.runtime.assistant import ASSISTANTS, is_assistant, shared_layers
from specdemo.runtime.eagle3 import Eagle3Config
from specdemo.runtime.graphs import stored
from specdemo.runtime.heads import DrafterModel, DraftHead, HeadConfig
from specdemo.runtime.lm import embedded_ids, layers_of, logits_width, positional_cache
from specdemo.runtime.mtp import follow_target, own_modules
from specdemo.runtime.probe import (
    agrees_with_itself,
    assistant_agrees,
    head_agrees_with_itself,
    mtp_agrees_with_itself,
)
from specdemo.runtime.runner import Capture, Runner

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def pair_of(
    name: str,
    models: list[DrafterModel],
    ids: list[str],
    quantized: list[str | None],
    tokenizer: PreTrainedTokenizerBase | None,
    reason: str,
    load_drafter: LoadDrafter,
    capture: Capture = "auto",
    cudnn_attention: bool = False,
    other: OtherTokenizer | None = None,
    mtp: PreTrainedModel | str = NONE,
) -> Pair:
    """The models' pair, which has been tried. models: the target, and the drafter if there is one. other: the
    drafter's tokenizer, if it is not the target's. mtp: see Pair."""
    target, drafter = _both(models)
    formats = ByModel(None, None), ByModel(*_both(quantized))
    ways = kind_of(drafter), longest_draft_of(drafter)
    info = PairInfo(name, *_both(ids), "", "", *formats, None, *ways)
    runner = Runner(target, drafter, capture, cudnn_attention)
    how = (tokenizer, info, reason, runner, load_drafter)
    pair = Pair(target, drafter, *how, other_tokenizer=other, mtp=mtp)
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
    if isinstance(drafter, DraftHead):
        check_head_fits(drafter, target, ids, [model.device for model in models])
    states, other, mtp = pair.present_states, pair.other_tokenizer, pair.mtp
    if other is not None and pair.states:  # tokens can have been added, and what was unknown can be known now
        other = other_tokenizer(pair.tokenizer, other.tokenizer, *ids)
    other = with_known_ids(other, models, ids)
    with pair.runner.torch_settings():
        check_forwards(models, ids)
        if not isinstance(mtp, str):
            follow_target(mtp, target)
        mtp = _tried_mtp(mtp, target)
    pair.note(states, other, mtp)


def check_devices(models: list[DrafterModel], ids: list[str]) -> None:
    """PairError if a model is where nothing runs."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        if (kind := model.device.type) not in ("cpu", "cuda"):
            raise PairError(f"device must be cpu or cuda, and {role} {model_id} is on {kind}")


def check_caches(models: list[DrafterModel], ids: list[str]) -> None:
    """PairError if a model has no output layer, or no cache that can be written by position, or if the hidden
    states that a head needs cannot be found in the target."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if is_assistant(model):
                if model is models[0]:
                    raise ValueError("it is an assistant, which drafts for a target: give it as the drafter")
                check_assistant_fit(model, models[0], model_id, ids[0])
                layers_of(models[0])
            elif isinstance(model, DraftHead):
                role, model_id, model = ROLES[0], ids[0], models[0]
                layers_of(models[0])
            else:
                _check_head(model, role)
                positional_cache(model)
        except ValueError as error:
            raise PairError(f"{role} {model_id} ({type(model).__name__}) cannot be used: {error}") from None


def _check_head(model: PreTrainedModel, role: str) -> None:
    """ValueError for a model in memory that is of another class than those that write text."""
    if model.get_output_embeddings() is None:
        raise ValueError("it has no output layer over a vocabulary: load it with AutoModelForCausalLM")
    if role == ROLES[0] and not hasattr(model, "generation_config"):
        raise ValueError("it has no generation_config, which classes have that inherit GenerationMixin")


def check_forwards(models: list[DrafterModel], ids: list[str]) -> None:
    """PairError if a model's forward fails, or predicts something else with a cache than without one;
    LoadError if it has weights that are not finite."""
    for role, model, model_id in zip(ROLES, models, ids, strict=False):
        try:
            if name := _not_finite(model):
                raise LoadError(f"{role} {model_id}: its tensor {name} holds values that are not finite")
            if _agrees(model, models[0]):
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


def _tried_mtp(mtp: PreTrainedModel | str, target: PreTrainedModel) -> PreTrainedModel | str:
    """The layers, or why they cannot be used. The pair can do without them."""
    if isinstance(mtp, str):
        return mtp
    try:
        if name := next(filter(None, map(_not_finite, own_modules(mtp))), None):
            reason = f"the tensor {name} holds values that are not finite"
        elif mtp_agrees_with_itself(mtp, target):
            return mtp
        else:
            reason = "what they predict with a cache differs from what they predict without one"
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if cuda.is_cuda(target.device) and isinstance(error, RuntimeError):
            cuda.raise_if_lost(error, target.device)
        reason = f"their forward fails: {reason_of(error)}"
    return f"{UNUSABLE}: {reason}"


def _agrees(model: DrafterModel, target: PreTrainedModel) -> bool:
    if isinstance(model, DraftHead):
        return head_agrees_with_itself(model, target)
    if is_assistant(model):
        return assistant_agrees(model, target)
    return agrees_with_itself(model)


def _not_finite(model: Module) -> str | None:
    """The first of its weights with NaN or infinity. Of quantised ones the scales are looked at."""
    for name, weight in model.named_parameters():
        for values in stored(weight):
            is_float = values.numel() and values.dtype in FLOATS
            if is_float and not torch.stack(values.aminmax()).isfinite().all():
                return name
    return None


def _both(things: list) -> tuple:
    """The target's, and the drafter's or None."""
    return things[0], things[1] if len(things) == 2 else None


def with_known_ids(other: OtherTokenizer | None, models: list, ids: list[str]) -> OtherTokenizer | None:
    """Without ids that a tokenizer has and its model has not. models: target and drafter. PairError if no
    token in common is left."""
    if other is None:
        return None
    target, drafter = models
    widths = logits_width(target), min(logits_width(drafter), embedded_ids(drafter))
    shared = ((ours, theirs) for ours, theirs in other.shared if ours < widths[0] and theirs < widths[1])
    known = replace(other, shared=tuple(shared))
    check_shared(known, *ids)
    return known


TRUSTED = "program code that comes with the models is trusted and run (trust_remote_code)"
DYNAMIC = "transformers_modules"  # where transformers puts program code that comes with models


def code_note(models: list[DrafterModel]) -> str:
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
    cudnn_attention: bool,
    load_drafter: LoadDrafter,
) -> Pair:
    """See `load_pair`. load_drafter: for the pair's `attach` and `detach`."""
    models = [target, drafter] if drafter else [target]
    names = [model.name_or_path or type(model).__name__ for model in models]
    check_devices(models, names)
    # A captured forward would bypass the owner's hooks and patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    ours, theirs = _tokenizers(tokenizer)
    are_two = drafter and ours and theirs and theirs is not ours
    other = other_tokenizer(ours, theirs, *names) if are_two else None
    how = (ours, "as given", load_drafter, capture, cudnn_attention, other, read_mtp(target))
    return pair_of(" + ".join(names), models, names, [None] * len(models), *how)


def _tokenizers(
    given: PreTrainedTokenizerBase | dict[str, PreTrainedTokenizerBase] | None,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """The target's and the drafter's, of those given with models in memory."""
    by_role = given if isinstance(given, dict) else dict.fromkeys(ROLES, given)
    if given is not None and set(by_role) != set(ROLES):
        raise PairError(
            f"tokenizer must be one tokenizer or have the keys target and drafter, not {ascii(given)[:60]}"
        )
    for tokenizer in by_role.values():
        if given is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
    return by_role["target"], by_role["drafter"]


def check_fit(config: HeadConfig, target: PreTrainedModel, drafter_id: str, target_id: str) -> None:
    """PairError unless a head of this config can draft for the target."""
    of_target = target.config.get_text_config()
    depth, ids = of_target.num_hidden_layers, config.layer_ids_for(of_target.num_hidden_layers)
    where = f"drafter {drafter_id} does not fit target {target_id}"
    if config.feature_size != of_target.hidden_size:
        raise PairError(
            f"{where}: it reads hidden states of size {config.feature_size}, and the target's have "
            f"{of_target.hidden_size}"
        )
    if config.layer.vocab_size != logits_width(target):
        raise PairError(
            f"{where}: it was made for a vocabulary of {config.layer.vocab_size:,} tokens, and the target's "
            f"has {logits_width(target):,}"
        )
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) > depth:
        raise PairError(
            f"{where}: it reads the inputs of layers {', '.join(map(str, ids))}, which must be different and "
            f"from 0 to {depth}, the target's number of layers"
        )
    own_embeddings = isinstance(config, Eagle3Config) and config.own_embeddings
    if not own_embeddings and config.hidden_size != of_target.hidden_size:
        raise PairError(
            f"{where}: it has no embeddings of its own and a hidden size of {config.hidden_size}, so the "
            f"target's embeddings of size {of_target.hidden_size} cannot be used"
        )


def check_assistant_fit(
    drafter: PreTrainedModel, target: PreTrainedModel, drafter_id: str, target_id: str
) -> None:
    """PairError unless this assistant can draft for the target."""
    own, of_target = drafter.config.get_text_config(), target.config.get_text_config()
    where = f"drafter {drafter_id} does not fit target {target_id}"
    wanted = ASSISTANTS[drafter.config.model_type]
    if of_target.model_type != wanted:
        kinds = f"{drafter.config.model_type} drafts for targets of the kind {wanted}"
        raise PairError(f"{where}: {kinds}, and this one is of the kind {of_target.model_type}")
    sizes = [
        ("hidden states of size", drafter.config.backbone_hidden_size, of_target.hidden_size),
        ("a vocabulary of", logits_width(drafter), logits_width(target)),
    ]
    layers = shared_layers(target)
    for index, kind in enumerate(own.layer_types):
        if kind not in layers:
            raise PairError(f"{where}: it attends to layers of the type {kind}, which the target lacks")
        mine, theirs = own.per_layer_config[index], of_target.per_layer_config[layers[kind]]
        heads, width = mine.num_key_value_heads, mine.head_dim
        sizes.append((f"{kind} with key heads:", heads, theirs.num_key_value_heads))
        sizes.append((f"{kind} with keys of size", width, theirs.head_dim))
    for what, asked, found in sizes:
        if asked != found:
            raise PairError(f"{where}: it was made for {what} {asked:,}, and the target has {found:,}")


def check_head_fits(
    drafter: DrafterModel, target: PreTrainedModel, ids: list[str], devices: list[str | torch.device]
) -> None:
    """PairError unless a drafter that is a head or an assistant fits the target. ids, devices: of the target
    and of the drafter."""
    if is_assistant(drafter):
        check_assistant_fit(drafter, target, ids[1], ids[0])
        if devices[0] != devices[1]:
            why = f"drafter {ids[1]} attends to the target's keys and values"
            raise PairError(f"device must be the same for both, because {why}")
    if not isinstance(drafter, DraftHead):
        return
    check_fit(drafter.config, target, ids[1], ids[0])
    if drafter.uses_target_s_embeddings and devices[0] != devices[1]:
        raise PairError(
            f"device must be the same for both, because drafter {ids[1]} has no embeddings of its own "
            "and uses the target's"
        )
