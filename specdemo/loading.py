"""Loads pairs of models: devices, dtypes, quantisation, tokenizers.

The only module that loads through transformers and optimum-quanto.
"""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import median
from time import perf_counter

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, QuantoConfig

from specdemo.events import ByModel, PairInfo
from specdemo.explain import explained
from specdemo.few_rows import favour_few_rows
from specdemo.lm import CachedLM, rewindable_cache, rewinds
from specdemo.machine import cpu_name, memory_of
from specdemo.pair import LoadError, Pair, PairError, context_of
from specdemo.pairs import CATALOGUE

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZE = {"int8": 1.0, "int4": 0.5, "int2": 0.25, "float8": 1.0}  # bytes per weight of a linear layer
ROLES = ("target", "drafter")
NO_CODE = {"trust_remote_code": False}  # left out, transformers asks on the terminal whether to run a model's own program

Choice = str | dict[str, str | None] | None


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer=None,
    device: Choice = None,
    dtype: Choice = None,
    quantize: Choice = None,
) -> Pair:
    """A pair by its catalogue name (none: the embedded one), by hub ids or directories, or from models in memory.

    device, dtype and quantize are one value for both models or {"target": ..., "drafter": ...}; None chooses (`Pair.dtype_reason`
    says why). Models in memory are left as they are. Raises PairError, or LoadError where loading itself failed.
    """
    if name is not None and (target is not None or drafter is not None):
        raise PairError("pair: give a name or a target and drafter, not both")
    if isinstance(target, PreTrainedModel):
        for option, value in (("device", device), ("dtype", dtype), ("quantize", quantize)):
            if value is not None:
                raise PairError(f"{option} must be left out for models given in memory: they are used as they are")
        if drafter is not None and not isinstance(drafter, PreTrainedModel):
            raise PairError(f"drafter must be a transformers model like the target, not {type(drafter).__name__}")
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
        return _pair_in_memory(target, drafter, tokenizer)
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: theirs is loaded with them")
    return load(plan(name, target=target, drafter=drafter, device=device, dtype=dtype, quantize=quantize))


@dataclass(frozen=True)
class Part:
    """One model of a plan: where it comes from and how it will be held."""

    role: str
    id: str
    device: str
    dtype: torch.dtype
    quantize: str | None
    bytes: int  # about what it will take


@dataclass(frozen=True)
class Plan:
    """A request that has been checked as far as that goes without loading weights."""

    name: str
    target: Part
    drafter: Part | None
    reason: str  # for the dtype

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.target, self.drafter) if self.drafter else (self.target,)


def plan(name=None, *, target=None, drafter=None, device: Choice = None, dtype: Choice = None, quantize: Choice = None) -> Plan:
    """What `load_pair` would load; raises as it does."""
    name, *places = resolve(name, target, drafter)
    ids = {role: id for role, id in zip(ROLES, places, strict=True) if id is not None}
    devices = {role: _device(_of(device, role, "device")) for role in ROLES}
    quantized = {role: _quantize(_of(quantize, role, "quantize")) for role in ROLES}
    dtypes = {role: _dtype(_of(dtype, role, "dtype")) for role in ROLES}
    parameters = {role: _parameters(role, id) for role, id in ids.items()}
    automatic, reason = _automatic_dtype(devices["target"], sum(parameters.values()))
    parts = []
    for role, id in ids.items():
        kind = dtypes[role] or automatic
        needed = int(parameters[role] * (QUANTIZE[quantized[role]] if quantized[role] else kind.itemsize))
        if needed > (there := memory_of(devices[role])):
            raise LoadError(f"{role} {id} needs about {needed / 1e9:.1f} GB, but {devices[role]} has {there / 1e9:.1f} GB")
        parts.append(Part(role, id, devices[role], kind, quantized[role], needed))
    asked = [role for role in ids if dtypes[role]]
    reason = "as asked" if len(asked) == len(ids) else reason if not asked else f"{asked[0]} as asked, the other {reason}"
    return Plan(name, parts[0], parts[1] if len(parts) > 1 else None, reason)


def load(plan: Plan) -> Pair:
    """Loads a plan's models, makes sure that they fit each other and can be rewound, and times a step of each."""
    tokenizers = [_tokenizer(part.role, part.id) for part in plan.parts]
    if plan.drafter:
        check_same_tokenizer(*tokenizers, plan.target.id, plan.drafter.id)
    models = {part.role: _load(part) for part in plan.parts}
    drafter_id = plan.drafter.id if plan.drafter else None
    quantized = {part.role: part.quantize for part in plan.parts}
    pair = _pair(plan.name, models["target"], models.get("drafter"), tokenizers[0], plan.target.id, drafter_id, quantized, plan.reason)
    for part in plan.parts:
        model = models[part.role]
        if not rewinds(model):
            kind = type(model).__name__
            raise PairError(f"{part.role} {part.id} ({kind}) cannot be used: after a rewind of its cache it predicts something else")
    with pair.threads():
        _measure_steps(pair)
    return pair


def resolve(name: str | None, target, drafter) -> tuple[str, str, str | None]:
    """(name, target, drafter) of a request; PairError when it names nothing."""
    if target is None and drafter is not None:
        raise PairError("target must be given with a drafter")
    if target is not None:
        target, drafter = _place("target", target), None if drafter is None else _place("drafter", drafter)
        return (f"{target} + {drafter}" if drafter else target), target, drafter
    name = "embedded" if name is None else name
    if not isinstance(name, str) or name not in CATALOGUE:
        near = get_close_matches(str(name), CATALOGUE, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise PairError(f"pair must be one of {', '.join(CATALOGUE)}, not {ascii(name)}{hint}")
    return name, CATALOGUE[name].target, CATALOGUE[name].drafter


def _place(role: str, place: str | os.PathLike) -> str:
    if not isinstance(place, (str, os.PathLike)):
        raise PairError(f"{role} must be a hub id or a directory like the other, or both models in memory, not {type(place).__name__}")
    return os.path.expanduser(os.fspath(place))


def _of(choice: Choice, role: str, field: str) -> str | None:
    if isinstance(choice, dict):
        if unknown := set(choice) - set(ROLES):
            raise PairError(f"{field} must have the keys target and drafter, not {ascii(unknown.pop())}")
        return choice.get(role)
    return choice


def _device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise PairError(f"device must be cpu, cuda or cuda:N, not {ascii(device)}")
    if device != "cpu" and int(device[5:] or 0) >= torch.cuda.device_count():
        raise PairError(f"device {device} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _quantize(quantize: str | None) -> str | None:
    if quantize in (None, "none"):
        return None
    if not isinstance(quantize, str) or quantize not in QUANTIZE:
        raise PairError(f"quantize must be one of none, {', '.join(QUANTIZE)}, not {ascii(quantize)}")
    return quantize


def _dtype(dtype: str | None) -> torch.dtype | None:
    if dtype not in (None, "auto", *DTYPES):
        raise PairError(f"dtype must be one of auto, {', '.join(DTYPES)}, not {ascii(dtype)}")
    return DTYPES.get(dtype)


def _automatic_dtype(device: str, parameters: int) -> tuple[torch.dtype, str]:
    """The dtype for a pair of so many parameters, and why."""
    if device != "cpu":
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        reason = "a GPU reads half the bytes that float32 would take, which is what decides its speed"
    elif 4 * parameters < memory_of("cpu") / 2:
        dtype = torch.float32
        reason = "on a CPU float32 makes one verifying forward round like single steps, so greedy output is the target's to the token"
    else:
        dtype, reason = torch.bfloat16, "float32 would take more than half of this machine's memory"
    return dtype, f"{_name(dtype)}: {reason}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _parameters(role: str, id: str) -> int:
    """How many parameters a model has, from its config alone."""
    with explained(role, id), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(id, **NO_CODE))
    return model.num_parameters()


def _tokenizer(role: str, id: str):
    with explained(role, id, "tokenizer"):
        return AutoTokenizer.from_pretrained(id, **NO_CODE)


def _load(part: Part) -> PreTrainedModel:
    quantization = {"quantization_config": QuantoConfig(weights=part.quantize)} if part.quantize else {}
    with explained(part.role, part.id, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(part.id, dtype=part.dtype, output_loading_info=True, **quantization, **NO_CODE)
        model = model.to(part.device)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise LoadError(f"{part.role} {part.id} lacks {len(missing)} weights, {missing[0]} the first: its files are not whole")
    if part.device == "cpu" and part.dtype == torch.float32 and not part.quantize:
        favour_few_rows(model)
    return model


def _pair_in_memory(target: PreTrainedModel, drafter: PreTrainedModel | None, tokenizer) -> Pair:
    names = {role: model.name_or_path or type(model).__name__ for role, model in (("target", target), ("drafter", drafter)) if model}
    name = " + ".join(names.values())
    return _pair(name, target, drafter, tokenizer, names["target"], names.get("drafter"), {}, "as given")


def _pair(name, target, drafter, tokenizer, target_id, drafter_id, quantized, reason) -> Pair:
    for role, model, id in (("target", target, target_id), ("drafter", drafter, drafter_id)):
        if model is not None:
            try:
                rewindable_cache(model)
            except ValueError as error:
                raise PairError(f"{role} {id} ({type(model).__name__}) cannot be used: {error}") from None
    device = target.get_input_embeddings().weight.device
    info = PairInfo(
        name=name,
        target=target_id,
        drafter=drafter_id,
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=ByModel(_name(target.dtype), _name(drafter.dtype) if drafter else None),
        quantize=ByModel(quantized.get("target"), quantized.get("drafter") if drafter else None),
    )
    pair = Pair(target, drafter, tokenizer, info, reason, notes=_ignored_processors(target))
    if drafter is not None and pair.drafter_context < pair.context:
        pair.notes.append(f"the drafter's context is {pair.drafter_context:,.0f} tokens: beyond that nothing is drafted")
    return pair


# What a generation config can ask for that changes the target's distribution, with the value that asks for nothing.
PROCESSORS = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None,
    "min_length": 0, "min_new_tokens": None, "suppress_tokens": None, "begin_suppress_tokens": None, "sequence_bias": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": None,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip


def _ignored_processors(target: PreTrainedModel) -> list[str]:
    config = target.generation_config
    asked = [name for name, off in PROCESSORS.items() if getattr(config, name, None) not in (None, off)]
    return [f"not applied, though the target's generation config asks for it: {', '.join(asked)}"] if asked else []


def check_same_tokenizer(target, drafter, target_id: str, drafter_id: str) -> None:
    """PairError unless the two tokenizers mean the same by every id that both have, and split text alike."""
    words = {id: word for word, id in target.get_vocab().items()}
    others = {id: word for word, id in drafter.get_vocab().items()}
    for id in sorted(words.keys() & others.keys()):
        if words[id] != others[id]:
            raise PairError(
                f"drafter {drafter_id} has another tokenizer than target {target_id}: "
                f"id {id} is {ascii(others[id])} there and {ascii(words[id])} here"
            )
    probe = "Once upon a time, 3.14 für naïve 日本語 🙂\n\n\tdef f(x):  return x\n"
    if target(probe).input_ids != drafter(probe).input_ids:
        raise PairError(f"drafter {drafter_id} has another tokenizer than target {target_id}: they split the same text differently")


@torch.no_grad()
def _measure_steps(pair: Pair) -> None:
    """Times one-token forwards of both models (which warms them up, too): the cost ratio c of the theory."""
    for role in ROLES:
        model = getattr(pair, role)
        if model is None:
            continue
        lm = CachedLM(model)
        lm.forward(torch.zeros(min(32, int(min(context_of(model), 33)) - 1), dtype=torch.long))
        length, times = lm.length, []
        while len(times) < 3 or (len(times) < 15 and sum(times) < 300):
            start = perf_counter()
            lm.forward(torch.zeros(1, dtype=torch.long)).flatten()[0].item()  # waits for the device
            times.append(1000 * (perf_counter() - start))
            lm.rewind(length)
        setattr(pair, f"{role}_step_ms", median(times[1:]))
