"""Loads pairs of models: devices, dtypes, quantisation, tokenizers.

The only module that loads through transformers and optimum-quanto.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import StringIO

import torch
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    QuantoConfig,
)

from specdemo.events import ByModel, PairInfo, Params
from specdemo.loading.errors import LoadError, PairError, explained
from specdemo.loading.pair import Pair
from specdemo.loading.request import QUANTIZE, ROLES, ByRole, Part, Request, resolve
from specdemo.runtime.device import cpu_name, memory_of
from specdemo.runtime.lm import can_rewind, context_of, positional_cache
from specdemo.runtime.runner import Capture, Runner
from specdemo.runtime.skinny_linear import use_skinny_linear

NO_CODE = {
    "trust_remote_code": False
}  # left out, transformers asks on the terminal whether to run a model's own program

Report = Callable[
    [str, float | None], None
]  # what is being done, and the share of it that is done where that is known


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer=None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
) -> Pair:
    """A pair by its catalogue name (none: the embedded one), by hub ids or directories, or from models in memory.

    device, dtype and quantize are one value for both models or {"target": ..., "drafter": ...}; None chooses (`Pair.dtype_reason`
    says why). Models in memory are left as they are. Raises PairError, or LoadError where loading itself failed.
    """
    if isinstance(target, PreTrainedModel) and name is None:
        for option, value in (("device", device), ("dtype", dtype), ("quantize", quantize)):
            if value is not None:
                raise PairError(
                    f"{option} must be left out for models given in memory: they are used as they are"
                )
        if drafter is not None and not isinstance(drafter, PreTrainedModel):
            raise PairError(
                f"drafter must be a transformers model like the target, not {type(drafter).__name__}"
            )
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise PairError(f"tokenizer must be a transformers tokenizer, not {type(tokenizer).__name__}")
        return _pair_in_memory(target, drafter, tokenizer)
    request = resolve(name, target=target, drafter=drafter, device=device, dtype=dtype, quantize=quantize)
    if tokenizer is not None:
        raise PairError("tokenizer must be left out for models that are loaded: theirs is loaded with them")
    return load(plan(request))


@dataclass(frozen=True)
class Plan:
    """A request with what its models' configs add to it."""

    request: Request
    dtypes: tuple[torch.dtype, ...]  # of each of its parts
    bytes: tuple[int, ...]  # that each will take
    reason: str  # for the dtypes


def plan(request: Request) -> Plan:
    """How a request would be loaded; raises as `load_pair` does. No weights are read."""
    wanted = weigh(request, [read_skeleton(part.role, part.place) for part in request.parts])
    for part, bytes in zip(request.parts, wanted.bytes, strict=True):
        _check_memory(f"{part.role} {part.id} needs", bytes, part.device)
    if len({part.device for part in request.parts}) == 1:
        _check_memory(
            " and ".join(f"{part.role} {part.id}" for part in request.parts) + " need",
            sum(wanted.bytes),
            request.device,
        )
    return wanted


def _check_memory(who_needs: str, bytes: int, device: str) -> None:
    if bytes > (there := memory_of(device)):
        raise LoadError(f"{who_needs} about {bytes / 1e9:.1f} GB, but {device} has {there / 1e9:.1f} GB")


def weigh(request: Request, skeletons: list[PreTrainedModel]) -> Plan:
    """The same from configs that have been read, whether it fits this machine or not."""
    automatic, reason = automatic_dtype(request.device, sum(model.num_parameters() for model in skeletons))
    dtypes = tuple(part.dtype or automatic for part in request.parts)
    sizes = zip(skeletons, dtypes, (part.quantize for part in request.parts), strict=True)
    asked = [part.role for part in request.parts if part.dtype]
    reason = (
        "as asked"
        if len(asked) == len(dtypes)
        else reason
        if not asked
        else f"{asked[0]} as asked, the other {reason}"
    )
    return Plan(request, dtypes, tuple(bytes_of(*size) for size in sizes), reason)


def read_skeleton(role: str, place: str, only_here: bool = False) -> PreTrainedModel:
    """A model without numbers in it, from its config alone. only_here: the hub is not asked for that."""
    with explained(role, place), torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(place, local_files_only=only_here, **NO_CODE)
        )


def bytes_of(skeleton: PreTrainedModel, dtype: torch.dtype, quantize: str | None) -> int:
    """What the model will take. quanto makes integers of linear layers' weights, all but the head's, and keeps their scales in the dtype:
    one for each row, or below 8 bits a scale and a shift for each group of weights; and two single numbers a layer, for activations."""
    total = dtype.itemsize * skeleton.num_parameters() + sum(
        buffer.numel() * buffer.itemsize for buffer in skeleton.buffers()
    )
    for layer in skeleton.modules():
        if quantize and isinstance(layer, torch.nn.Linear) and layer is not skeleton.get_output_embeddings():
            group = next((size for size in (128, 96, 64) if layer.in_features % size == 0), 32)
            scales = layer.out_features if QUANTIZE[quantize] == 8 else 2 * (layer.weight.numel() // group)
            total += (
                layer.weight.numel() * QUANTIZE[quantize] // 8
                + (scales - layer.weight.numel()) * dtype.itemsize
                + 2 * 4
            )
    return total


def load(plan: Plan, report: Report = lambda *_: None) -> Pair:
    """Loads a plan's models, makes sure that they fit each other and can be rewound, and times a step of each."""
    parts = plan.request.parts
    report("Reading the tokenizers", None)
    tokenizers = [_tokenizer(part) for part in parts]
    if len(parts) == 2:
        check_same_tokenizer(*tokenizers, *(part.id for part in parts))
    models = [_load(part, dtype, report) for part, dtype in zip(parts, plan.dtypes, strict=True)]
    quantized = [part.quantize for part in parts]
    pair = _pair(
        plan.request.name, models, [part.id for part in parts], quantized, tokenizers[0], plan.reason
    )
    report("Trying whether the caches can be rewound", None)
    for part, model in zip(parts, models, strict=True):
        if not can_rewind(model):
            kind = type(model).__name__
            raise PairError(
                f"{part.role} {part.id} ({kind}) cannot be used: after a rewind of its cache it predicts something else"
            )
    report("Timing a step of each model", None)
    times = pair.runner.time_steps(Params().gamma)
    return replace(pair, target_step_ms=times.target_ms, drafter_step_ms=times.drafter_ms)


def automatic_dtype(device: str, parameters: int) -> tuple[torch.dtype, str]:
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


def _tokenizer(part: Part) -> PreTrainedTokenizerBase:
    with explained(part.role, part.place, "tokenizer"):
        return AutoTokenizer.from_pretrained(part.place, **NO_CODE)


def _load(part: Part, dtype: torch.dtype, report: Report) -> PreTrainedModel:
    report(_loading(part), None)
    options = {"dtype": dtype, "output_loading_info": True, "tqdm_class": _downloads(part, report), **NO_CODE}
    if part.quantize:
        options["quantization_config"] = QuantoConfig(weights=part.quantize)
    with explained(part.role, part.place, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(part.place, **options)
        model = model.to(part.device)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise LoadError(
            f"{part.role} {part.id} lacks {len(missing)} weights, {missing[0]} the first: its files are not whole"
        )
    if part.device == "cpu" and dtype == torch.float32 and not part.quantize:
        use_skinny_linear(model)
    return model


def _downloads(part: Part, report: Report) -> type[tqdm]:
    """The progress bar that the hub's library moves while it downloads: it draws nothing, and reports instead."""
    furthest = 0

    class Bar(tqdm):
        monitor_interval = 0  # no thread that watches over it

        def __init__(self, *args, **options):
            super().__init__(*args, **options | {"file": StringIO(), "disable": False})

        def display(self, *_, **__):
            nonlocal furthest
            if (
                self.unit != "B" or not self.total or self.n < furthest
            ):  # it counts files, or is another one of the same bytes
                return
            furthest = self.n
            if self.n < self.total:
                done, total = (f"{bytes / 1e6:,.1f}" for bytes in (self.n, self.total))
                report(f"Downloading {part.role} {part.id}: {done} of {total} MB", self.n / self.total)
            else:
                report(_loading(part), None)

    return Bar


def _loading(part: Part) -> str:
    return f"Loading the weights of {part.role} {part.id}"


def _pair_in_memory(target: PreTrainedModel, drafter: PreTrainedModel | None, tokenizer) -> Pair:
    models = [target, drafter] if drafter else [target]
    names = [model.name_or_path or type(model).__name__ for model in models]
    # A CPU trace would bypass what the models' owner may have put into them: hooks, patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    return _pair(" + ".join(names), models, names, [None] * len(models), tokenizer, "as given", capture)


def _pair(name, models, ids, quantized, tokenizer, reason, capture: Capture = "auto") -> Pair:
    for role, model, id in zip(ROLES, models, ids, strict=False):
        try:
            positional_cache(model)
        except ValueError as error:
            raise PairError(f"{role} {id} ({type(model).__name__}) cannot be used: {error}") from None
    device = models[0].get_input_embeddings().weight.device
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    dtypes = [_name(model.dtype) for model in models]
    info = PairInfo(
        name, *_both(ids), str(device), device_name, ByModel(*_both(dtypes)), ByModel(*_both(quantized))
    )
    target, drafter = _both(models)
    limits = _ignored_processors(target)
    if drafter is not None and (context := context_of(drafter)) < context_of(target):
        limits.append(f"the drafter's context is {context:,.0f} tokens: beyond that nothing is drafted")
    return Pair(target, drafter, tokenizer, info, reason, tuple(limits), Runner(target, drafter, capture))


def _both(things: list) -> tuple:
    """The target's, and the drafter's or None."""
    return things[0], things[1] if len(things) == 2 else None


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
    return (
        [f"not applied, though the target's generation config asks for it: {', '.join(asked)}"]
        if asked
        else []
    )


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
        raise PairError(
            f"drafter {drafter_id} has another tokenizer than target {target_id}: they split the same text differently"
        )
