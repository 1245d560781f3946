"""Masks and attention for static forwards: a few queries over a long cache, without a look at the device. And
whether torch may choose cuDNN's attention.

transformers' own mask asks the device whether it can be left out, and its attention copies grouped keys and
values once per query head in every forward of several tokens. Both are replaced through transformers' own
registries, under one name."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION_NAME = "specdemo"
LOCK = threading.RLock()
CUDNN_LOCK = threading.Lock()
MAX_GROUPED_QUERIES = 32  # beyond that (a prefill) a mask for every group costs more than repeated keys


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
    """What `mask_function` allows, as an additive mask [1, 1, N, L]; None where plain causal attention does
    the same (the first tokens of a prompt). Called by transformers, with its own argument names."""
    if allow_is_causal_skip and local_size is None and q_length == kv_length and q_length > 1:
        return None
    queries = torch.arange(q_length, device=device)[:, None] + q_offset  # [N, 1]
    keys = torch.arange(kv_length, device=device)[None] + kv_offset  # [1, L]
    zero = torch.zeros((), dtype=torch.long, device=device)
    allowed = mask_function(zero, zero, queries, keys)  # [N, L]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)[None, None]


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
    groups = key.shape[1]
    if attention_mask is None or heads == groups or n > MAX_GROUPED_QUERIES:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = query.reshape(1, groups, -1, d)  # [1, G, H/G * N, d]
    mask = attention_mask.repeat(1, 1, heads // groups, 1)
    output = torch.nn.functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(1, heads, n, -1).transpose(1, 2).contiguous(), None


_without_cudnn = 0  # how many need torch's setting to be off now
_cudnn_before = True  # what it was before them


@contextmanager
def without_cudnn() -> Iterator[None]:
    """torch's attention leaves out cuDNN's meanwhile. It prefers that on some GPUs, but cuDNN builds a plan
    for each new length of the cache, which takes tens of milliseconds.

    The setting is torch's own, for the whole process. So the first of several threads switches it off, and
    the last puts back what was there."""
    global _without_cudnn, _cudnn_before
    with CUDNN_LOCK:
        if not _without_cudnn:
            _cudnn_before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _without_cudnn += 1
    try:
        yield
    finally:
        with CUDNN_LOCK:
            _without_cudnn -= 1
            if not _without_cudnn:
                torch.backends.cuda.enable_cudnn_sdp(_cudnn_before)


AttentionInterface.register(ATTENTION_NAME, grouped_attention)
AttentionMaskInterface.register(ATTENTION_NAME, additive_mask)


@contextmanager
def static_attention(config: PretrainedConfig) -> Iterator[None]:
    """The model uses the attention of this module meanwhile, unless its own is eager (which some models need,
    and whose mask never looks at the device)."""
    parts = {"": config} | {
        name: part for name in config.sub_configs if (part := getattr(config, name, None)) is not None
    }
    own = {name: part._attn_implementation for name, part in parts.items()}
    with LOCK:  # two pairs may share a model
        config._attn_implementation = {
            name: "eager" if before == "eager" else ATTENTION_NAME for name, before in own.items()
        }
        try:
            yield
        finally:
            config._attn_implementation = own
