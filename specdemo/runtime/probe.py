"""Whether a model can be run here: whether its forwards over a cache that is written by position predict what
its own forward without a cache does."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo.runtime import cuda
from specdemo.runtime.cached_head import CachedHead
from specdemo.runtime.capturable import windows_of
from specdemo.runtime.eagle3 import Eagle3Head
from specdemo.runtime.lm import CachedLM, context_of

TOKENS = 16  # on which a model is tried
COMPARED = 6  # of them: the last ones
# Parameters times tokens, for trying it beyond a sliding window. 51 million parameters and 908 tokens took
# 2.1 s on two cores of an AMD EPYC. The number for a GPU is an estimate.
MOST_WORK = 5e10
MOST_WORK_ON_GPU = 5e13

_agreed: WeakKeyDictionary[PreTrainedModel, tuple] = WeakKeyDictionary()


def agrees_with_itself(model: PreTrainedModel) -> bool:
    """Whether a cache that is written by position changes nothing in what the model predicts, also where
    rejected drafts were, and beyond the widest sliding window for which trying it costs little.

    A model that also attends to later tokens (a BERT that is no decoder), or that counts positions in its own
    way, would verify drafts by wrong logits. A model that has agreed is tried again only when its device, its
    dtype or its attention has changed. Raises what its forward raises."""
    how = (model.device, model.dtype, model.config._attn_implementation)
    if _agreed.get(model) != how:
        with torch.no_grad(), _evaluating(model):
            if not _try(model):
                return False
        _agreed[model] = how
    return True


def head_agrees_with_itself(head: Eagle3Head, target: PreTrainedModel) -> bool:
    """Whether the head predicts the same with a cache that is written by position, also where rejected drafts
    were, as in one forward over a whole text, from the target's features of it. Raises what a forward
    raises."""
    with torch.no_grad(), _evaluating(target):
        lm, cached, whole = CachedLM(target), CachedHead(head, target), CachedHead(head, target)
        lm.features = cached.features = whole.features
        ids = _tokens(lm, int(min(TOKENS, context_of(target), cached.context)))
        lm.prefill(ids)
        n = len(ids) - 1  # pairs of a token and the feature before it
        expected, said = _of_pairs(whole, ids, 0, n), _of_pairs(cached, ids, 0, n // 2)
        for start in range(n // 2, n, 2):
            _of_pairs(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
            said = torch.cat([said, _of_pairs(cached, ids, start, min(start + 2, n))])
        for each in (lm, cached, whole):
            each.free()
    expected, said = expected.double(), said.double()
    same = (said == expected) | (said.isnan() & expected.isnan())  # see _compare
    tolerance = torch.finfo(head.dtype).eps ** 0.5 * expected.nan_to_num(0, 0, 0).abs().max()
    return bool((same | ((said - expected).abs() <= tolerance)).all())


def _of_pairs(cached: CachedHead, ids: Tensor, start: int, end: int) -> Tensor:
    """The logits [end - start, V] of the pairs in these rows of the head's cache."""
    cached.reserve(end)
    tokens = ids[start + 1 : end + 1].to(cached.device)
    return cached.predict(cached.forward_true(tokens, torch.tensor(start, device=cached.device)))[1]


def _try(model: PreTrainedModel) -> bool:
    lm = CachedLM(model)
    try:
        return _compare(lm, _length(lm))
    except torch.OutOfMemoryError:  # beyond a wide window; a run reads its prompt in parts
        return _compare(lm, int(min(TOKENS, context_of(model))))
    finally:
        lm.free()


def _length(lm: CachedLM) -> int:
    """How many tokens to try the model on."""
    # On ZeroGPU models are loaded by the CPU, whatever their device says.
    on_gpu = cuda.is_cuda(lm.device) and not os.environ.get("SPACES_ZERO_GPU")
    most = (MOST_WORK_ON_GPU if on_gpu else MOST_WORK) / lm.model.num_parameters()
    beyond = (window + COMPARED + 2 for window in windows_of(lm.model))
    return int(min(max([TOKENS, *(n for n in beyond if n <= most)]), context_of(lm.model)))


def _compare(lm: CachedLM, n: int) -> bool:
    ids = _tokens(lm, n)
    kept = min(COMPARED, n)
    before, rest = ids[:-kept], ids[-kept:]
    only_rest = {"logits_to_keep": kept} if "logits_to_keep" in lm.parameters else {}
    output = lm.model(input_ids=ids[None], use_cache=False, **only_rest)
    expected = output.logits[0, -kept:].double()  # [kept, V]

    lm.prefill(before)
    logits = []
    for at in range(0, kept, 2):
        _forward(lm, rest[at:].flip(0), n - kept + at)  # a rejected draft
        logits.append(_forward(lm, rest[at : at + 2], n - kept + at))
    said = torch.cat(logits).double()  # [kept, V]
    # Broken weights predict NaN with and without the cache; the first round reports that.
    same = (said == expected) | (said.isnan() & expected.isnan())
    tolerance = lm.tolerance(expected.nan_to_num(0, 0, 0))
    off = ~(same | ((said - expected).abs() <= tolerance)).all(1)  # [kept]
    # In 16 bits, rounding can make a router choose another expert.
    return int(off.sum()) <= (0 if lm.dtype == torch.float32 else kept // 2)


def _forward(lm: CachedLM, ids: Tensor, position: int) -> Tensor:
    lm.reserve(position, position + len(ids))
    return lm.forward(ids, torch.tensor(position, device=lm.device))


def _tokens(lm: CachedLM, n: int) -> Tensor:
    """A text [n] with different tokens, one of them the padding token, from which some models count
    positions."""
    ids = (7 * torch.arange(n, device=lm.device) + 3) % lm.known_ids
    padding = getattr(lm.model.config.get_text_config(), "pad_token_id", None)
    if padding is not None and 0 <= padding < lm.known_ids:
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
