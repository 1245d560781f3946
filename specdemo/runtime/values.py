"""Typed values made of tensors: dataclasses whose fields are tensors, other such values, or plain Python
values.

A step takes one such value and gives another. That is all that is needed to capture it: its inputs and
outputs can be found by walking over the fields, and nothing is addressed by position."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from specdemo.events import Gamma
from specdemo.runtime.cuda import on_host

T = TypeVar("T")


class StepInput(Protocol):
    def varied(self) -> Self:
        """Another valid input of the same shapes, with other numbers: to try a captured step on."""


In = TypeVar("In", bound=StepInput)
Out = TypeVar("Out")


class RunStep(Protocol):
    """Runs a step: as it is, or captured once for each `key` and replayed."""

    def rows(self, k: int, gamma: Gamma) -> int:
        """How many rows a step should have when `k` tokens are drafted of at most `gamma`."""

    def __call__(self, key: tuple, step: Callable[[In], Out], value: In) -> tuple[In, Out]:
        """The value that the step has read, which stays as it was until the next step, and the step's output.

        key: its first entry names the step; two calls with equal keys must do the same to inputs of equal
        shape."""


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in a value, in the order of its fields."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return [tensor for field in fields(value) for tensor in tensors_of(getattr(value, field.name))]
    return []


def with_tensors(value: T, tensors: Iterator[Tensor]) -> T:
    """The same value with other tensors, taken in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value):
        parts = {field.name: with_tensors(getattr(value, field.name), tensors) for field in fields(value)}
        return replace(value, **parts)
    return value


@dataclass(frozen=True)
class Packed:
    """A value's tensors in one vector, for one copy to the host. float64 holds ids, flags and probabilities
    exactly."""

    numbers: Tensor  # [n] float64
    layout: tuple[tuple[torch.Size, torch.dtype], ...]  # of each tensor


def pack(value: object) -> Packed:
    """float64 must hold the tensors' numbers exactly: bool, int64 below 2^53, or any float."""
    tensors = tensors_of(value)
    numbers = torch.cat([tensor.flatten().double() for tensor in tensors])
    return Packed(numbers, tuple((tensor.shape, tensor.dtype) for tensor in tensors))


def to_host(packed: Packed, kind: type[T]) -> T:
    """The packed value on the CPU, in one copy, which waits for the device (RuntimeError if it does not
    answer). `kind`: its class, whose fields are all tensors."""
    tensors = unpacked(Packed(on_host(packed.numbers), packed.layout))
    return kind(**{field.name: tensor for field, tensor in zip(fields(kind), tensors, strict=True)})


def unpacked(packed: Packed) -> list[Tensor]:
    """The tensors that were packed, where the packed ones are."""
    parts = packed.numbers.split([shape.numel() for shape, _ in packed.layout])
    return [part.view(shape).to(dtype) for part, (shape, dtype) in zip(parts, packed.layout, strict=True)]


def varied_ids(ids: Tensor) -> Tensor:
    """Other ids of the same vocabulary."""
    return torch.where(ids > 0, ids - 1, ids + 1)


def varied_uniforms(u: Tensor) -> Tensor:
    """Other numbers in [0, 1)."""
    return (u + 0.5) % 1.0
