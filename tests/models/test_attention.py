"""Attention of a few queries over a long cache, against softmax written out; and its mask, against what may
be seen."""

from itertools import product

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from specdemo.runtime.attention import (
    ATTENTION_NAME,
    MAX_GROUPED_QUERIES,
    additive_mask,
    grouped_attention,
    masking,
    static_attention,
)
from tests.tiny import tiny


def written_out(query, key, value, additive, scaling):
    """query [1, H, N, d], key and value [1, G, L, d], additive mask [1, 1, N, L] -> [1, N, H, d], in
    float64."""
    each = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(each, 1).double() for tensor in (key, value))
    weights = (query.double() @ key.transpose(-1, -2) * scaling + additive.double()).softmax(-1)
    return (weights @ value).transpose(1, 2)


class Module:
    """What transformers hands in as the attention layer."""

    is_causal, training = True, False

    def __init__(self, groups):
        self.num_key_value_groups = groups


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (8, 1)])
@pytest.mark.parametrize("n", [1, 5, MAX_GROUPED_QUERIES, MAX_GROUPED_QUERIES + 1])
def test_attention(heads, groups, n):
    random = torch.Generator().manual_seed(n)
    query = torch.randn(1, heads, n, 8, generator=random)
    key, value = (torch.randn(1, groups, 96, 8, generator=random) for _ in range(2))
    allowed = torch.arange(96)[None] <= 50 + torch.arange(n)[:, None]
    additive = torch.zeros(n, 96).masked_fill(~allowed, torch.finfo(torch.float32).min)[None, None]
    output, weights = grouped_attention(Module(heads // groups), query, key, value, additive, scaling=0.3)
    assert output.shape == (1, n, heads, 8) and output.is_contiguous() and weights is None
    right = written_out(query, key, value, additive, 0.3)
    torch.testing.assert_close(output.double(), right, rtol=0, atol=1e-5)


def causal(batch, head, query, key):
    return key <= query


def sliding(batch, head, query, key):
    return (key <= query) & (key > query - 4)


@pytest.mark.parametrize("rule", [causal, sliding])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_mask_is_what_may_be_seen_in_the_models_dtype(rule, dtype):
    how = dict(mask_function=rule, allow_is_causal_skip=False, dtype=dtype)
    for start in (0, 20):
        for offset in (start, torch.tensor(start)):  # the host's position, or the device's
            got = additive_mask(5, 32, q_offset=offset, **how)
            assert got.shape == (1, 1, 5, 32) and got.dtype == dtype and got.isfinite().all()
            for i, j in product(range(5), range(32)):
                assert got[0, 0, i, j] == (0.0 if rule(0, 0, start + i, j) else masking(dtype))


def test_no_mask_where_plain_causal_attention_will_do():
    """The first tokens of a prompt; not a single query, whose one key would be masked by nothing anyway, and
    never a window."""
    assert additive_mask(6, 6, mask_function=causal) is None
    assert additive_mask(6, 6, mask_function=sliding, local_size=4) is not None
    assert additive_mask(6, 7, mask_function=causal) is not None
    assert additive_mask(6, 6, mask_function=causal, allow_is_causal_skip=False) is not None


def test_it_is_lent_to_a_model_for_a_while():
    assert ATTENTION_NAME in AttentionInterface() and ATTENTION_NAME in AttentionMaskInterface()
    config = tiny("llama").config
    own = config._attn_implementation
    with pytest.raises(ZeroDivisionError), static_attention(config):
        assert config._attn_implementation == ATTENTION_NAME
        raise ZeroDivisionError
    assert config._attn_implementation == own != ATTENTION_NAME
    config._attn_implementation = "eager"
    with static_attention(config):
        assert config._attn_implementation == "eager", "some models need theirs"
