"""Whether a model can be recorded: whether its forward says the same over a longer span of the cache than it holds, and without
looking at its own numbers on the way."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdemo.runtime.lm import CachedLM


@torch.no_grad()
def unfit(model: PreTrainedModel) -> str | None:
    """Why the model cannot be recorded, tried on a few tokens; None if it can."""
    lm = CachedLM(model)
    n = int(min(6, lm.last_position + 1))
    ids = places = torch.arange(n, device=lm.device)
    lm.reach(0, n)
    expected = lm.forward(ids, places[0]).double()  # [n, V]
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * expected.abs().max()
    lm.exact = False
    lm.reach(
        0, _widest_window(model) + 64
    )  # some models measure a window from the end of what the cache shows
    try:
        for rows in (n, 2, 1):
            with NoLookAtTensors(), NoLookInside():
                logits = lm.forward(ids[-rows:], places[-rows])
            if not (logits.double() - expected[-rows:]).abs().max() <= tolerance:
                return "it makes masks of its own from the length of the cache"
    except Exception as error:
        return one_line(error)
    return None


def _widest_window(model: PreTrainedModel) -> int:
    settings = model.config.get_text_config().to_dict().items()
    return max(
        (value for key, value in settings if "window" in key and isinstance(value, int) and value <= 4096),
        default=0,
    )


class NoLookAtTensors(TorchFunctionMode):
    """Python code that looks at the numbers in a tensor gets an error."""

    LOOKS = {
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
        "__iter__",
    }

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in self.LOOKS:
            raise RuntimeError(LOOKED.format(function.__name__))
        return function(*args, **(kwargs or {}))


class NoLookInside(TorchDispatchMode):
    """So does an operation that has to know the numbers before it can tell what comes out."""

    LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "equal", "is_nonzero"}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in self.LOOKS or by_mask:
            raise RuntimeError(LOOKED.format(name))
        return operation(*args, **(kwargs or {}))


LOOKED = "it looks at its own numbers on the way ({})"


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
