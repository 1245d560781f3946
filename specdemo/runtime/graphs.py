"""Steps as CUDA graphs: captured once and replayed, so that their thousands of launches cost the host one
call. Each graph is compared with the step that it was made from before it is used."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from specdemo.errors import in_short
from specdemo.events import Gamma
from specdemo.runtime import cuda
from specdemo.runtime.agreement import apart, largest, unit_of
from specdemo.runtime.cache import Cached
from specdemo.runtime.cuda import Clock
from specdemo.runtime.probe import ForbidDataDependence, ForbidReadingTensors, capture_blocker
from specdemo.runtime.steps import AUTO_ROWS, In, Out, Packed, StepInput
from specdemo.runtime.weights import weights_address
from specdemo.words.message import Message, message

# What CUDA says when a capture was ended by another thread's call, or by a call of its own that it forbids.
CAPTURE_INTERRUPTED = (
    "operation not permitted when stream is capturing",
    "operation failed due to a previous error during capture",
)
OTHERWISE = "its graph says something other than the step itself ({})"
PASSING = (*CAPTURE_INTERRUPTED, "out of memory")  # another time, the same capture may succeed
CAPTURES_TRIED = 2  # of a step whose graph says something else
_T = TypeVar("T")
_streams: dict[torch.device, torch.cuda.Stream] = {}
_failed: list[torch.cuda.CUDAGraph] = []
# How far a graph's numbers may be from the step's. EXACT: where both are computed from the same logits.
# ROUNDED: a head's own measure of its confidence, where a model computes in 16 bits.
EXACT, ROUNDED = 1e-6, 2e-2
# How far its logits may be from the step's, in units of rounding of the largest. A graph runs the step's
# kernels on the step's shapes, so no more than the order of sums can differ. In 16 bits a sum is rounded at
# its end only.
UNITS_IN_16_BITS, UNITS_IN_MORE = 4, 100


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
        key = (*key, form_of(value))
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

    def _add(self, key: tuple, step: Callable, value: StepInput, expected: Callable | None) -> bool:
        """Captures the step and tries the graph. Returns False when either fails: a capture that cannot be
        made is a blocker, and a step whose graph differs is refused."""
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
        """The value as a graph reads it: another graph's output where it is, every other input in memory of
        its own, which a replay fills."""
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
        with _collector_off(), capturing(graph, device, self._pool):
            output = step(static)
        return Graph(graph, static, output)

    def _difference(
        self, captured: Graph, step: Callable, value: StepInput, expected: Callable | None
    ) -> str | None:
        """How what the graph says differs from what is expected: on the value, on another one, and on the
        value again, which also leaves the cache as the value asks for. None if nothing differs."""
        given = with_tensors(value, (tensor.clone() for tensor in tensors_of(value)))
        device = tensors_of(value)[0].device
        try:
            for tried in (given, given.varied(), given):
                _fill(captured.input, tried)
                # The graph comes first: after the step, the cache would hold what the graph has to write.
                captured.graph.replay()
                output = with_tensors(captured.output, (t.clone() for t in tensors_of(captured.output)))
                right = expected(captured.input, output) if expected else step(captured.input)
                cuda.synchronize(device)
                if different := disagreement(right, output, self._dtypes):
                    return different
            return None
        finally:
            _fill(captured.input, given)  # the input can be another graph's output, which is still needed

    def drop(self) -> None:
        """Forgets all graphs, and which steps were refused."""
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
        except Exception as cause:
            return in_short(cause)
    return in_short(error)


@contextmanager
def _collector_off() -> Iterator[None]:
    """A context in which the garbage collector does not run: it could free a graph, which would end the
    capture. Nor is it run before, as in torch.cuda.graph: that takes half a second, in which nobody else's
    run goes on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def tensors_of(value: object) -> list[Tensor]:
    """Lists the tensors in a value, in the order of its fields."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return [tensor for field in fields(value) for tensor in tensors_of(getattr(value, field.name))]
    return []


def form_of(value: object) -> Hashable:
    """Describes what a captured step cannot have otherwise in its input: the shapes and dtypes of its
    tensors, which of them are there, and whatever is no tensor."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if is_dataclass(value):
        return tuple(form_of(getattr(value, field.name)) for field in fields(value))
    return tuple(value.items()) if isinstance(value, dict) else value


def with_tensors(value: _T, tensors: Iterator[Tensor]) -> _T:
    """Gives the value other tensors, taken in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value):
        parts = {field.name: with_tensors(getattr(value, field.name), tensors) for field in fields(value)}
        return replace(value, **parts)
    return value


def named_tensors(value: object, name: str = "") -> list[tuple[str, Tensor]]:
    """Lists all tensors in the value with their fields' names; those of a packed value are unpacked."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Packed):
        parts = value.numbers.split([place.shape.numel() for place in value.layout.values()])
        return [
            (name, numbers.view(place.shape).to(place.dtype))
            for (name, place), numbers in zip(value.layout.items(), parts, strict=True)
        ]
    if is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in fields(value))
        return [pair for part_name, part in parts for pair in named_tensors(part, part_name)]
    return []


def disagreement(expected: object, given: object, dtypes: Sequence[torch.dtype]) -> str | None:
    """What differs in what a step says that was captured, and by how much, in a few words; None if nothing
    does. Logits may be rounded otherwise, and so may `sure`, which a head computes beside its logits; ids,
    flags and other numbers must be the same, but for EXACT. dtypes: those that the models compute in."""
    for (name, one), (_, other) in zip(named_tensors(expected), named_tensors(given), strict=True):
        if not one.is_floating_point():
            if count := int((one != other).sum()):
                return f"{name} differ in {count} of {one.numel()} places"
            continue
        if not torch.equal(one.isnan(), other.isnan()):
            return f"NaN in {name}"
        differ, allowed = apart(one, other), _allowed(name, one, dtypes)
        if (differ > allowed).any():
            return f"{name} differ by {float(differ.max()):.2g}, allowed {allowed:.2g}"
    return None


def _allowed(name: str, numbers: Tensor, dtypes: Sequence[torch.dtype]) -> float:
    """How far these numbers of a step may be apart, where models compute in these dtypes."""
    if name == "sure":
        return ROUNDED if any(torch.finfo(dtype).bits == 16 for dtype in dtypes) else EXACT
    if name != "logits":
        return EXACT
    finest = min(dtypes, key=unit_of, default=numbers.dtype)
    dtype = max(numbers.dtype, finest, key=unit_of)  # some models of 16 bits give logits of 32
    units = UNITS_IN_16_BITS if torch.finfo(dtype).bits == 16 else UNITS_IN_MORE
    return units * unit_of(dtype) * largest(numbers)


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that all graphs of this device are captured on: torch has only 32, and gives them out again
    and again. Nothing runs on it, or libraries would share the memory that they keep for each stream between
    that and the replay of a graph."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, device: torch.device, pool: cuda.Pool) -> Iterator[None]:
    """A context that captures what runs in it, with memory from the pool. After an error nothing is captured
    any more, and the pool's memory can be freed."""
    with torch.cuda.stream(capture_stream(device)):
        begun = False
        try:
            # Another thread's run may launch its own work meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            begun = True
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):  # it would only say that the capture has failed
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            _end_failed_capture(graph, device, pool, begun)
            raise


def _end_failed_capture(
    graph: torch.cuda.CUDAGraph, device: torch.device, pool: cuda.Pool, begun: bool
) -> None:
    """Does what torch leaves undone after a failed capture. Up to 2.12 the allocator goes on believing that
    the capture is under way, and frees nothing any more. Up to 2.13 the pool is never released."""
    index = device.index or 0
    held = begun and not _has_ended(graph)
    with suppress(RuntimeError):  # from 2.13 on `capture_end` has done this
        torch._C._cuda_endAllocateToPool(index, pool)
        held = True
    with suppress(RuntimeError):
        graph.reset()
    _failed.append(graph)  # up to 2.12 the allocator of pinned memory keeps a pointer to it
    if torch.__version__ < "2.14":  # from then on `reset` does the rest
        if held:
            with suppress(RuntimeError):
                torch._C._cuda_releasePool(index, pool)
        # Up to 2.12 the generator believes that it is captured, and refuses to give random numbers. A copy
        # of its state does not.
        with suppress(RuntimeError):
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())


def _has_ended(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether the capture itself went well (making the graph executable may still have failed): then `reset`
    releases the pool."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
