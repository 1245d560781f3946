"""Masks and attention for static forwards: a few queries over a long cache, without a look at the device.

torch's attention with a mask gives each key head to one block of a GPU, which reads all keys one after the
other: 8 blocks on the 132 processors of an H200. So a long cache is seen as parts, which other blocks read at
the same time, and their outputs are combined by their log-sum-exp (flash-decoding, Dao et al. 2023).

transformers' own mask asks the device whether it can be left out, and its attention copies grouped keys and
values once per query head in every forward of several tokens. Both are replaced through transformers' own
registries, under one name."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdemo.runtime import cuda

ATTENTION_NAME, EAGER_NAME = "specdemo", "specdemo_eager"
LOCK = threading.RLock()
MAX_GROUPED_QUERIES = 32  # beyond that (a prefill) a mask for every group costs more than repeated keys

# Keys from which on attention is split: combining the parts takes four launches. On an NVIDIA H100 1,024 keys
# took 44 us as a whole and 27 in parts, 512 took 24 and 29 (2026-11-26).
SPLIT_FROM = 1024
SMALLEST_PART = 128  # keys: torch's kernel reads as many at a time, or 64
BLOCKS_A_PROCESSOR = 2  # of either kernel, which fit on one at the same time
ALIGNED = 8  # head_dim and the keys of a part are multiples of it, or that kernel refuses them


@dataclass(frozen=True)
class Branches:
    """The newest rows of a cache, W of them, that do not all follow each other: branches of a tree. The last
    N of the W are those of a forward, which sees the text before the W rows, and of these only some.

    depths [W] int64: how many places after the first of them a row stands. A row's place in the text is told
    by it, and not by where the cache has the row. hidden [N, W] bool: which rows are hidden from each."""

    depths: Tensor
    hidden: Tensor

    def positions(self, slots: Tensor) -> Tensor:
        """The places in the text of a forward's rows, which the cache has at `slots` [N]."""
        rows, newest = self.hidden.shape
        return slots[:1] - (newest - rows) + self.depths[newest - rows :]

    def seen(self, slots: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """keys [L] = 0, 1, ... -> the places in the text of the cache's rows [L], and which of them are
        hidden from each of the forward's rows, [N, L]. What is left over after the newest rows has a later
        place than any row."""
        rows, newest = self.hidden.shape
        first = slots[:1] - (newest - rows)  # [1]
        at = first + keys[:newest]
        places = keys.index_copy(0, at, first + self.depths)
        hidden = torch.zeros(rows, len(keys), dtype=torch.bool, device=keys.device)
        return places, hidden.index_copy(1, at, self.hidden)


def masking(dtype: torch.dtype) -> float:
    """What a mask adds where nothing may be seen: half of the lowest number, because torch's CUDA kernel
    multiplies scores by log2(e), and says of a row whose scores have all become -inf that its log-sum-exp is
    0."""
    return torch.finfo(dtype).min / 2


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """hidden [R, L] bool -> the mask [1, 1, R, L] that attention adds."""
    return hidden.to(dtype).mul_(masking(dtype))[None, None]


class _OfThread(threading.local):
    branches: Branches | None = None  # of the forward that runs in this thread


_of_thread = _OfThread()


def additive_mask(
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    allow_is_causal_skip: bool = True,
    local_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **_: object,
) -> Tensor | None:
    """What `mask_function` allows, as an additive mask [1, 1, N, L]; None where plain causal attention of the
    last N of L tokens does the same (a prompt). Called by transformers, with its own argument names."""
    are_last = isinstance(q_offset, int) and q_offset + q_length == kv_length
    is_causal = allow_is_causal_skip and local_size is None and _of_thread.branches is None
    if is_causal and are_last and q_length > 1:
        return None
    queries = torch.arange(q_length, device=device) + q_offset  # [N]
    keys = torch.arange(kv_length, device=device) + kv_offset  # [L]
    hidden = None
    if _of_thread.branches is not None:
        slots, queries = queries, _of_thread.branches.positions(queries)
        keys, hidden = _of_thread.branches.seen(slots, keys)
    zero = torch.zeros((), dtype=torch.long, device=device)
    allowed = mask_function(zero, zero, queries[:, None], keys[None])  # [N, L]
    return additive(~allowed if hidden is None else ~allowed | hidden, dtype)


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """query [1, H, N, d], key and value [1, G, L, d] -> [1, N, H, d]. For a few queries, the H/G heads that
    share a key become more rows of one head, so that the cache is read once and never copied."""
    heads, n, d = query.shape[1:]
    groups, length = key.shape[1:3]
    if attention_mask is None and 1 < n < length and getattr(module, "is_causal", True):
        return attention_of_last(query, key, value, scaling), None
    if attention_mask is None or heads == groups or n > MAX_GROUPED_QUERIES:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = query.reshape(1, groups, -1, d)  # [1, G, H/G * N, d]
    mask = attention_mask.repeat(1, 1, heads // groups, 1)
    output = masked_attention(rows, key, value, mask, scaling)
    return output.reshape(1, heads, n, -1).transpose(1, 2).contiguous(), None


def attention_of_last(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Causal attention of the last N of L tokens, without a mask: with one torch's fastest kernel is refused.
    query [1, H, N, d], key and value [1, G, L, d] -> [1, N, H, d]"""
    shared_by = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(shared_by, dim=1) for each in (key, value))  # [1, H, L, d]
    bias = causal_lower_right(query.shape[2], key.shape[2])
    output = scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    return output.transpose(1, 2).contiguous()


def masked_attention(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None = None
) -> Tensor:
    """rows [1, G, R, d], keys and values [1, G, L, d], mask [1, 1, R, L] (see `additive`) -> [1, G, R, d].
    scale: what the scores are multiplied by; None: 1 / sqrt(d)."""
    parts = parts_of(keys)
    if parts == 1:
        return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
    return split_attention(rows, keys, values, mask, scale, parts)


def parts_of(keys: Tensor) -> int:
    """The number of parts that attention splits these keys [1, G, L, d] into: 1, not at all, on a CPU, and
    where torch's CUDA kernel would refuse them. It looks at shapes alone, so that it can be asked in a
    capture."""
    if not cuda.is_cuda(keys.device):
        return 1
    _, groups, length, d = keys.shape
    if length < SPLIT_FROM or d % ALIGNED:
        return 1
    processors, capability = processors_of(keys.device)
    if keys.dtype == torch.bfloat16 and capability < 8:
        return 1
    return number_of_parts(length, groups, processors)


@cache
def processors_of(device: torch.device) -> tuple[int, int]:
    """The GPU's multiprocessors, and the first number of its compute capability."""
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major


def number_of_parts(length: int, groups: int, processors: int) -> int:
    """The parts of `length` keys when a GPU with so many multiprocessors attends to them with `groups` key
    heads: the most, by powers of two, that it can read at the same time, of SMALLEST_PART keys or more."""
    parts = 1
    while (
        length >= max(SPLIT_FROM, 2 * parts * SMALLEST_PART)
        and length % (2 * parts * ALIGNED) == 0
        and 2 * parts * groups <= BLOCKS_A_PROCESSOR * processors
    ):
        parts *= 2
    return parts


def split_attention(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, parts: int
) -> Tensor:
    """`masked_attention` with the L keys seen as `parts` parts of the same length, without a copy. Where a
    row sees nothing of a part, that part's weight is 0."""
    groups, n = rows.shape[1:3]
    outputs, logsumexp = _attend_each(
        rows.expand(parts, -1, -1, -1),
        _as_parts(keys, parts),
        _as_parts(values, parts),
        mask[0, 0].unflatten(1, (parts, -1)).transpose(0, 1)[:, None].expand(-1, groups, -1, -1),
        scale,
    )
    weights = logsumexp.softmax(0)[..., :n, None]  # [S, G, R, 1]; what the kernel has added to R is left out
    return (outputs * weights).sum(0, keepdim=True).to(rows.dtype)


def _as_parts(cached: Tensor, parts: int) -> Tensor:
    """[1, G, L, d] -> [S, G, L / S, d], the same memory."""
    return cached[0].unflatten(1, (parts, -1)).transpose(0, 1)


def _attend_each(
    rows: Tensor, keys: Tensor, values: Tensor, masks: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """rows [S, G, R, d], keys and values [S, G, P, d], masks [S, G, R, P] -> outputs [S, G, R, d], and the
    log-sum-exp of their scores, float32 [S, G, R or more]."""
    given, aten = (rows, keys, values), torch.ops.aten
    if cuda.is_cuda(rows.device):
        return aten._scaled_dot_product_efficient_attention(*given, masks, True, scale=scale)[:2]
    return aten._scaled_dot_product_flash_attention_for_cpu(*given, attn_mask=masks, scale=scale)[:2]


def own_eager_attention(module: torch.nn.Module, *given: object, **named: object) -> tuple[Tensor, object]:
    """The eager attention of the module's own model, which then has the mask of this module."""
    return sys.modules[type(module).__module__].eager_attention_forward(module, *given, **named)


AttentionInterface.register(ATTENTION_NAME, grouped_attention)
AttentionInterface.register(EAGER_NAME, own_eager_attention)
for _name in (ATTENTION_NAME, EAGER_NAME):
    AttentionMaskInterface.register(_name, additive_mask)


@contextmanager
def static_attention(config: PretrainedConfig, branches: Branches | None = None) -> Iterator[None]:
    """A context in which the model uses the attention of this module, unless its own is eager (which some
    models need, and whose mask never looks at the device). branches: those of the forward that runs in it."""
    eager = "eager" if branches is None else EAGER_NAME
    parts = {"": config} | {
        name: part for name in config.sub_configs if (part := getattr(config, name, None)) is not None
    }
    before = {name: part._attn_implementation for name, part in parts.items()}
    with LOCK:  # two pairs may share a model
        config._attn_implementation = {
            name: eager if kind == "eager" else ATTENTION_NAME for name, kind in before.items()
        }
        _of_thread.branches = branches
        try:
            yield
        finally:
            config._attn_implementation, _of_thread.branches = before, None
