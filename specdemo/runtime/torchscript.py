"""TorchScript traces of a model's forward on a CPU, which spare Python's part of it."""

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.capturable import one_line, unfit
from specdemo.runtime.lm import CachedLM

PLAIN = (torch.nn.Parameter, Tensor)  # quantised weights are others


def watched(model: PreTrainedModel) -> bool:
    """Whether somebody listens to the model's forwards, or has put others in their place: a recording would pass them by."""
    hooks = torch.nn.modules.module  # those that hear every module
    return bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks) or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in model.modules()
    )


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
        self.weights = [
            (home, name, weight) for home in homes for name, weight in home.items() if weight is not None
        ]
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
                # About sizes that are read on the host. The first replays are compared with the model.
                warnings.simplefilter("ignore")
                # As torch.jit.trace, but with a compilation unit of its own. torch.jit.trace uses the unit of
                # the process, which never frees a function. (torch.compile needs a C++ compiler, and
                # torch.export is no faster than Python.)
                inputs = (ids, start, *own)
                graph, _ = torch._C._create_graph_by_tracing(step, inputs, lambda _: "", True, False)
                return torch._C._create_function_from_graph("forward", graph)
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
