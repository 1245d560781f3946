"""Steps as CUDA graphs: captured once and replayed, so that their thousands of launches cost the host one
call. Each graph is compared with the step that it was made from before it is used; and of each model it is
tried first whether its forward can be captured at all: whether a static forward predicts what a plain one
does, without looking at its own numbers on the way."""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdemo.errors import one_line
from specdemo.events import Gamma
from specdemo.runtime import cuda
from specdemo.runtime.agreement import check_alike, disagreement
from specdemo.runtime.cache import Cached
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import CachedLM, context_of, windows_of
from specdemo.runtime.steps import AUTO_ROWS, In, Out, StepInput, form_of, tensors_of, with_tensors
from specdemo.runtime.weights import weights_address
from specdemo.words.message import Message, message

# What CUDA says when a capture was ended by another thread's call, or by a call of its own that it forbids.
CAPTURE_INTERRUPTED = (
    "operation not permitted when stream is capturing",
    "operation failed due to a previous error during capture",
)
LOOKS = "its forward reads tensor values on the host ({})"
OTHER_MASKS = "it makes masks of its own from the length of the cache"
OTHERWISE = "its graph says something other than the step itself ({})"
PASSING = (*CAPTURE_INTERRUPTED, "out of memory")  # another time, the same capture may succeed
CAPTURES_TRIED = 2  # of a step whose graph says something else


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

    @property
    def fault(self) -> str | None:
        """Why a step is not captured; None if all are."""
        return self.blocker or next(iter(self.refused.values()), None)

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
        with _collector_off(), cuda.capturing(graph, device, self._pool):
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
            return one_line(cause)
    return one_line(error)


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


@torch.no_grad()
def capture_blocker(model: PreTrainedModel) -> str | None:
    """Why the model cannot be captured, tried on a few tokens; None if it can."""
    lm = CachedLM(model)
    if lm.states is not None:
        return "its recurrent layers keep a state, which is saved and put back between its forwards"
    n = int(min(6, context_of(model)))
    ids = positions = torch.arange(n, device=lm.device)
    lm.reserve(0, n)
    expected = lm.forward(ids, positions[0])  # [n, V]
    lm.begin_run(static=True)
    # Some models measure a window from the end of the visible cache.
    lm.reserve(0, max((size for size in windows_of(model) if size <= 4096), default=0) + 64)
    try:
        for rows in (n, 2, 1):
            with ForbidReadingTensors(), ForbidDataDependence():
                logits = lm.forward(ids[-rows:], positions[-rows])
            check_alike(expected[-rows:], logits, lm.dtype, OTHER_MASKS)
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
