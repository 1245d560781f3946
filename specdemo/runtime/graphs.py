"""CUDA graphs: a step is captured once and replayed, so that its thousands of launches cost the host one
call."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.capturable import capture_blocker, one_line
from specdemo.runtime.clock import Clock
from specdemo.runtime.values import In, Out, tensors_of, with_tensors


class EagerSteps:
    """Runs each step as it is, with as many rows as there are drafts."""

    def rows(self, k: int, gamma: int) -> int:
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
    need no graph of their own. A graph's output holds until it, or one that was captured before it, is
    replayed: those may use the same memory."""

    def __init__(self, clock: Clock, most: int = 16):
        self.clock = clock
        self.most = most
        self.graphs: OrderedDict[tuple, Graph] = OrderedDict()
        self.warming_up: str | None = None  # what is being captured now, in words
        self.blocker: str | None = None  # why nothing is captured any more
        self._out_of_memory = False  # that is the blocker
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._stream: torch.cuda.Stream | None = None  # graphs are captured on it
        self._weights: list = []  # their addresses at the time of capture, and the modules
        self._checked: list[PreTrainedModel] = []
        if os.environ.get("SPACES_ZERO_GPU"):
            self.blocker = "ZeroGPU runs each call in its own process, which no captured graph outlives"

    def begin_run(self, models: list[PreTrainedModel]) -> None:
        """Drops the graphs of weights that have moved, because a graph reads them where they were."""
        for model in models:
            if not self.blocker and model not in self._checked:
                self.blocker = capture_blocker(model)
                self._checked.append(model)
        weights = [weights_address(model) for model in models]
        if weights != self._weights:
            self.drop()
            self._weights = weights
        if self._out_of_memory:  # there may be room again
            self.blocker, self._out_of_memory = None, False

    def rows(self, k: int, gamma: int) -> int:
        return gamma if k and not self.blocker else k

    def __call__(self, key: tuple, step: Callable[[In], Out], value: In) -> tuple[In, Out]:
        if self.blocker:
            return value, step(value)
        if key not in self.graphs and not self._add(key, step, value):
            return value, step(value)
        self.graphs.move_to_end(key)
        captured = self.graphs[key]
        for static, given in zip(tensors_of(captured.input), tensors_of(value), strict=True):
            if static is not given:
                static.copy_(given)
        captured.graph.replay()  # on the stream of the device that it was captured on
        return captured.input, captured.output

    def _add(self, key: tuple, step: Callable, value: object) -> bool:
        """Captures the step; False, and a blocker, when that fails."""
        self.warming_up = f"warming up: capturing the {key[0]} step as one CUDA graph"
        try:
            with torch.cuda.device_of(tensors_of(value)[0]), self.clock.paused():
                self.graphs[key] = self._capture(key, step, value)
        except RuntimeError as error:  # running out of memory is one, too
            self.drop()
            self.blocker, self._out_of_memory = one_line(error), isinstance(error, torch.OutOfMemoryError)
        finally:
            self.warming_up = None
        while len(self.graphs) > self.most:
            self.graphs.popitem(last=False)
        return not self.blocker

    def _static_input(self, value: In) -> In:
        """Another graph's output is read where it is; every other input gets memory of its own, which a
        replay fills."""
        outputs = {id(tensor) for graph in self.graphs.values() for tensor in tensors_of(graph.output)}
        statics = (given if id(given) in outputs else given.clone() for given in tensors_of(value))
        return with_tensors(value, statics)

    def _capture(self, key: tuple, step: Callable, value: object) -> Graph:
        static = self._static_input(value)
        self._stream = self._stream or torch.cuda.Stream()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # libraries set themselves up at first use, which cannot be captured
                step(static)
            torch.cuda.synchronize()
            gc.collect()  # during a capture, nothing may be freed on the device
            # Another thread may be loading another pair meanwhile, which must not end this capture.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = step(static)
            except BaseException:
                with suppress(RuntimeError):  # it would only say that the capture has failed
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return Graph(graph, static, output)

    def drop(self) -> None:
        """Forgets all graphs."""
        self.graphs.clear()
        self._pool = self._stream = None


def is_dense(tensor: Tensor) -> bool:
    """False for quantised weights."""
    return type(tensor) in (torch.nn.Parameter, Tensor)


def weights_address(model: PreTrainedModel) -> tuple[list, list]:
    """The model's modules, and where its weights are in memory: equal while a captured graph may read
    them."""
    tensors = [*model.parameters(), *model.buffers()]
    return list(model.modules()), [
        (id(tensor), tensor.data_ptr() if is_dense(tensor) else None) for tensor in tensors
    ]
