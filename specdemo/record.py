"""Recording a step once and playing it again: what the host says to the device in a thousand small calls is said in one.

On CUDA the draft loop and the verifying step of a round are one graph each (`Graphs`). On a CPU a model's forward is a trace
(`Traced`), which spares Python's part of it. Both record the same functions that run as they are where nothing is recorded.
"""

import gc
import os
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.fitness import one_line, unfit
from specdemo.lm import CachedLM

PLAIN = (torch.nn.Parameter, Tensor)  # quantised weights are others


def watched(model: PreTrainedModel) -> bool:
    """Whether somebody listens to the model's forwards, or has put others in their place: a recording would pass them by."""
    hooks = torch.nn.modules.module  # those that hear every module
    return bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks) or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in model.modules()
    )


class Eager:
    """Runs a step as it is, with as many rows as there are drafts."""

    def rows(self, k: int, gamma: int) -> int:
        return k

    def __call__(self, key: tuple, step: Callable, *inputs: Tensor):
        return step(*inputs)


@dataclass(frozen=True)
class Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Tensor | tuple[Tensor, ...]


class Graphs:
    """CUDA graphs of the steps that a pair has made, the latest `most` of them, in one pool of memory.

    A step has gamma rows whenever anything is drafted, so that the last rounds of a text, which draft less, need no graph of
    their own. What a graph gives out holds until it, or one that was recorded earlier, runs again: that may use the same memory.
    """

    def __init__(self, most: int = 16):
        self.most = most
        self.graphs: OrderedDict[tuple, Graph] = OrderedDict()
        self.pool = None
        self.beside: torch.cuda.Stream | None = None  # where recordings are made
        self.places: list = []  # of weights, and the modules that were recorded
        self.compiled = False
        self.tried: list[PreTrainedModel] = []
        self.recording: str | None = None  # what is being recorded now
        self.reason: str | None = None  # why nothing is recorded any more
        self.full = False  # because the memory was full
        if os.environ.get("SPACES_ZERO_GPU"):
            self.reason = "ZeroGPU runs every call in a process of its own, which a recording does not outlive"

    def begin(self, *models: PreTrainedModel, compiled: bool) -> None:
        """At the start of each run: recordings read weights where they lay."""
        for model in models:
            if not self.reason and model not in self.tried:
                self.reason = unfit(model)
                self.tried.append(model)
        self.compiled = compiled
        tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        places = [(id(tensor), tensor.data_ptr() if type(tensor) in PLAIN else None) for tensor in tensors]
        places += [module for model in models for module in model.modules()]
        if places != self.places:
            self.forget()
            self.places = places
        if self.full:  # there may be room again
            self.reason, self.full = None, False

    def rows(self, k: int, gamma: int) -> int:
        return gamma if k and not self.reason else k

    def __call__(self, key: tuple, step: Callable, *inputs: Tensor):
        if self.reason:
            return step(*inputs)
        key = *key, self.compiled
        if key not in self.graphs:
            self.recording = f"warming up: recording the {key[0]} step as one CUDA graph"
            try:
                with torch.cuda.device_of(inputs[0]):
                    self.graphs[key] = self._record(key, step, inputs)
            except RuntimeError as error:  # out of memory is one, too
                self.forget()
                self.reason, self.full = one_line(error), isinstance(error, torch.OutOfMemoryError)
            finally:
                self.recording = None
            if self.reason:
                return step(*inputs)
            while len(self.graphs) > self.most:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        recorded = self.graphs[key]
        for mine, given in zip(recorded.inputs, inputs, strict=True):
            if mine is not given:
                mine.copy_(given)
        recorded.graph.replay()  # on the stream of the device it was recorded on
        return recorded.outputs

    def _places_for(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What another graph gives out is read where it lies; anything else gets a place of its own, which a replay fills."""
        lent = {id(output) for graph in self.graphs.values() if isinstance(graph.outputs, tuple) for output in graph.outputs}
        return tuple(given if id(given) in lent else given.clone() for given in inputs)

    def _record(self, key: tuple, step: Callable, inputs: tuple[Tensor, ...]) -> Graph:
        mine = self._places_for(inputs)
        self.beside = self.beside or torch.cuda.Stream()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            for _ in range(2):  # libraries set themselves up at first use, which cannot be recorded
                step(*mine)
            torch.cuda.synchronize()
            gc.collect()  # while recording, nothing may be given back to the device
            # Another thread may be loading another pair meanwhile, which must not end this.
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                outputs = step(*mine)
            except BaseException:
                with suppress(RuntimeError):  # it would only say that the recording has failed
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.beside)
        return Graph(graph, mine, outputs)

    def forget(self) -> None:
        """What was recorded no longer holds: weights or caches lie somewhere else."""
        self.graphs.clear()
        self.pool = self.beside = None


class Traced(CachedLM):
    """An `LM` on a CPU that plays traces of its forwards: one for each number of rows, made when that has come up often
    enough to be worth it, for any span. For each span the first replay is compared with the model itself before it is believed."""

    TRIES = 8

    def __init__(self, model):
        super().__init__(model)
        self.seen: Counter[int] = Counter()
        self.traces: dict[int, Callable] = {}
        self.believed: set[tuple[int, int]] = set()
        self.recording: str | None = None
        self.reason: str | None = None
        self.tried = False
        self.modules: list[torch.nn.Module] = []

    def begin(self, record: bool) -> None:
        """At the start of each run: weights that have moved are found again. record: False to run the model as it is."""
        self.exact = not record or watched(self.model) or self.reason is not None
        if self.exact:
            return
        modules = list(self.model.modules())
        if modules != self.modules:  # somebody has put another one in its place
            self.modules, self.tried = modules, False
            self.traces.clear()
            self.believed.clear()
        homes = [home for module in modules for home in (module._parameters, module._buffers)]
        self.weights = [(home, name, weight) for home in homes for name, weight in home.items() if weight is not None]
        if any(type(weight) not in PLAIN for _, _, weight in self.weights):
            self.reason = "quantised weights cannot be traced on a CPU"
        elif not self.tried:
            self.reason, self.tried = unfit(self.model), True
        self.exact = self.reason is not None
        self.tensors = None

    def expect(self, rows: int) -> None:
        """So many rows are sure to come up: they are recorded at their first forward, and believed from the third on."""
        self.seen[rows] = self.TRIES

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        n = len(ids)
        if self.exact or self.reason:
            return super().forward(ids, start)
        if (n, self.span) in self.believed:
            return self._replay(n, ids, start)
        logits = super().forward(ids, start)
        self.seen[n] += 1
        if self.seen[n] >= self.TRIES:
            try:
                if n not in self.traces:
                    self.traces[n] = self._trace(ids, start)
                elif torch.equal(self._replay(n, ids, start), logits):
                    self.believed.add((n, self.span))
                else:
                    raise RuntimeError("a trace of it says something else than the model itself")
            except Exception as error:
                self.reason = one_line(error)
        return logits

    def reach(self, start: int, length: int) -> None:
        super().reach(start, length)
        self.tensors = None

    def _tensors(self) -> list[Tensor]:
        """Everything but the arguments, handed in anew each time: a trace that held it would never let it go."""
        if self.tensors is None:
            cached = (tensor for layer in self.slots for tensor in (layer.keys, layer.values))
            self.tensors = [self.ruler, *(weight for _, _, weight in self.weights), *cached]
        return self.tensors

    def _replay(self, n: int, ids: Tensor, start: Tensor) -> Tensor:
        with torch.jit.optimized_execution(False):  # the same sums as the model's, not fused ones
            return self.traces[n](ids, start, *self._tensors())

    def _trace(self, ids: Tensor, start: Tensor) -> Callable:
        own = self._tensors()
        self.recording = f"warming up: recording the forward of {len(ids)} rows"

        def step(ids: Tensor, start: Tensor, *tensors: Tensor) -> Tensor:
            self._lay(tensors)
            return self.step(ids, start, self.model)

        try:
            with warnings.catch_warnings():
                # Deprecated, and what succeeds it needs a C++ compiler at hand (torch.compile) or is no faster than Python (export).
                warnings.simplefilter("ignore")
                return torch.jit.trace(step, (ids, start, *own), check_trace=False)
        finally:
            self._lay(own)
            self.recording = None

    def _lay(self, tensors) -> None:
        self.ruler, *rest = tensors
        weights, cached = rest[: len(self.weights)], rest[len(self.weights) :]
        for (home, name, _), weight in zip(self.weights, weights, strict=True):
            home[name] = weight
        for layer, keys, values in zip(self.slots, cached[::2], cached[1::2], strict=True):
            layer.keys, layer.values = keys, values
