"""Loads pairs of models. Apart from training/, no other module loads through transformers or quantises."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO

import torch
from huggingface_hub import constants, get_token, try_to_load_from_cache
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    QuantoConfig,
)

from specdemo.events import Params
from specdemo.loading.assemble import check_same_tokenizer, dtype_name, pair_of
from specdemo.loading.catalog import GATED, QUANTIZE
from specdemo.loading.errors import LoadError, PairError, gated_error, load_errors
from specdemo.loading.pair import Pair
from specdemo.loading.request import ByRole, Part, Request, resolve
from specdemo.runtime.device import memory_of
from specdemo.runtime.lm import can_rewind
from specdemo.runtime.runner import Capture
from specdemo.runtime.skinny_linear import use_skinny_linear

# Without this, transformers asks on the terminal whether to run program code that comes with a model.
NO_CODE = {"trust_remote_code": False}

# Called with what is being done, and the share of it that is finished, from 0 to 1 (None where it is not
# known).
OnProgress = Callable[[str, float | None], None]


def load_pair(
    name: str | None = None,
    *,
    target: str | os.PathLike | PreTrainedModel | None = None,
    drafter: str | os.PathLike | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: ByRole = None,
    dtype: ByRole = None,
    quantize: ByRole = None,
) -> Pair:
    """A pair by its name in the catalogue (the embedded pair if left out), by hub ids or directories, or from
    models in memory, which are not changed.

    device, dtype and quantize: one value for both models or {"target": ..., "drafter": ...}. None chooses the
    device and the dtype (`Pair.dtype_reason` says why) and does not quantise. Raises PairError for a wrong
    request, LoadError when loading failed.
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
        raise PairError("tokenizer must be left out for models that are loaded: it is loaded with them")
    return load(plan(request))


@dataclass(frozen=True)
class Plan:
    """A request, and what follows from the configs of its models."""

    request: Request
    dtypes: tuple[torch.dtype, ...]  # of each part
    sizes: tuple[int, ...]  # of each part's weights in memory, in bytes
    reason: str  # why these dtypes


def plan(request: Request) -> Plan:
    """How a request would be loaded, from the models' configs alone. Raises as `load_pair` does."""
    check_access(request)
    planned = plan_from(request, [read_skeleton(part.role, part.place) for part in request.parts])
    names = [f"{part.role} {part.id}" for part in request.parts]
    for name, part, size in zip(names, request.parts, planned.sizes, strict=True):
        _check_memory(f"{name} needs", size, part.device)
    if len({part.device for part in request.parts}) == 1:
        _check_memory(f"{' and '.join(names)} need", sum(planned.sizes), request.device)
    return planned


def check_access(request: Request) -> None:
    """LoadError, without a request to the hub, if a model is gated, not on this machine, and there is no
    token. A mirror may have other rules, so it is asked."""
    if get_token() or constants.ENDPOINT != constants._HF_DEFAULT_ENDPOINT:
        return
    for part in request.parts:
        if part.place in GATED and not isinstance(try_to_load_from_cache(part.place, "config.json"), str):
            raise gated_error(part.role, part.id)


def _check_memory(models_need: str, size: int, device: str) -> None:
    memory = memory_of(device)
    if size > memory:
        raise LoadError(f"{models_need} about {size / 1e9:.1f} GB, but {device} has {memory / 1e9:.1f} GB")


def plan_from(request: Request, skeletons: list[PreTrainedModel]) -> Plan:
    """The plan for models whose skeletons have been read, whether they fit this machine or not."""
    automatic, reason = automatic_dtype(request.device, sum(model.num_parameters() for model in skeletons))
    dtypes = tuple(part.dtype or automatic for part in request.parts)
    given = [part.role for part in request.parts if part.dtype]
    if len(given) == len(dtypes):
        reason = "as requested"
    elif given:
        reason = f"{given[0]} as requested, the other {reason}"
    sizes = (
        bytes_of(skeleton, dtype, part.quantize)
        for skeleton, dtype, part in zip(skeletons, dtypes, request.parts, strict=True)
    )
    return Plan(request, dtypes, tuple(sizes), reason)


def read_skeleton(role: str, place: str, offline: bool = False) -> PreTrainedModel:
    """A model on the meta device, from its config. offline: only from the disk, without a request to the
    hub."""
    with load_errors(role, place), torch.device("meta"):
        config = AutoConfig.from_pretrained(place, local_files_only=offline, **NO_CODE)
        return AutoModelForCausalLM.from_config(config)


def bytes_of(skeleton: PreTrainedModel, dtype: torch.dtype, quantize: str | None) -> int:
    """Memory that the model's weights will take, in bytes.

    quanto quantises the weights of linear layers, except the head's. It keeps their scales in the dtype: one
    for each row, or below 8 bits a scale and a shift for each group of weights. Each layer also has two
    float32 scales for activations.
    """
    total = dtype.itemsize * skeleton.num_parameters()
    total += sum(buffer.numel() * buffer.itemsize for buffer in skeleton.buffers())
    if quantize is None:
        return total
    bits, head = QUANTIZE[quantize], skeleton.get_output_embeddings()
    for layer in skeleton.modules():
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            weights = layer.weight.numel()
            group = next((size for size in (128, 96, 64) if layer.in_features % size == 0), 32)
            scales = layer.out_features if bits == 8 else 2 * (weights // group)
            total += weights * bits // 8 + (scales - weights) * dtype.itemsize + 2 * 4
    return total


def load(plan: Plan, on_progress: OnProgress = lambda *_: None) -> Pair:
    """Loads a plan's models, checks that they fit each other and can be rewound, and warms them up."""
    parts = plan.request.parts
    on_progress("Reading the tokenizers", None)
    tokenizers = [_tokenizer(part) for part in parts]
    if len(parts) == 2:
        check_same_tokenizer(*tokenizers, *(part.id for part in parts))
    models = [_load(part, dtype, on_progress) for part, dtype in zip(parts, plan.dtypes, strict=True)]
    quantized = [part.quantize for part in parts]
    pair = pair_of(
        plan.request.name, models, [part.id for part in parts], quantized, tokenizers[0], plan.reason
    )
    on_progress("Checking that the caches can be rewound", None)
    for part, model in zip(parts, models, strict=True):
        if not can_rewind(model):
            kind = type(model).__name__
            changed = "its predictions change when its cache is rewound"
            raise PairError(f"{part.role} {part.id} ({kind}) cannot be used: {changed}")
    on_progress("Warming up", None)
    pair.runner.warm_up(Params().gamma)
    return pair


def automatic_dtype(device: str, parameters: int) -> tuple[torch.dtype, str]:
    """The dtype for a pair of that many parameters, and why."""
    if device != "cpu":
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        reason = "the GPU reads half as many bytes as with float32, which decides its speed"
    elif 4 * parameters < memory_of("cpu") / 2:
        dtype, reason = (
            torch.float32,
            "on a CPU, greedy output in float32 equals the target's own to the token",
        )
    else:
        dtype, reason = torch.bfloat16, "float32 would take more than half of this machine's memory"
    return dtype, f"{dtype_name(dtype)}: {reason}"


def _tokenizer(part: Part) -> PreTrainedTokenizerBase:
    with load_errors(part.role, part.place, "tokenizer"):
        return AutoTokenizer.from_pretrained(part.place, **NO_CODE)


def _load(part: Part, dtype: torch.dtype, on_progress: OnProgress) -> PreTrainedModel:
    on_progress(_loading(part), None)
    bar = _download_bar(part, on_progress)
    options = {"dtype": dtype, "output_loading_info": True, "tqdm_class": bar, **NO_CODE}
    if part.quantize:
        options["quantization_config"] = QuantoConfig(weights=part.quantize)
    with load_errors(part.role, part.place, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(part.place, **options)
        model = model.to(part.device)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        lacks = f"lacks {len(missing)} weights, first {missing[0]}"
        raise LoadError(f"{part.role} {part.id} {lacks}: its files are incomplete")
    if part.device == "cpu" and dtype == torch.float32 and not part.quantize:
        use_skinny_linear(model)
    return model


def _download_bar(part: Part, on_progress: OnProgress) -> type[tqdm]:
    """A progress bar for the hub's library that draws nothing and calls `on_progress` instead."""
    furthest = 0

    class Bar(tqdm):
        monitor_interval = 0  # starts no monitor thread

        def __init__(self, *args: object, **options: object):
            super().__init__(*args, **options | {"file": StringIO(), "disable": False})

        def display(self, *_: object, **__: object) -> None:
            nonlocal furthest
            # Other bars count files, or the same bytes once more.
            if self.unit != "B" or not self.total or self.n < furthest:
                return
            furthest = self.n
            if self.n < self.total:
                done = f"{self.n / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
                on_progress(f"Downloading {part.role} {part.id}: {done}", self.n / self.total)
            else:
                on_progress(_loading(part), None)

    return Bar


def _loading(part: Part) -> str:
    return f"Loading the weights of {part.role} {part.id}"


def _pair_in_memory(
    target: PreTrainedModel, drafter: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase | None
) -> Pair:
    models = [target, drafter] if drafter else [target]
    names = [model.name_or_path or type(model).__name__ for model in models]
    # A captured forward would bypass the owner's hooks and patched methods.
    capture: Capture = "off" if target.device.type == "cpu" else "auto"
    return pair_of(" + ".join(names), models, names, [None] * len(models), tokenizer, "as given", capture)
