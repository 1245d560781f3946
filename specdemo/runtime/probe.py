"""Whether a model can be run here: whether its forwards over a cache that is written by position predict what
its own forward without a cache does."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime.capturable import widest_window
from specdemo.runtime.lm import CachedLM, context_of

TOKENS = 16  # on which a model is tried
COMPARED = 6  # of them: the last ones
MOST_WORK = {"cpu": 5e10, "cuda": 5e13}  # parameters times tokens, for trying it beyond its sliding window

_tried: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def agrees_with_itself(model: PreTrainedModel) -> bool:
    """Whether a cache that is written by position changes nothing in what the model predicts, also where
    rejected drafts were, and beyond the model's sliding window if that takes seconds at most.

    A model that also attends to later tokens (a BERT that is no decoder), or that counts positions in its own
    way, would verify drafts by wrong logits. Each model is tried once. Raises what its forward raises."""
    if model not in _tried:
        with torch.no_grad(), _evaluating(model):
            _tried[model] = _try(model)
    return _tried[model]


def _try(model: PreTrainedModel) -> bool:
    lm = CachedLM(model)
    ids = _tokens(model, lm)  # [n]
    kept = min(COMPARED, len(ids))
    before, rest = ids[:-kept], ids[-kept:]
    only_rest = {"logits_to_keep": kept} if "logits_to_keep" in lm.parameters else {}
    output = model(input_ids=ids[None], use_cache=False, **only_rest)
    expected = output.logits[0, -kept:].double()  # [kept, V]

    lm.prefill(before)
    _forward(lm, rest.flip(0), len(before))  # a rejected draft
    logits = [_forward(lm, rest[:2], len(before))]
    if kept > 2:
        logits.append(_forward(lm, rest[2:], len(before) + 2))
    off = (torch.cat(logits).double() - expected).abs().amax(1) > lm.tolerance(expected)  # [kept]
    # Not at every place: in bfloat16 a router may choose another one of two experts that are equally good.
    return int(off.sum()) <= kept // 2


def _forward(lm: CachedLM, ids: Tensor, position: int) -> Tensor:
    lm.reserve(position, position + len(ids))
    return lm.forward(ids, torch.tensor(position, device=lm.device))


def _tokens(model: PreTrainedModel, lm: CachedLM) -> Tensor:
    """A text with different tokens, one of them the padding token, from which some models count
    positions."""
    beyond = widest_window(model) + COMPARED + 2
    affordable = model.num_parameters() * beyond <= MOST_WORK[lm.device.type]
    n = int(min(max(TOKENS, beyond if affordable else 0), context_of(model)))
    ids = (7 * torch.arange(n, device=lm.device) + 3) % lm.vocab_size
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if padding is not None and 0 <= padding < lm.vocab_size:
        ids[n // 3] = padding
    return ids


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """In evaluation mode; a model in memory is left as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
