"""Whether a model's forward can be captured at all: whether a static forward predicts what a plain one does,
without looking at its own numbers on the way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdemo.errors import one_line
from specdemo.runtime.agreement import difference
from specdemo.runtime.lm import CachedLM, context_of, windows_of

LOOKS = "its forward reads tensor values on the host ({})"


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
            if different := difference(expected[-rows:], logits, lm.dtype):
                return f"it makes masks of its own from the length of the cache ({different})"
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
