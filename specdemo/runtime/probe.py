"""What is tried before it is trusted: a model, whose forwards over a cache that is written by position must
predict what its own forward without a cache does; and a GPU, which must write what the CPU writes."""

import inspect
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specdemo import __version__
from specdemo.runtime import cuda
from specdemo.runtime.assistant import CachedAssistant
from specdemo.runtime.dflash import CachedDFlash, DFlashHead
from specdemo.runtime.eagle3 import CachedEagle3
from specdemo.runtime.heads import DraftHead
from specdemo.runtime.lm import (
    CachedLM,
    context_of,
    evaluating,
    in_training,
    logits_tolerance,
    state_of,
    windows_of,
)
from specdemo.runtime.mtp import CachedMtp
from specdemo.runtime.states import possible_rows, tried_rows

TRIED_TOKENS = 16  # on which a model is tried
COMPARED = 6  # of them: the last ones
STOPS = (0, 2, 3, 6)  # where forwards over these end: of two rows, of one, and of three
# Parameters times tokens, for trying it beyond a sliding window. 51 million parameters and 908 tokens took
# 2.1 s on two cores of an AMD EPYC. The number for a GPU is an estimate.
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


def head_agrees_with_itself(head: DraftHead, target: PreTrainedModel) -> bool:
    """Whether the head predicts the same with a cache that is written by position, also where rejected drafts
    were, as in one forward over a whole text, from the target's features of it. Raises what a forward
    raises."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, cached, whole = CachedLM(target), head.cached(target), head.cached(target)
        lm.features = cached.features = whole.features
        ids = _tokens(lm, int(min(TRIED_TOKENS, context_of(target), cached.context)))
        lm.prefill(ids)
        compare = _compare_blocks if isinstance(head, DFlashHead) else _compare_pairs
        expected, said = compare(whole, cached, ids)
        for each in (lm, cached, whole):
            each.free()
    return bool(_alike(expected, said, head.dtype).all())


def _compare_pairs(whole: CachedEagle3, cached: CachedEagle3, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What an EAGLE-3 head says of ids [N] at once, and in parts: logits [N - 1, V]."""
    n = len(ids) - 1  # pairs of a token and the feature before it
    expected, said = _of_pairs(whole, ids, 0, n), _of_pairs(cached, ids, 0, n // 2)
    for start in range(n // 2, n, 2):
        _of_pairs(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
        said = torch.cat([said, _of_pairs(cached, ids, start, min(start + 2, n))])
    return expected, said


def _compare_blocks(whole: CachedDFlash, cached: CachedDFlash, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What a DFlash head says in blocks after ids [N], once when the text is read at once, and once in parts
    with rejected blocks between them: logits [places, V]."""
    n = len(ids) - 1
    whole.reserve(n)
    whole.read(torch.arange(n, device=whole.device))
    for start in range(0, n, 3):
        _of_block(cached, ids.flip(0), start)  # a rejected block
        cached.read(torch.arange(start, min(start + 3, n), device=cached.device))
    return _of_block(whole, ids, n), _of_block(cached, ids, n)


def _of_block(cached: CachedDFlash, ids: Tensor, at: int) -> Tensor:
    """The logits [places, V] of a block whose anchor is ids[at]."""
    model, size = cached.model, cached.model.config.block_size
    cached.reserve(at + size)
    anchor = ids[at : at + 1].to(cached.device)
    hidden = cached.block(anchor, torch.tensor(at, device=cached.device), size)
    return model.for_target(model.logits(model.drafting_rows(hidden)))


def mtp_agrees_with_itself(layers: PreTrainedModel, target: PreTrainedModel) -> bool:
    """The same of a target's layers for multi-token prediction. Also whether what they are given are the
    target's last hidden states."""
    with torch.no_grad(), evaluating(in_training(target)):
        lm, cached, whole = CachedLM(target), CachedMtp(layers, target), CachedMtp(layers, target)
        lm.features = cached.features = whole.features
        ids = _tokens(lm, int(min(TRIED_TOKENS, context_of(target))))
        lm.prefill(ids)
        n = len(ids) - cached.count  # rows whose tokens are known for each of the layers
        last = target.get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        agrees = [_alike(last, cached.hidden(0, len(ids)), target.dtype)]
        expected = _of_rows(whole, ids, 0, n)
        said = _of_rows(cached, ids, 0, n // 2)
        for start in range(n // 2, n, 2):
            _of_rows(cached, ids.flip(0), start, min(start + 3, n))  # a rejected draft
            after = _of_rows(cached, ids, start, min(start + 2, n))
            said = [torch.cat(pair) for pair in zip(said, after, strict=True)]
        agrees += [_alike(*pair, target.dtype) for pair in zip(expected, said, strict=True)]
        for each in (lm, cached, whole):
            each.free()
    return _mostly(torch.cat(agrees), target.dtype)


def assistant_agrees(assistant: PreTrainedModel, target: PreTrainedModel) -> bool:
    """Whether an assistant predicts the same from the target's cache as from what the target's own forward
    shares. Raises what a forward raises."""
    with torch.no_grad(), evaluating(in_training(target)), evaluating(in_training(assistant)):
        lm, cached = CachedLM(target), CachedAssistant(assistant, target)
        lm.features = cached.features
        ids = _tokens(lm, int(min(TRIED_TOKENS, context_of(target), cached.context)))
        n = len(ids) - 1  # the position of the last token, which the assistant is given
        lm.prefill(ids[:n])
        whole = target.get_decoder()(input_ids=ids[None, :n], use_cache=False, return_shared_kv_states=True)
        shared = {
            kind: tuple(states.to(cached.device, cached.dtype) for states in both)
            for kind, both in whole.shared_kv_states.items()
        }
        _, expected = cached.forward(ids[n:], whole.last_hidden_state[0, -1:], n, shared)
        _, said = cached.forward(ids[n:], cached.hidden(n - 1), n, cached.keys_and_values(lm, n))
        for each in (lm, cached):
            each.free()
    return bool(_alike(expected, said, assistant.dtype).all())


def _of_rows(cached: CachedMtp, ids: Tensor, start: int, end: int) -> list[Tensor]:
    """The logits [end - start, V] of each layer for these positions of the target."""
    cached.reserve(end)
    hidden, logits = cached.hidden(start, end), []
    for layer in range(cached.count):
        first = start + 1 + layer
        hidden = cached.forward(layer, ids[first : first + end - start], hidden, start, first)
        logits.append(cached.predict(hidden))
    return logits


def _alike(expected: Tensor, said: Tensor, dtype: torch.dtype) -> Tensor:
    """By row of logits [N, V], whether they are the same for a model of this dtype: [N] bool. Broken weights
    predict NaN with and without the cache; the first round reports that."""
    expected, said = expected.double(), said.double()
    same = (said == expected) | (said.isnan() & expected.isnan())
    return (same | ((said - expected).abs() <= logits_tolerance(expected, dtype))).all(1)


def _of_pairs(cached: CachedEagle3, ids: Tensor, start: int, end: int) -> Tensor:
    """The logits [end - start, V] of the pairs in these rows of the head's cache."""
    cached.reserve(end)
    tokens = ids[start + 1 : end + 1].to(cached.device)
    return cached.predict(cached.forward_true(tokens, torch.tensor(start, device=cached.device)))[1]


def _is_causal_at_any_length(model: PreTrainedModel) -> bool:
    """Whether a token is predicted the same with and without others after it, where its config says that
    rotary positions may change. Few tokens show that, however long the text would be."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return True
    for length in dict.fromkeys(_lengths_in(model.config.get_text_config().to_dict())):
        end = int(min(length + COMPARED, context_of(model)))
        positions = torch.arange(max(0, end - 2 * COMPARED), end, device=model.device)  # [n]
        ids, kept = (7 * positions + 3) % model.get_input_embeddings().weight.shape[0], len(positions) // 2
        # The shorter one first: a longer text leaves "dynamic" frequencies behind.
        said, expected = (
            model(input_ids=ids[None, :n], position_ids=positions[None, :n], use_cache=False).logits[0, :kept]
            for n in (kept, len(positions))
        )
        if not _mostly(_alike(expected, said, model.dtype), model.dtype):
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
    """With layers that keep a state, also finds out how many rows its forwards may have."""
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
    ids = _tokens(lm, n)
    kept = min(COMPARED, n)
    before, rest = ids[:-kept], ids[-kept:]
    only_rest = {"logits_to_keep": kept} if "logits_to_keep" in lm.parameters else {}
    # First: a shorter forward brings "dynamic" frequencies back that a longer text of its owner has left.
    lm.prefill(before)
    output = lm.model(input_ids=ids[None], use_cache=False, **only_rest)
    expected = output.logits[0, -kept:]  # [kept, V]

    logits = []
    for start, end in pairwise(STOPS):
        if start < kept:
            _forward(lm, rest[start:].flip(0), n - kept + start)  # a rejected draft
            logits.append(_forward(lm, rest[start:end], n - kept + start))
    return _mostly(_alike(expected, torch.cat(logits), lm.dtype), lm.dtype)


def _mostly(same: Tensor, dtype: torch.dtype) -> bool:
    """Of rows [N] bool, all; in 16 bits half of them, where rounding can make a router choose another
    expert."""
    return int((~same).sum()) <= (0 if dtype == torch.float32 else len(same) // 2)


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


DIFFERS = (
    "{} writes another text than the CPU with the embedded pair in float32, where both should be equal (from "
    "token {} on): its numbers may be wrong. python -m specdemo doctor says more"
)
NOT_COMPARED = "the text of {} could not be compared with the CPU's: {}"
_lock = threading.RLock()  # the comparison runs pairs itself
_known: dict[str, str | None] = {}  # GPU and versions -> what is wrong


def difference(device: torch.device, write: Callable[[str], list[int]]) -> str | None:
    """What is wrong with the GPU's text, in a sentence; None if nothing is. write: the ids of a greedy text
    in float32, written on the device of that name."""
    name = torch.cuda.get_device_name(device)
    key = f"{name}, specdemo {__version__}, torch {torch.__version__}, transformers {version('transformers')}"
    with _lock:
        if key in _known:
            return _known[key]
        _known[key] = None  # so that the runs of the comparison are not compared themselves
        if key in _remembered():
            return None
        try:
            ours, theirs = write(str(device)), write("cpu")
        except Exception as error:
            _known[key] = NOT_COMPARED.format(name, f"{type(error).__name__}: {error}")
            return _known[key]
        if ours == theirs:
            _remember(key)
        else:
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            first = next(i for i, (a, b) in enumerate(pairs) if a != b)
            _known[key] = DIFFERS.format(name, first + 1)
        return _known[key]


def _file() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "specdemo" / "gpus.json"


def _remembered() -> list[str]:
    """GPUs and versions whose text was right."""
    with suppress(OSError, ValueError):
        keys = json.loads(_file().read_text(encoding="utf-8"))
        return keys if isinstance(keys, list) else []
    return []


def _remember(key: str) -> None:
    with suppress(OSError):  # then it is tried again in the next process
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(json.dumps([*_remembered(), key], indent=1), encoding="utf-8")
