"""CUDA graphs: a step is captured once and replayed, so that its thousands of launches cost the host one
call."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.events import Gamma
from specdemo.runtime import cuda
from specdemo.runtime.agreement import disagreement, probability_tolerance
from specdemo.runtime.cached_head import DrafterModel
from specdemo.runtime.capturable import (
    ForbidDataDependence,
    ForbidReadingTensors,
    capture_blocker,
    one_line,
)
from specdemo.runtime.clock import Clock
from specdemo.runtime.values import In, Out, StepInput, tensors_of, with_tensors

# What CUDA says when a capture was ended by another thread's call, or by a call of its own that it forbids.
INTERRUPTED = (
    "operation not permitted when stream is capturing",
    "operation failed due to a previous error during capture",
)
AUTO_ROWS = (1, 2, 4, 8, 16)  # of a step, where gamma is chosen round by round: each needs a graph

PASSING = (*INTERRUPTED, "out of memory")  # another time, the same capture may succeed


class EagerSteps:
    """Runs each step as it is, with as many rows as there are drafts."""

    def rows(self, k: int, gamma: Gamma) -> int:
        return k

    def __call__(self, key: tuple, step: Callable[[In], Out], value: In) -> tuple[In, Out]:
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
    replayed: those may use the same memory. Before a graph is used, it is compared with the step itself."""

    def __init__(self, clock: Clock, most: int = 64):
        self.clock = clock
        self.most = most
        self.graphs: OrderedDict[tuple, Graph] = OrderedDict()
        self.warming_up: str | None = None  # what is being captured now, in words
        self.blocker: str | None = None  # why nothing is captured any more
        self._blocked_for_this_run = False  # the blocker may have passed by the next run
        self._pool: cuda.Pool | None = None
        self._tolerance = 0.0  # for probabilities
        self._weights: list = []  # their addresses at the time of capture, and the modules
        self._checked: list[DrafterModel] = []
        if os.environ.get("SPACES_ZERO_GPU"):
            self.blocker = "ZeroGPU runs each call in its own process, which no captured graph outlives"

    def begin_run(self, models: list[DrafterModel]) -> None:
        """Drops the graphs of weights that have moved, because a graph reads them where they were."""
        if self._blocked_for_this_run:
            self.blocker, self._blocked_for_this_run = None, False
        for model in models:
            if not self.blocker and model not in self._checked:
                self._block(capture_blocker(model) if isinstance(model, PreTrainedModel) else None)
                if not self._blocked_for_this_run:
                    self._checked.append(model)
        weights = [weights_address(model) for model in models]
        if weights != self._weights:
            self.drop()
            self._weights = weights
        self._tolerance = probability_tolerance([model.dtype for model in models])

    def rows(self, k: int, gamma: Gamma) -> int:
        if not k or self.blocker:
            return k
        return gamma if gamma != "auto" else next(rows for rows in AUTO_ROWS if rows >= k)

    def __call__(self, key: tuple, step: Callable[[In], Out], value: In) -> tuple[In, Out]:
        if self.blocker:
            return value, step(value)
        if key not in self.graphs and not self._add(key, step, value):
            return value, step(value)
        self.graphs.move_to_end(key)
        captured = self.graphs[key]
        _fill(captured.input, value)
        captured.graph.replay()  # on the stream that is current on the device that it was captured on
        return captured.input, captured.output

    def _add(self, key: tuple, step: Callable, value: StepInput) -> bool:
        """Captures the step and tries the graph; False, and a blocker, when either fails."""
        self.warming_up = f"warming up: capturing the {key[0]} step as one CUDA graph"
        device = tensors_of(value)[0].device
        try:
            with self.clock.paused(), cuda.ALONE:
                try:
                    captured = self._capture(key, step, value)
                    self._compare(captured, step, value)
                    self.graphs[key] = captured
                except RuntimeError as error:  # running out of memory is one, too
                    self._block(_reason(error, step, value))
                if self.blocker:
                    captured = None
                    self.drop()
                    cuda.free_cache(device)
                while len(self.graphs) > self.most:
                    self.graphs.popitem(last=False)
        finally:
            self.warming_up = None
        return not self.blocker

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

    def _compare(self, captured: Graph, step: Callable, value: StepInput) -> None:
        """RuntimeError if the graph says something other than the step itself: on the value, on another one,
        and on the value again, which also leaves the cache as the value asks for."""
        given = with_tensors(value, (tensor.clone() for tensor in tensors_of(value)))
        device = tensors_of(value)[0].device
        try:
            for tried in (given, given.varied(), given):
                _fill(captured.input, tried)
                # The graph comes first: after the step, the cache would hold what the graph has to write.
                captured.graph.replay()
                output = with_tensors(captured.output, (t.clone() for t in tensors_of(captured.output)))
                expected = step(captured.input)
                cuda.synchronize(device)
                if different := disagreement(expected, output, self._tolerance):
                    raise RuntimeError(f"what was captured gives other {different} than the step itself")
        finally:
            _fill(captured.input, given)  # the input can be another graph's output, which is still needed

    def drop(self) -> None:
        """Forgets all graphs."""
        with cuda.ALONE:
            self.graphs.clear()
        self._pool = None


def _fill(static: object, value: object) -> None:
    """Copies the value to where a graph reads it."""
    for there, given in zip(tensors_of(static), tensors_of(value), strict=True):
        if there is not given:
            there.copy_(given)


def _reason(error: RuntimeError, step: Callable, value: StepInput) -> str:
    """Why a step could not be captured. CUDA says the same whether a capture was ended by the step, which
    waits for the device, or by another thread; so the step is tried once more as it is."""
    if any(interrupted in str(error) for interrupted in INTERRUPTED):
        try:
            with ForbidReadingTensors(), ForbidDataDependence():
                step(value)
        except RuntimeError as own:
            return one_line(own)
    return one_line(error)


@contextmanager
def _collector_off() -> Iterator[None]:
    """The collector could free a graph meanwhile, which would end the capture."""
    gc.collect()
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


def weights_address(model: DrafterModel) -> tuple[list, list]:
    """The model's modules, and where its weights are in memory: equal while a captured graph may read
    them."""
    tensors = [*model.parameters(), *model.buffers()]
    return list(model.modules()), [
        (id(tensor), tensor.data_ptr() if is_dense(tensor) else None) for tensor in tensors
    ]
