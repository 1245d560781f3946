"""Steps: functions of one typed value of tensors, which run as they are, or as a CUDA graph (graphs.py).

A typed value is a dataclass whose fields are tensors, other such values, or plain Python values. That is all
that is needed to capture a step from one to another: its inputs and outputs are found by walking over the
fields, and nothing is addressed by position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, get_type_hints

import torch
from torch import Tensor

from specdemo.events import Gamma
from specdemo.runtime import cuda
from specdemo.runtime.cuda import for_device, on_host

AUTO_ROWS = (1, 2, 4, 8, 16)  # of a step, where gamma is chosen round by round: each needs a graph


class StepInput(Protocol):
    def on_device(self) -> Self:
        """Sends the host's numbers to the device, as a step reads them. (A graph's input is filled
        from the host.)"""

    def varied(self) -> Self:
        """Makes another valid input of the same shapes, with other numbers, to try a captured step on."""


In = TypeVar("In", bound=StepInput)
Out = TypeVar("Out")


class RunStep(Protocol):
    """Runs a step: as it is, or captured once for each `key` and replayed. captures: whether it may
    capture."""

    captures: bool

    def rows(self, k: int, gamma: Gamma) -> int:
        """Says how many rows a step should have when `k` tokens are drafted of at most `gamma`."""

    def __call__(
        self,
        key: tuple,
        step: Callable[[In], Out],
        value: In,
        expected: Callable[[In, Out], Out] | None = None,
    ) -> tuple[In, Out]:
        """The value that the step has read, which stays as it was until the next step, and the step's output.

        value: its HostNumbers may still be on the host. key: begins with the step's name and its rows; two
        calls with equal keys must do the same to inputs of equal `form_of`. expected: the right output, given
        the input and the output of a graph: logits of the step's own, and everything else computed from the
        graph's logits. For logits may be rounded otherwise, and one unit of rounding can change which token
        is drawn. None: what `step` gives."""


class Placed(NamedTuple):
    """Where a tensor is in a vector of numbers."""

    start: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Packed:
    """A value's tensors in one vector, for one copy to the host. float64 holds ids, flags and probabilities
    exactly."""

    numbers: Tensor  # [n] float64
    layout: dict[str, Placed]  # by the tensors' names, in their order


def pack(**parts: Tensor | None) -> Packed:
    """Packs tensors; those that are None are left out. float64 must hold their numbers exactly: bool, int64
    below 2^53, or any float. Those of a dtype are cast together."""
    by_dtype: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, tensor in parts.items():
        if tensor is not None:
            by_dtype.setdefault(tensor.dtype, {})[name] = tensor
    layout, end = {}, 0
    for dtype, tensors in by_dtype.items():
        for name, tensor in tensors.items():
            layout[name] = Placed(end, tensor.shape, dtype)
            end += tensor.numel()
    joined = [
        torch.cat([tensor.flatten() for tensor in same.values()]).double() for same in by_dtype.values()
    ]
    return Packed(torch.cat(joined), layout)


@cache
def table_of(kind: type) -> dict[str, Any]:
    """Reads the Annotated types of a class: of each, a dtype, and the names of the sizes of a shape."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: getattr(hint, "__metadata__", None) for name, hint in hints}


class OnHost:
    """A packed value on the host: each tensor is an attribute, in plain numbers, as `Tensor.tolist` gives
    them. What the class names and was not packed is []. An attribute is made when it is first asked for,
    because the next step waits for some of them only."""

    def __init__(self, numbers: list[float], layout: dict[str, Placed]):
        self._numbers = numbers
        self._layout = layout

    if not TYPE_CHECKING:  # which knows the attributes by their annotations

        def __getattr__(self, name: str) -> Any:
            place = vars(self).get("_layout", {}).get(name)
            if place is None and name not in table_of(type(self)):
                raise AttributeError(name)
            plain = [] if place is None else self._plain(*place)
            setattr(self, name, plain)
            return plain

    def _plain(self, start: int, shape: torch.Size, dtype: torch.dtype) -> Any:
        flat: Any = self._numbers[start : start + shape.numel()]
        if not dtype.is_floating_point:
            flat = list(map(bool if dtype == torch.bool else int, flat))
        if len(shape) == 2:
            rows, width = shape
            return [flat[row * width : (row + 1) * width] for row in range(rows)]
        return flat if shape else flat[0]


Home = TypeVar("Home", bound=OnHost)


def to_host(packed: Packed, kind: type[Home]) -> Home:
    """Brings the packed value to the host, in one copy, which waits for the device (RuntimeError if it does
    not answer). kind: names the attributes."""
    return kind(on_host(packed.numbers).tolist(), packed.layout)


@dataclass(frozen=True)
class HostNumbers:
    """What a step reads from the host: lists of numbers by name, one after another in one vector, for one
    copy to the device. Each is an attribute, too. float64 holds ids, positions and uniform numbers
    exactly."""

    vector: Tensor  # [n] float64; on the host until `on_device`
    sizes: dict[str, int]  # of the lists, in their order
    device: torch.device  # the step's

    @classmethod
    def of(cls, device: torch.device, **lists: Sequence[float]) -> Self:
        numbers = [number for one in lists.values() for number in one]
        sizes = {name: len(one) for name, one in lists.items()}
        return cls(for_device(numbers, torch.float64, device), sizes, device)

    def on_device(self) -> Self:
        return replace(self, vector=cuda.send(self.vector, self.device))

    @cached_property
    def parts(self) -> dict[str, Tensor]:
        return dict(zip(self.sizes, self.vector.split(tuple(self.sizes.values())), strict=True))

    def with_parts(self, **others: Tensor) -> Self:
        """Replaces some lists by others of their sizes."""
        return replace(self, vector=torch.cat([*(self.parts | others).values()]))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            if name not in vars(self).get("sizes", ()):
                raise AttributeError(name)
            return self.parts[name]


def varied_ids(ids: Tensor) -> Tensor:
    """Gives other ids of the same vocabulary."""
    return torch.where(ids > 0, ids - 1, ids + 1)


def varied_uniforms(u: Tensor) -> Tensor:
    """Gives other numbers in [0, 1)."""
    return (u + 0.5) % 1.0


class EagerSteps:
    """Runs each step as it is, with as many rows as there are drafts."""

    captures = False

    def rows(self, k: int, gamma: Gamma) -> int:
        return k

    def __call__(
        self,
        key: tuple,
        step: Callable[[In], Out],
        value: In,
        expected: Callable[[In, Out], Out] | None = None,
    ) -> tuple[In, Out]:
        value = value.on_device()
        return value, step(value)
