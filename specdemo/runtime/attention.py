"""Masks and attention for a few queries over a long cache, without a look at the device.

transformers' own mask asks the device whether it can be left out, and its attention copies grouped keys and values once per
query head for every forward of several tokens. Both are replaced through transformers' own registries, under one name.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "specdemo"
LOCK = threading.RLock()
FEW = 32  # queries; from there on (a prefill) a mask for every group costs more than repeated keys


def mask(
    q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, allow_is_causal_skip=True, local_size=None, dtype=torch.float32,
    device="cpu", **_,
) -> Tensor | None:  # fmt: skip
    """What `mask_function` allows, as an additive mask [1, 1, N, L]; None where plain causal attention will do (the first
    tokens of a prompt). Called by transformers with its own names."""
    if allow_is_causal_skip and local_size is None and q_length == kv_length and q_length > 1:
        return None
    queries = torch.arange(q_length, device=device)[:, None] + q_offset  # [N, 1]
    keys = torch.arange(kv_length, device=device)[None] + kv_offset  # [1, L]
    zero = torch.zeros((), dtype=torch.long, device=device)
    allowed = mask_function(zero, zero, queries, keys)  # [N, L]
    return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(
        ~allowed, torch.finfo(dtype).min
    )[None, None]


def attend(
    module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling=None, **kwargs
):
    """query [1, H, N, d], key and value [1, G, L, d] -> [1, N, H, d]. For a few queries the H/G that share a key lie side by
    side as more rows of one, so that the cache is read once and never copied."""
    heads, n, d = query.shape[1:]
    groups = key.shape[1]
    if attention_mask is None or heads == groups or n > FEW:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = query.reshape(1, groups, -1, d)  # [1, G, H/G * N, d]
    output = torch.nn.functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=attention_mask.repeat(1, 1, heads // groups, 1), scale=scaling
    )
    return output.reshape(1, heads, n, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask)


@contextmanager
def attention_of(config: PretrainedConfig) -> Iterator[None]:
    """The model's own attention, unless it is eager (which some models need, and whose mask is harmless), is this one for a
    while."""
    parts = {"": config} | {
        name: part for name in config.sub_configs if (part := getattr(config, name, None)) is not None
    }
    own = {name: part._attn_implementation for name, part in parts.items()}
    with LOCK:  # two pairs may share a model
        config._attn_implementation = {
            name: "eager" if before == "eager" else NAME for name, before in own.items()
        }
        try:
            yield
        finally:
            config._attn_implementation = own
