"""TorchScript captures of a model's forward on a CPU, which spare the time that Python takes for it."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import capture_blocker, is_dense, one_line
from specdemo.runtime.lm import CachedLM

# Of a forward: its number of rows, and of which layers it keeps features (see Features).
ForwardShape = tuple[int, tuple[int, ...]]


class TorchScriptLM(CachedLM):
    """An `LM` on a CPU that replays captures of its static forwards: one for each number of rows (with and
    without features), made when that number has come up often enough to be worth it, and valid for any
    kv_length. For each kv_length the first replay is compared with the model itself, bit by bit, before the
    capture is trusted."""

    CAPTURE_AFTER = 8  # forwards of one number of rows
    captures_itself = True

    def __init__(self, model: PreTrainedModel, clock: Clock):
        super().__init__(model)
        self.clock = clock
        self.captures: dict[ForwardShape, Callable] = {}
        self.trusted: set[tuple[ForwardShape, int]] = set()  # with a kv_length
        self._seen: Counter[ForwardShape] = Counter()
        self._checked = False
        self._places: list[tuple[int, str]] = []  # of the weights

    def begin_run(self, static: bool) -> None:
        """Finds the weights again, which may have moved since the last run. static: False runs the model as
        it is."""
        super().begin_run(static and self.blocker is None)
        if not self.static:
            return
        owners = [owner for module in self.model.modules() for owner in (module._parameters, module._buffers)]
        owners += self.fused.own_weights() if self.fused is not None else ()
        self._weights = [
            (owner, name, weight) for owner in owners for name, weight in owner.items() if weight is not None
        ]
        places = [(id(owner), name) for owner, name, _ in self._weights]
        if places != self._places:  # a capture takes them as its inputs
            self._places = places
            self.captures.clear()
            self.trusted.clear()
        if not all(is_dense(weight) for _, _, weight in self._weights):
            self.blocker = "quantised weights cannot be captured on a CPU"
        elif not self._checked:
            self.blocker, self._checked = capture_blocker(self.model), True
        super().begin_run(self.blocker is None)
        self._inputs: list[Tensor] | None = None

    def _choose_forward(self) -> None:
        super()._choose_forward()
        self._checked = False

    def warm_up(self, rows: int) -> None:
        for count in (1, rows):
            self.capture_soon(count)
        super().warm_up(rows)

    def capture_soon(self, rows: int) -> None:
        """This number of rows is sure to come up: its next forward is captured, and the capture is trusted
        after the second."""
        self._seen[self._shape(rows)] = self.CAPTURE_AFTER

    def _shape(self, rows: int) -> ForwardShape:
        return rows, () if self.features is None else self.features.layer_ids

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        shape = self._shape(len(ids))
        if not self.static or self.blocker:
            return super().forward(ids, start)
        if (shape, self.kv_length) in self.trusted:
            return self._replay(shape, ids, start)
        if shape in self.captures:
            return self._first_replay(shape, ids, start)
        logits = self.static_forward(ids, start)
        self._seen[shape] += 1
        if self._seen[shape] >= self.CAPTURE_AFTER:
            with self._blocking_errors(), self.clock.paused():
                self.captures[shape] = self._capture(ids, start)
        return logits

    def _first_replay(self, shape: ForwardShape, ids: Tensor, start: Tensor) -> Tensor:
        """The first replay for a kv_length. Only the replay is in the clock: later ones do without the model,
        whose forward comes last, so that the cache is right even if the replay was wrong."""
        replayed = None
        with self._blocking_errors():
            replayed = self._replay(shape, ids, start)
        with self.clock.paused():
            logits = self.static_forward(ids, start)
        if replayed is not None:
            if torch.equal(replayed, logits):
                self.trusted.add((shape, self.kv_length))
            else:
                self.blocker = "what was captured predicts something other than the model itself"
        return logits

    @contextmanager
    def _blocking_errors(self) -> Iterator[None]:
        """An error ends all capturing, and never the run."""
        try:
            yield
        except Exception as error:
            self.blocker = one_line(error)

    def reserve(self, start: int, length: int) -> None:
        super().reserve(start, length)
        self._inputs = None

    def _capture_inputs(self) -> list[Tensor]:
        """Everything but the arguments. A capture takes them as inputs, because one that held them would
        never free them."""
        if self._inputs is None:
            cached = (tensor for layer in self.layers for tensor in (layer.keys, layer.values))
            features = () if self.features is None else (self.features.states,)
            weights = (weight for _, _, weight in self._weights)
            self._inputs = [self.kv_ruler, *features, *weights, *cached]
        return self._inputs

    def _replay(self, shape: ForwardShape, ids: Tensor, start: Tensor) -> Tensor:
        with torch.jit.optimized_execution(False):  # the same sums as the model's, not fused ones
            return self.captures[shape](ids, start, *self._capture_inputs())

    def _capture(self, ids: Tensor, start: Tensor) -> Callable:
        own = self._capture_inputs()
        self.warming_up = f"warming up: capturing the forward of {len(ids)} rows"

        def forward(ids: Tensor, start: Tensor, *inputs: Tensor) -> Tensor:
            self._install(inputs)
            return self.static_forward(ids, start)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # sizes are read on the host: the first replays are compared
                # torch.jit.trace does these two, but registers the function with the process, which never
                # frees it. torch.compile needs a C++ compiler, and torch.export is no faster than Python.
                arguments = (ids, start, *own)
                graph, _ = torch._C._create_graph_by_tracing(forward, arguments, lambda _: "", True, False)
                return torch._C._create_function_from_graph("forward", graph)
        finally:
            self._install(own)
            self.warming_up = None

    def _install(self, inputs: list[Tensor] | tuple[Tensor, ...]) -> None:
        """Puts the tensors of `_capture_inputs` where the model's forward finds them."""
        self.kv_ruler, *rest = inputs
        if self.features is not None:
            self.features.states, *rest = rest
        weights, cached = rest[: len(self._weights)], rest[len(self._weights) :]
        for (owner, name, _), weight in zip(self._weights, weights, strict=True):
            owner[name] = weight
        for layer, keys, values in zip(self.layers, cached[::2], cached[1::2], strict=True):
            layer.keys, layer.values = keys, values
