"""CUDA graphs of a round's steps: a step is captured once and replayed, so that launching it costs one call."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.capturable import one_line, unfit
from specdemo.runtime.torchscript import PLAIN


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
            self.reason = (
                "ZeroGPU runs every call in a process of its own, which a recording does not outlive"
            )

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
        lent = {
            id(output)
            for graph in self.graphs.values()
            if isinstance(graph.outputs, tuple)
            for output in graph.outputs
        }
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
