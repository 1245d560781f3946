"""What is tried before it is trusted: a model, whose forwards over a cache that is written by position must
predict what its own forward without a cache does; and its static forward, which must do so without a look at
its own numbers before it can be captured."""

import inspect
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdemo.errors import in_short
from specdemo.runtime import cuda
from specdemo.runtime.agreement import agree, check_alike
from specdemo.runtime.lm import CachedLM, context_of, state_of, windows_of
from specdemo.runtime.shared import evaluating, in_training
from specdemo.runtime.states import possible_rows, tried_rows
from specdemo.runtime.weights import rounds_activations

TRIED_TOKENS = 16  # on which a model is tried
COMPARED = 6  # of them: the last ones
STOPS = (0, 2, 3, 6)  # where forwards over these end: of two rows, of one, and of three
# The most parameters times tokens for trying a model beyond a sliding window. 51 million parameters and 908
# tokens took 2.1 s on two cores of an AMD EPYC. The number for a GPU is an estimate.
MOST_WORK = 5e10
MOST_WORK_ON_GPU = 5e13

_agreed: WeakKeyDictionary[PreTrainedModel, tuple] = WeakKeyDictionary()


def agrees_with_itself(model: PreTrainedModel) -> bool:
    """Whether a cache that is written by position changes nothing in what the model predicts, also where
    rejected drafts were, beyond the widest sliding window for which trying it costs little, and where its
    rotary positions may change with the length of the text.

    A model that also attends to later tokens (a BERT that is no decoder), or that counts positions in its own
    way, would verify drafts by wrong logits. A model that has agreed is tried again only in another state.
    Raises what its forward raises."""
    state = state_of(model)
    if _agreed.get(model) != state:
        with torch.no_grad(), evaluating(in_training(model)):
            if not (_is_causal_at_any_length(model) and _try(model)):
                return False
        _agreed[model] = state
    return True


def _compared_as(model: PreTrainedModel) -> torch.dtype:
    """The dtype by whose rounding forwards of this model may differ."""
    return torch.bfloat16 if rounds_activations(model) else model.dtype


def _is_causal_at_any_length(model: PreTrainedModel) -> bool:
    """Whether a token is predicted the same with and without others after it, where its config says that
    rotary positions may change. Few tokens show that, however long the text would be."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return True
    for length in dict.fromkeys(_lengths_in(model.config.get_text_config().to_dict())):
        end = int(min(length + COMPARED, context_of(model)))
        positions = torch.arange(max(0, end - 2 * COMPARED), end, device=model.device)  # [n]
        ids, kept = (7 * positions + 3) % model.get_input_embeddings().weight.shape[0], len(positions) // 2
        # The shorter text comes first: a longer one leaves "dynamic" frequencies behind.
        alone, expected = (
            model(input_ids=ids[None, :n], position_ids=positions[None, :n], use_cache=False).logits[0, :kept]
            for n in (kept, len(positions))
        )
        if not agree([(expected, alone)], _compared_as(model), mostly=True):
            return False
    return True


def _lengths_in(settings: dict) -> Iterator[int]:
    """The lengths in a config up to which a model was trained before its rotary positions were scaled."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _lengths_in(value)
        elif key == "original_max_position_embeddings" and isinstance(value, int):
            yield value


def _try(model: PreTrainedModel) -> bool:
    """Whether the model passes. With layers that keep a state, also finds out how many rows its forwards may
    have."""
    lm = CachedLM(model)
    if lm.states is None:
        return _tried(lm)
    for rows in possible_rows(model):
        lm.states.rows = rows
        if _tried(lm):
            tried_rows[model] = rows
            return True
        lm = CachedLM(model)
    return False


def _tried(lm: CachedLM) -> bool:
    try:
        return _compare(lm, _length(lm))
    except torch.OutOfMemoryError:  # beyond a wide window; a run reads its prompt in parts
        return _compare(lm, int(min(TRIED_TOKENS, context_of(lm.model))))
    finally:
        lm.free()


def _length(lm: CachedLM) -> int:
    """How many tokens to try the model on."""
    # On ZeroGPU models are loaded by the CPU, whatever their device says.
    on_gpu = cuda.is_cuda(lm.device) and not os.environ.get("SPACES_ZERO_GPU")
    most = (MOST_WORK_ON_GPU if on_gpu else MOST_WORK) / lm.model.num_parameters()
    beyond = (window + COMPARED + 2 for window in windows_of(lm.model))
    return int(min(max([TRIED_TOKENS, *(n for n in beyond if n <= most)]), context_of(lm.model)))


def _compare(lm: CachedLM, n: int) -> bool:
    ids = tried_tokens(lm, n)
    kept = min(COMPARED, n)
    before, rest = ids[:-kept], ids[-kept:]
    only_rest = {"logits_to_keep": kept} if "logits_to_keep" in lm.parameters else {}
    # The prefill comes first: a shorter forward brings "dynamic" frequencies back that a longer text of its
    # owner has left.
    lm.prefill(before)
    output = lm.model(input_ids=ids[None], use_cache=False, **only_rest)
    expected = output.logits[0, -kept:]  # [kept, V]

    logits = []
    for start, end in pairwise(STOPS):
        if start < kept:
            _forward(lm, rest[start:].flip(0), n - kept + start)  # a rejected draft
            logits.append(_forward(lm, rest[start:end], n - kept + start))
    return agree([(expected, torch.cat(logits))], _compared_as(lm.model), mostly=True)


def _forward(lm: CachedLM, ids: Tensor, position: int) -> Tensor:
    lm.reserve(position, position + len(ids))
    return lm.forward(ids, torch.tensor(position, device=lm.device))


def tried_tokens(lm: CachedLM, n: int) -> Tensor:
    """A text [n] with different tokens, one of them the padding token, from which some models count
    positions."""
    ids = (7 * torch.arange(n, device=lm.device) + 3) % lm.known_ids
    padding = getattr(lm.model.config.get_text_config(), "pad_token_id", None)
    if padding is not None and 0 <= padding < lm.known_ids:
        ids[n // 3] = padding
    return ids


LOOKS = "its forward reads tensor values on the host ({})"
OTHER_MASKS = "it makes masks of its own from the length of the cache"


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
        return in_short(error)
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
