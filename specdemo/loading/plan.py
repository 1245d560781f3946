"""How a request would be loaded: which dtypes, how much memory, and whether that much is free.

Nothing is read here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import Module

from specdemo.drafters.table import HEAD, kind_of
from specdemo.errors import LoadError, PairError
from specdemo.loading.catalog import QUANTIZE
from specdemo.loading.checkpoints import quantized_layers
from specdemo.loading.request import PairRequest, Part, dtype_name
from specdemo.runtime.device import amount, free_memory, has_bfloat16, memory_of, quantized_kinds
from specdemo.words.message import Message, about, message


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


def check_quantize(part: Part, dtype: torch.dtype, skeleton: Module) -> None:
    """PairError if the model, or its skeleton, cannot be quantised as the part asks."""
    if part.quantize is None:
        return
    asked = {"model": part.named, "given": part.quantize}
    if kind_of(skeleton) is HEAD:
        raise PairError(about("quantize", "head_unquantised", **asked))
    layers = quantized_layers(skeleton)
    if not layers:
        raise PairError(about("quantize", "nothing_to_quantise", **asked))
    if part.device == "cpu":
        return
    kinds = quantized_kinds(part.device, dtype, layers)
    if part.quantize not in kinds:
        asked |= {"names": ", ".join(["none", *kinds]), "device": part.device, "dtype": dtype_name(dtype)}
        raise PairError(about("quantize", "needs_kernels", **asked))


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
