"""Steps: functions of one typed value of tensors. A step runs as it is, or as a CUDA graph: captured once and
replayed, so that its thousands of launches cost the host one call. And whether a model's forward can be
captured at all: whether a static forward predicts what a plain one does, without looking at its own numbers
on the way.

A typed value is a dataclass whose fields are tensors, other such values, or plain Python values. That is all
that is needed to capture a step from one to another: its inputs and outputs are found by walking over the
fields, and nothing is addressed by position."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdemo.errors import one_line
from specdemo.events import Gamma
from specdemo.runtime import cuda
from specdemo.runtime.cache import Cached
from specdemo.runtime.cuda import on_host
from specdemo.runtime.device import Clock, for_device
from specdemo.runtime.lm import CachedLM, context_of, logits_tolerance, windows_of
from specdemo.words.message import Message, message

# What CUDA says when a capture was ended by another thread's call, or by a call of its own that it forbids.
CAPTURE_INTERRUPTED = (
    "operation not permitted when stream is capturing",
    "operation failed due to a previous error during capture",
)
AUTO_ROWS = (1, 2, 4, 8, 16)  # of a step, where gamma is chosen round by round: each needs a graph
OTHERWISE = "its graph says something other than the step itself ({})"
LOOKS = "its forward reads tensor values on the host ({})"
PASSING = (*CAPTURE_INTERRUPTED, "out of memory")  # another time, the same capture may succeed
CAPTURES_TRIED = 2  # of a step whose graph says something else
# How far a graph's numbers may be from the step's. EXACT: where both are computed from the same logits.
# ROUNDED: a head's own measure of its confidence, where a model computes in 16 bits.
EXACT, ROUNDED = 1e-6, 2e-2
# How far logits may be apart, in units of rounding of the largest. A graph runs the step's kernels on the
# step's shapes, so no more than the order of sums can differ. In 16 bits a sum is rounded at its end only.
UNITS_IN_16_BITS, UNITS_IN_MORE = 4, 100
_T = TypeVar("T")


class StepInput(Protocol):
    def on_device(self) -> Self:
        """The same with the host's numbers on the device: what a step reads. (A graph's input is filled from
        the host.)"""

    def varied(self) -> Self:
        """Another valid input of the same shapes, with other numbers: to try a captured step on."""


In = TypeVar("In", bound=StepInput)
Out = TypeVar("Out")


class RunStep(Protocol):
    """Runs a step: as it is, or captured once for each `key` and replayed. captures: whether it may do the
    latter."""

    captures: bool

    def rows(self, k: int, gamma: Gamma) -> int:
        """How many rows a step should have when `k` tokens are drafted of at most `gamma`."""

    def __call__(
        self,
        key: tuple,
        step: Callable[[In], Out],
        value: In,
        expected: Callable[[In, Out], Out] | None = None,
    ) -> tuple[In, Out]:
        """The value that the step has read, which stays as it was until the next step, and the step's output.

        value: its HostNumbers may still be on the host. key: begins with the step's name and its rows; two
        calls with equal keys must do the same to inputs of equal shape. expected: what the step should have
        said, given its input and what a graph of it has said: logits of its own, and everything else computed
        from the graph's logits. For logits may be rounded otherwise, and one unit of rounding can change
        which token is drawn. None: `step` tells it."""


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in a value, in the order of its fields."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return [tensor for field in fields(value) for tensor in tensors_of(getattr(value, field.name))]
    return []


def with_tensors(value: _T, tensors: Iterator[Tensor]) -> _T:
    """The same value with other tensors, taken in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value):
        parts = {field.name: with_tensors(getattr(value, field.name), tensors) for field in fields(value)}
        return replace(value, **parts)
    return value


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


def pack(value: object) -> Packed:
    """float64 must hold the tensors' numbers exactly: bool, int64 below 2^53, or any float. Those of a dtype
    are cast together."""
    by_dtype: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, tensor in named_tensors(value):
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


class OnHost:
    """A packed value on the host: each tensor is an attribute, in plain numbers, as `Tensor.tolist` gives
    them. It is made when it is first asked for, because the next step waits for some of them only."""

    def __init__(self, numbers: list[float], layout: dict[str, Placed]):
        self._numbers = numbers
        self._layout = layout

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("_layout", ()):
            raise AttributeError(name)
        start, shape, dtype = self._layout[name]
        flat = self._numbers[start : start + shape.numel()]
        if not dtype.is_floating_point:
            flat = list(map(bool if dtype == torch.bool else int, flat))
        plain: Any = flat if shape else flat[0]
        if len(shape) == 2:
            rows, width = shape
            plain = [flat[row * width : (row + 1) * width] for row in range(rows)]
        setattr(self, name, plain)
        return plain


Home = TypeVar("Home", bound=OnHost)


def to_host(packed: Packed, kind: type[Home]) -> Home:
    """The packed value on the host, in one copy, which waits for the device (RuntimeError if it does not
    answer). kind: names the attributes."""
    return kind(on_host(packed.numbers).tolist(), packed.layout)


def unpacked(packed: Packed) -> list[Tensor]:
    """The tensors that were packed, where the packed ones are."""
    parts = packed.numbers.split([part.shape.numel() for part in packed.layout.values()])
    return [
        numbers.view(part.shape).to(part.dtype)
        for numbers, part in zip(parts, packed.layout.values(), strict=True)
    ]


@dataclass(frozen=True)
class HostNumbers:
    """What the host tells a step: lists of numbers by name, one after another in one vector, for one copy to
    the device. float64 holds ids, positions and uniform numbers exactly."""

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
        """The lists, as views."""
        return dict(zip(self.sizes, self.vector.split(tuple(self.sizes.values())), strict=True))

    def with_parts(self, **others: Tensor) -> Self:
        """The same with some lists replaced by others of their sizes."""
        return replace(self, vector=torch.cat([*(self.parts | others).values()]))


def varied_ids(ids: Tensor) -> Tensor:
    """Other ids of the same vocabulary."""
    return torch.where(ids > 0, ids - 1, ids + 1)


def varied_uniforms(u: Tensor) -> Tensor:
    """Other numbers in [0, 1)."""
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


@dataclass(frozen=True)
class Graph:
    graph: torch.cuda.CUDAGraph
    input: object  # what the graph reads: replaying takes its values from here
    output: object  # what the graph writes


class Graphs:
    """A `RunStep` that captures steps as CUDA graphs: the latest `most` of them, in one memory pool.

    A step has gamma rows whenever anything is drafted, so that the last rounds of a text, which draft less,
    need no graph of their own. Where gamma is chosen round by round, it has the fewest rows of AUTO_ROWS that
    hold the draft. A graph's output holds until it, or one that was captured before it, is
    replayed: those may use the same memory. Before a graph is used, it is compared with the step itself. A
    step whose graph differs is captured once more, and then runs as it is."""

    captures = True

    def __init__(self, clock: Clock, most: int = 64):
        self.clock = clock
        self.most = most
        self.graphs: OrderedDict[tuple, Graph] = OrderedDict()
        self.warming_up: Message | None = None  # what is being captured now
        self.blocker: str | None = None  # why nothing is captured any more
        self.refused: dict[tuple, str] = {}  # steps that are not captured, and why
        self._blocked_for_this_run = False  # the blocker may have passed by the next run
        self._pool: cuda.Pool | None = None
        self._dtypes: list[torch.dtype] = []  # that the models compute in
        self._weights: list = []  # their addresses at the time of capture, and the modules
        self._checked: list[Module] = []
        if os.environ.get("SPACES_ZERO_GPU"):
            self.blocker = "ZeroGPU runs each call in its own process, which no captured graph outlives"

    def begin_run(self, lms: Sequence[Cached]) -> None:
        """Drops the graphs of weights that have moved, because a graph reads them where they were."""
        if self._blocked_for_this_run:
            self.blocker, self._blocked_for_this_run = None, False
        for lm in lms:
            if not self.blocker and lm.model not in self._checked:
                self._block(None if lm.written_for_capture else capture_blocker(lm.model))
                if not self._blocked_for_this_run:
                    self._checked.append(lm.model)
        weights = [weights_address(lm.model) for lm in lms]
        if weights != self._weights:
            self.drop()
            self._weights = weights
        self._dtypes = [lm.model.dtype for lm in lms]

    def rows(self, k: int, gamma: Gamma) -> int:
        if not k or self.blocker:
            return k
        return gamma if gamma != "auto" else next(rows for rows in AUTO_ROWS if rows >= k)

    def __call__(
        self,
        key: tuple,
        step: Callable[[In], Out],
        value: In,
        expected: Callable[[In, Out], Out] | None = None,
    ) -> tuple[In, Out]:
        if self.blocker or key not in self.graphs:
            value = value.on_device()
        if self.blocker or key in self.refused:
            return value, step(value)
        if key not in self.graphs and not self._add(key, step, value, expected):
            return value, step(value)
        self.graphs.move_to_end(key)
        captured = self.graphs[key]
        _fill(captured.input, value)
        captured.graph.replay()  # on the stream that is current on the device that it was captured on
        return captured.input, captured.output

    @property
    def fault(self) -> str | None:
        """Why a step is not captured; None if all are."""
        return self.blocker or next(iter(self.refused.values()), None)

    def _add(self, key: tuple, step: Callable, value: StepInput, expected: Callable | None) -> bool:
        """Captures the step and tries the graph. False when either fails: a capture that cannot be made is a
        blocker, and a step whose graph differs is refused."""
        self.warming_up = message("capturing_step", name=key[0])
        device = tensors_of(value)[0].device
        try:
            with self.clock.paused(), cuda.ALONE:
                try:
                    for _ in range(CAPTURES_TRIED):
                        captured = self._capture(key, step, value)
                        different = self._difference(captured, step, value, expected)
                        if different is None:
                            self.graphs[key] = captured
                            break
                        captured = None  # before anything else is captured
                    else:
                        self.refused[key] = OTHERWISE.format(different)
                except Exception as error:  # of torch, of a model's own code, or out of memory
                    self._block(_reason(error, step, value))
                if self.blocker:
                    captured = None
                    self.drop()
                    cuda.free_cache(device)
                while len(self.graphs) > self.most:
                    self.graphs.popitem(last=False)
        finally:
            self.warming_up = None
        return key in self.graphs

    def _block(self, reason: str | None) -> None:
        self.blocker = reason
        self._blocked_for_this_run = reason is not None and any(fault in reason for fault in PASSING)

    def _static_input(self, value: In) -> In:
        """Another graph's output is read where it is; every other input gets memory of its own, which a
        replay fills."""
        outputs = {id(tensor) for graph in self.graphs.values() for tensor in tensors_of(graph.output)}
        statics = (given if id(given) in outputs else given.clone() for given in tensors_of(value))
        return with_tensors(value, statics)

    def _capture(self, key: tuple, step: Callable, value: StepInput) -> Graph:
        static = self._static_input(value)
        device = tensors_of(value)[0].device
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for _ in range(2):  # libraries set themselves up at first use, which cannot be captured
            step(static)
        cuda.synchronize(device)
        with _collector_off(), cuda.capturing(graph, device, self._pool):
            output = step(static)
        return Graph(graph, static, output)

    def _difference(
        self, captured: Graph, step: Callable, value: StepInput, expected: Callable | None
    ) -> str | None:
        """How what the graph says differs from what is expected: on the value, on another one, and on the
        value again, which also leaves the cache as the value asks for. None if it does not."""
        given = with_tensors(value, (tensor.clone() for tensor in tensors_of(value)))
        device = tensors_of(value)[0].device
        try:
            for tried in (given, given.varied(), given):
                _fill(captured.input, tried)
                # The graph comes first: after the step, the cache would hold what the graph has to write.
                captured.graph.replay()
                said = with_tensors(captured.output, (t.clone() for t in tensors_of(captured.output)))
                right = expected(captured.input, said) if expected else step(captured.input)
                cuda.synchronize(device)
                if different := disagreement(right, said, self._dtypes):
                    return different
            return None
        finally:
            _fill(captured.input, given)  # the input can be another graph's output, which is still needed

    def drop(self) -> None:
        """Forgets all graphs, and which could not be used."""
        with cuda.ALONE:
            self.graphs.clear()
        self.refused.clear()
        self._pool = None


def _fill(static: object, value: object) -> None:
    """Copies the value to where a graph reads it. The host does not wait."""
    for there, given in zip(tensors_of(static), tensors_of(value), strict=True):
        if there is not given and there.numel():
            there.copy_(given, non_blocking=True)
            cuda.keep_until_copied(given, there.device)


def _reason(error: Exception, step: Callable, value: StepInput) -> str:
    """Why a step could not be captured. CUDA says the same whether a capture was ended by the step, which
    waits for the device, or by another thread; so the step is tried once more as it is."""
    if any(interrupted in str(error) for interrupted in CAPTURE_INTERRUPTED):
        try:
            with ForbidReadingTensors(), ForbidDataDependence():
                step(value)
        except Exception as own:
            return one_line(own)
    return one_line(error)


@contextmanager
def _collector_off() -> Iterator[None]:
    """The collector could free a graph meanwhile, which would end the capture. It does not run before either,
    as in torch.cuda.graph: that takes half a second, in which nobody else's run goes on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_dense(tensor: Tensor) -> bool:
    """False for quantised weights."""
    return type(tensor) in (torch.nn.Parameter, Tensor)


def weights_address(model: Module) -> tuple[list, list]:
    """The model's modules, and where its weights are in memory: equal while a captured graph may read
    them."""
    tensors = [*model.parameters(), *model.buffers()]
    places = [(id(tensor), [part.data_ptr() for part in stored(tensor)]) for tensor in tensors]
    return list(model.modules()), places


def stored(tensor: Tensor) -> list[Tensor]:
    """The tensor, or of a quantised weight the inner tensors that it consists of. Those are replaced when it
    moves. An operation on the weight itself can make optimum-quanto compile code for that."""
    if is_dense(tensor) or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in stored(getattr(tensor, name))]


def confidence_tolerance(dtypes: Sequence[torch.dtype]) -> float:
    """For a head's measure of its confidence, where models compute in these dtypes."""
    return ROUNDED if any(map(is_16_bits, dtypes)) else EXACT


def order_tolerance(logits: Tensor, dtypes: Sequence[torch.dtype]) -> float:
    """For logits whose sums are made in another order, where models compute in these dtypes."""
    finest = min(dtypes, key=unit_of, default=logits.dtype)
    dtype = max(logits.dtype, finest, key=unit_of)  # some models of 16 bits give logits of 32
    units = UNITS_IN_16_BITS if is_16_bits(dtype) else UNITS_IN_MORE
    return units * unit_of(dtype) * float(logits.double().nan_to_num(0.0, 0.0, 0.0).abs().max())


def is_16_bits(dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).bits == 16


def unit_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def disagreement(expected: object, given: object, dtypes: Sequence[torch.dtype]) -> str | None:
    """What differs, and by how much, in a few words; None if nothing does. Logits may be rounded otherwise,
    and so may `sure`, which a head computes beside its logits; ids, flags and other numbers must be the same,
    but for EXACT. dtypes: that the models compute in."""
    for (name, one), (_, other) in zip(named_tensors(expected), named_tensors(given), strict=True):
        if not one.is_floating_point():
            if count := int((one != other).sum()):
                return f"{name} differ in {count} of {one.numel()} places"
            continue
        if not torch.equal(one.isnan(), other.isnan()):
            return f"NaN in {name}"
        # The same infinity in both, or NaN, is no difference.
        apart = torch.where(one == other, 0.0, (one.double() - other.double()).abs()).nan_to_num(
            0.0, torch.inf
        )
        if name == "logits":
            allowed = order_tolerance(one, dtypes)
        else:
            allowed = confidence_tolerance(dtypes) if name == "sure" else EXACT
        if (apart > allowed).any():
            return f"{name} differ by {float(apart.max()):.2g}, allowed {allowed:.2g}"
    return None


def named_tensors(value: object, name: str = "") -> list[tuple[str, Tensor]]:
    """All tensors in the value with their fields' names, packed ones as what they are."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Packed):
        return list(zip(value.layout, unpacked(value), strict=True))
    if is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in fields(value))
        return [pair for part_name, part in parts for pair in named_tensors(part, part_name)]
    return []


@torch.no_grad()
def capture_blocker(model: PreTrainedModel) -> str | None:
    """Why the model cannot be captured, tried on a few tokens; None if it can."""
    lm = CachedLM(model)
    if lm.states is not None:
        return "its recurrent layers keep a state, which is saved and put back between its forwards"
    n = int(min(6, context_of(model)))
    ids = positions = torch.arange(n, device=lm.device)
    lm.reserve(0, n)
    expected = lm.forward(ids, positions[0]).double()  # [n, V]
    tolerance = logits_tolerance(expected, lm.dtype)
    lm.begin_run(static=True)
    # Some models measure a window from the end of the visible cache.
    lm.reserve(0, max((size for size in windows_of(model) if size <= 4096), default=0) + 64)
    try:
        for rows in (n, 2, 1):
            with ForbidReadingTensors(), ForbidDataDependence():
                logits = lm.forward(ids[-rows:], positions[-rows])
            if not (logits.double() - expected[-rows:]).abs().max() <= tolerance:
                return "it makes masks of its own from the length of the cache"
    except Exception as error:
        return one_line(error)
    return None


class ForbidReadingTensors(TorchFunctionMode):
    """Raises when Python code reads the numbers in a tensor."""

    READS = {
        "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__", "__iter__"
    }  # fmt: skip

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(function, "__name__", "") in self.READS:
            raise RuntimeError(LOOKS.format(function.__name__))
        return function(*args, **(kwargs or {}))


class ForbidDataDependence(TorchDispatchMode):
    """Raises for an operation whose output's shape depends on the numbers."""

    READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "equal", "is_nonzero"}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in self.READS or by_mask:
            raise RuntimeError(LOOKS.format(name))
        return operation(*args, **(kwargs or {}))
