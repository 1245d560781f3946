"""Attention over a long cache that is split into parts: against float64, over the same memory, and by the
rules of torch's CUDA kernel. Whole runs over parts are those of test_replay.py."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from specdemo.runtime import attention
from specdemo.runtime.attention import (
    additive,
    masked_attention,
    masking,
    number_of_parts,
    parts_of,
    split_attention,
)
from specdemo.runtime.cache import kv_length_for
from tests.fake_cuda import FakeCuda, Properties, install

SHAPES = {  # of the catalogue: query heads, key heads, head_dim
    "Llama 3.2 3B": (24, 8, 128),
    "Llama 3.2 1B": (32, 8, 64),
    "SmolLM2 135M": (9, 3, 64),
    "SmolLM2 1.7B": (32, 32, 64),
}
H200, T4 = 132, 40  # multiprocessors
CAPACITY = 64  # positions that a cache has beyond those that attention covers


def inputs(shape, n, length, fill, window=None, dtype=torch.float32, seed=0):
    """rows [1, G, H/G * n, d] of queries at the last n positions below `fill`; keys and values [1, G, length,
    d], the first of a longer cache; the mask."""
    heads, groups, d = shape
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, groups, heads // groups * n, d, generator=random).to(dtype)
    cached = torch.randn(2, 1, groups, length + CAPACITY, d, generator=random).to(dtype)
    own = torch.arange(fill - n, fill).repeat(heads // groups)[:, None]  # [R, 1]
    visible = torch.arange(length)
    hidden = visible > own
    if window is not None:
        hidden = hidden | (visible <= own - window)
    return rows, *cached[:, :, :, :length], additive(hidden, dtype)


def exact(rows, keys, values, mask):
    """In float64, key head by key head: [1, G, R, d]."""
    heads = []
    for q, k, v in zip(rows[0].double(), keys[0].double(), values[0].double(), strict=True):
        scores = q @ k.T / math.sqrt(q.shape[-1]) + mask[0, 0].double()
        heads.append(scores.softmax(-1) @ v)
    return torch.stack(heads)[None]


def errors(output, expected):
    """The largest, and the root of the mean square."""
    error = output.double() - expected
    return error.abs().max().item(), error.square().mean().sqrt().item()


def assert_as_good_as_unsplit(arguments, parts, more=1.15):
    """Its mean error is at most `more` times that of unsplit attention; the largest is a matter of luck."""
    output, expected = split_attention(*arguments, None, parts), exact(*arguments)
    assert output.dtype == arguments[0].dtype
    unsplit = scaled_dot_product_attention(*arguments[:3], attn_mask=arguments[3])
    ours, theirs = errors(output, expected), errors(unsplit, expected)
    assert ours[1] <= max(1e-8, more * theirs[1]) and ours[0] <= max(2e-7, 2 * theirs[0])


@pytest.mark.parametrize(
    ("dtype", "more"), [(torch.float32, 1.15), (torch.bfloat16, 1.3), (torch.float16, 1.3)]
)
def test_a_long_cache_in_as_many_parts_as_a_gpu_takes(dtype, more):
    """In 16 bits a fifth is added by the rounding of each part."""
    shape = SHAPES["Llama 3.2 3B"]
    parts = number_of_parts(4096, shape[1], H200)
    assert parts == 32
    for n, fill, window in ((1, 700, None), (5, 3000, None), (5, 3000, 600)):
        assert_as_good_as_unsplit(inputs(shape, n, 4096, fill, window, dtype), parts, more)


def test_every_length_of_a_cache_on_a_gpu_is_divided_as_the_kernel_asks():
    """And into no more parts than its processors read at the same time, two each, of 128 keys or more."""
    for length in {kv_length_for(length, torch.device("cuda")) for length in range(1, 70_000, 100)}:
        for groups in (1, 3, 8, 32, 96):
            for processors in (H200, T4):
                parts = number_of_parts(length, groups, processors)
                assert length % (8 * parts) == 0 and (parts == 1 or length // parts >= 128)
                assert parts == 1 or parts * groups <= 2 * processors
            assert (number_of_parts(length, groups, H200) > 1) == (length >= 1024)


@pytest.fixture
def gpu(monkeypatch):
    """Every device counts as a GPU."""
    return install(monkeypatch, FakeCuda())


@pytest.mark.parametrize(
    ("name", "n", "dtype"), [("SmolLM2 135M", 17, torch.float32), ("Llama 3.2 3B", 5, torch.bfloat16)]
)
def test_by_the_rules_of_the_cuda_kernel(gpu, name, n, dtype):
    for fill, window in ((100, None), (900, None), (1024, 300)):
        arguments = inputs(SHAPES[name], n, 1024, fill, window, dtype)
        assert parts_of(arguments[1]) == 8
        output, expected = masked_attention(*arguments), exact(*arguments)
        assert output.shape == expected.shape and output.dtype == dtype
        assert errors(output, expected)[0] < (1e-6 if dtype == torch.float32 else 0.02)


def test_the_lowest_number_as_a_mask_would_be_wrong_there(gpu):
    """In base 2 it overflows; the kernel then says that a part of which nothing is seen has the weight of a
    key."""
    *arguments, mask = inputs(SHAPES["SmolLM2 135M"], 1, 1024, 100)
    lowest = mask * (torch.finfo(mask.dtype).min / masking(mask.dtype))
    assert lowest.isfinite().all()
    right, wrong = (masked_attention(*arguments, one) for one in (mask, lowest))
    expected = exact(*arguments, mask)
    assert errors(right, expected)[0] < 1e-6 and errors(wrong, expected)[0] > 0.01


def keys_of(length, d=64, dtype=torch.bfloat16):
    return torch.empty(1, 8, length, d, dtype=dtype)


def test_what_the_kernel_would_refuse_is_not_split(gpu, monkeypatch):
    assert parts_of(keys_of(4096)) == 32
    assert parts_of(keys_of(4096, d=20)) == 1
    monkeypatch.setattr(Properties, "major", 7)
    attention.processors_of.cache_clear()
    assert parts_of(keys_of(4096)) == 1 and parts_of(keys_of(4096, dtype=torch.float16)) == 32
    monkeypatch.setattr(torch.cuda, "get_device_properties", None)
    attention.processors_of.cache_clear()
    assert parts_of(keys_of(512)) == 1, "a short cache asks nothing of the device"


def test_nothing_is_split_on_a_cpu():
    assert parts_of(keys_of(32768)) == 1
