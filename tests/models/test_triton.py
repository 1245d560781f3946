"""The kernels written in Triton compute what they are to compute, and fused forwards with them predict what
the models themselves do. Without a GPU they run in Triton's interpreter; on one, as they are."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from optimum.quanto import freeze, qfloat8, qint8, quantize
from torch import nn
from torch.nn.functional import gelu, silu
from transformers.activations import ACT2FN

from specdemo.drafters.dflash import CachedDFlash
from specdemo.runtime import cuda
from specdemo.runtime.decoder import RowMask
from specdemo.runtime.fused import MOST_OF_TREE, TorchAttention
from specdemo.runtime.linear import MOST_BY_TRITON, JoinedLinear, int8_of, join_weights
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.weights import held_bytes
from tests.block_heads import DFLASH2, tiny_block_head
from tests.eagle_heads import tiny_eagle_head
from tests.heads import tiny_head
from tests.models.test_fused import assert_same
from tests.runners import cached as with_cache
from tests.tiny import VOCAB, tiny

triton = pytest.importorskip(
    "triton", reason="needs Triton, which comes with torch's CUDA builds, or from pip"
)

from specdemo.runtime import triton_kernels  # noqa: E402
from tests.kernel_errors import (  # noqa: E402
    DEVICE,
    DTYPES,
    Attending,
    attended,
    attended_exactly,
    attending,
    branches_of,
    exact,
    int8_layer,
    randn,
    round_as_a_gpu,
)

MIXED = dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
TEXT = torch.arange(20) * 37 % VOCAB  # longer than the sliding windows
ROUNDED = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of a result, by its own size
# By capability, KiB of memory that the blocks on a processor share. 1 of each block's is the system's.
MEMORY = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
SPILLED = 320  # bytes of a thread, at most, that have no register, in 16 bits


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """Triton counts as usable on a CPU, too."""
    monkeypatch.setattr(cuda, "has_triton", lambda device: True)
    if DEVICE == "cpu":
        round_as_a_gpu(monkeypatch.setattr)


def assert_exact(y, expected, dtype, roundings=1.0):
    """Within so many roundings to the dtype, and that of sums in float32."""
    assert y.dtype == dtype and y.shape == expected.shape
    size = expected.abs() + 1e-2 * expected.abs().max()
    off = ((y.double() - expected).abs() / size).max().item()
    assert off <= roundings * ROUNDED[dtype], off


def check_product(rows, outputs, inputs, dtype, bias=True):
    layer, x = int8_layer(outputs, inputs, dtype, bias), randn(rows, inputs, dtype=dtype)
    expected = exact(x, *layer)
    assert_exact(triton_kernels.few_rows_product(x, *layer), expected, dtype)
    stream = randn(rows, outputs, dtype=dtype, seed=2)
    added = triton_kernels.few_rows_product(x, *layer, onto=(there := stream.clone()))
    assert added.data_ptr() == there.data_ptr()
    assert_exact(there, stream.double() + expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (33, 63), (16, 257), (40, 160)])
def test_int8_products_of_few_rows(outputs, inputs, dtype):
    """Also of sizes that are no multiples of a tile."""
    for rows in (1, 6, 16, MOST_BY_TRITON):
        check_product(rows, outputs, inputs, dtype, bias=rows != 6)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (33, 63), (6, 1024), (9, 1030)])
def test_one_row_or_two_with_a_weight_that_is_not_quantised(outputs, inputs, dtype):
    weight, x = randn(outputs, inputs, dtype=dtype), randn(2, inputs, dtype=dtype, seed=3)
    bias, stream = randn(outputs, dtype=dtype, seed=4), randn(2, outputs, dtype=dtype, seed=2)
    expected = x.double() @ weight.double().T
    how = {"dtype": dtype, "roundings": 3 if dtype == torch.float32 else 1}  # sums of up to 1030 numbers
    both = triton_kernels.few_rows_product(x, weight, None, None)
    assert_exact(both, expected, **how)
    assert torch.equal(both[:1], triton_kernels.few_rows_product(x[:1], weight, None, None))
    assert_exact(triton_kernels.few_rows_product(x, weight, None, bias), expected + bias.double(), **how)
    triton_kernels.few_rows_product(x, weight, None, bias, onto=(there := stream.clone()))
    assert_exact(there, stream.double() + expected + bias.double(), **how)


def test_a_product_in_float32_leaves_the_tensor_cores_alone():
    """Triton takes those of a B200 unasked where a program has 64 outputs and four warps."""
    of = {dtype: triton_kernels.tiling_for(128_256, 2048, 16, dtype) for dtype in DTYPES.values()}
    assert of[torch.float32]["TILE"] < 64 and of[torch.float32]["num_warps"] < 4
    assert of[torch.bfloat16]["TILE"] == 64


def test_a_product_is_the_same_in_any_company():
    """A row's numbers do not depend on how many rows there are, up to 16."""
    layer, x = int8_layer(40, 160, torch.bfloat16), randn(16, 160, dtype=torch.bfloat16)
    whole = triton_kernels.few_rows_product(x, *layer)
    for rows in (1, 2, 5):
        assert torch.equal(triton_kernels.few_rows_product(x[:rows], *layer), whole[:rows])


def test_large_numbers_do_not_overflow_on_the_way():
    """In float16, where each product would."""
    weight = torch.full((16, 64), 127, dtype=torch.int8, device=DEVICE)
    scale = torch.full((16,), 2.0**-14, dtype=torch.float16, device=DEVICE)
    x = torch.full((2, 64), 60_000.0, dtype=torch.float16, device=DEVICE)
    assert_exact(triton_kernels.few_rows_product(x, weight, scale, None), exact(x, weight, scale), x.dtype)


def quantised(model, kind=qint8):
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    return model.to(DEVICE)


def static_on(model):
    lm = CachedLM(model)
    lm.begin_run(static=True)
    return lm


@torch.no_grad()
def own_logits(model):
    return model(TEXT[None].to(DEVICE)).logits[0]


@torch.no_grad()
def our_logits(lm, rows):
    parts = []
    for start in range(0, len(TEXT), rows):
        ids = TEXT[start : start + rows].to(DEVICE)
        lm.reserve(start, start + len(ids))
        parts.append(lm.forward(ids, torch.tensor(start, device=DEVICE)))
    return torch.cat(parts)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "phi3", "smollm3", "olmo2"])
def test_fused_forwards_with_kernels_predict_the_model_s_own_logits(name, monkeypatch):
    model = tiny(name).to(DEVICE)
    join_weights(model)
    lm = static_on(model)
    assert lm.fused is not None and lm.fused.triton and not lm.notes_as("target")
    assert_same(our_logits(lm, 7), own_logits(model))
    monkeypatch.setattr(TorchAttention, "over", None)  # which is not needed
    assert lm.reads_branches()


HEADS = {
    "eagle3": (tiny_head, {}),
    "eagle3 with norms and a window": (
        tiny_head,
        dict(layer="qwen3", layers=2, fc_norm=True, norm_before_residual=True, shape=MIXED),
    ),
    "eagle": (tiny_eagle_head, {}),
    "dflash": (tiny_block_head, {}),
    "dflash2": (tiny_block_head, DFLASH2),
    "dflash with windows": (
        tiny_block_head,
        dict(masks=(RowMask(3, from_first=True), RowMask(4, from_first=True, later=True))),
    ),
}


@pytest.mark.parametrize(("make", "options"), HEADS.values(), ids=HEADS)
@torch.no_grad()
def test_heads_with_kernels_say_what_they_say_without(make, options):
    """At their trial, and after more rows than it has, written in parts."""
    target = tiny().to(DEVICE)
    head = make(target, **options).to(DEVICE)
    join_weights(head)
    fast, plain = with_cache(head, target), with_cache(head, target)
    fast.begin_run(static=True)
    assert fast.decoding[0].kernels is not None and fast.notes_as("drafter") == []
    said = []
    for cached in (fast, plain):
        cached.grow(64)
        cached.reads.states = randn(64, cached.reads.states.shape[1], seed=1)
        said.append(after_parts(cached))
    assert_same(*said)


def after_parts(cached):
    """Logits, after 26 rows in parts, also of a tree."""
    token, start = torch.tensor([3], device=DEVICE), torch.tensor(0, device=DEVICE)
    if isinstance(cached, CachedDFlash):
        for _ in range(2):
            cached.read(start, 13)
            start = start + 13
        return cached.block(token, start, 5)[1]
    for _ in range(2):
        g, _ = cached.begin(torch.arange(13, device=DEVICE), start)
        start = start + 13
    g, first = cached.go_on(token, g, start)
    siblings = torch.cat([token, token + 1]), g.repeat(2, 1), start + 1, branches_of([-1, -1], 2)
    _, both = cached.go_on(*siblings)
    return torch.cat([first, both, cached.go_on(token, g, start + 1)[1]])


def test_a_head_whose_kernels_lie_runs_without_them(monkeypatch):
    own = triton_kernels.normed
    monkeypatch.setattr(triton_kernels, "normed", lambda *given, **onto: 1.1 * own(*given, **onto))
    target = tiny().to(DEVICE)
    lying = with_cache(tiny_head(target).to(DEVICE), target)
    lying.begin_run(static=True)
    assert lying.decoding[0].kernels is None
    assert "without kernels written in Triton, which is slower" in str(lying.notes_as("drafter")[0])


@pytest.mark.parametrize(("name", "joined"), [("gemma3", False), ("qwen2", True)])
def test_int8_weights_are_read_as_they_lie_in_memory(name, joined):
    """Joining them changes no number."""
    model = quantised(tiny(name))
    size, expected = held_bytes(model), own_logits(model)
    if joined:
        join_weights(model)
    assert held_bytes(model) == size
    assert_same(own_logits(model), expected)
    lm = static_on(model)
    for product in (product for layer in lm.fused.decoder.layers for product in layer.products):
        assert len(product.stored) == (1 if joined else len(product.layers))
        ours = {each.weight.untyped_storage().data_ptr() for each in product.stored}
        assert ours == {layer.weight._data.untyped_storage().data_ptr() for layer in product.layers}
    for rows in (17, 20):  # 20 are no few rows
        assert_same(our_logits(lm, rows), expected)


def test_int8_weights_on_a_cpu_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(cuda, "has_triton", lambda device: False)
    model = quantised(tiny())

    def places():
        return [each._data.data_ptr() for each in model.parameters() if hasattr(each, "_data")]

    before = places()
    join_weights(model)
    lm = static_on(model)
    assert before and places() == before and not lm.fused.triton and not lm.fused.decoder.layers[0].qkv.stored


def test_int8_weights_that_moved_are_found_again():
    model = quantised(tiny())
    join_weights(model)
    lm = static_on(model)
    expected = our_logits(lm, 5)
    for module in model.modules():
        if int8_of(module) is not None:
            weight = module.weight
            weight._data, weight._scale = weight._data.clone(), 1.5 * weight._scale
    lm.begin_run(static=True)
    assert len(lm.fused.decoder.layers[0].qkv.stored) == 3
    assert not torch.allclose(our_logits(lm, 5), expected, atol=1e-2)
    assert_same(our_logits(lm, 5), own_logits(model))


def test_other_quantised_weights_are_multiplied_as_before():
    model = quantised(tiny(), qfloat8)
    lm = static_on(model)
    assert lm.fused.triton and not lm.fused.decoder.layers[0].qkv.stored
    assert_same(our_logits(lm, 5), own_logits(model))


def test_quantised_activations_are_left_to_optimum_quanto():
    layer = quantised(nn.Sequential(nn.Linear(32, 48)))[0]
    assert JoinedLinear(layer, kernels=triton_kernels).stored
    layer.activation_qtype = qint8
    assert not JoinedLinear(layer, kernels=triton_kernels).stored


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_kernels_that_fail_or_predict_otherwise_are_not_used(monkeypatch, fault):
    def broken(gate_up, gelu):
        if fault == "raises":
            raise RuntimeError("no C compiler was found")
        return gate_up[:, : gate_up.shape[1] // 2] * 1.0

    monkeypatch.setattr(triton_kernels, "gate", broken)
    model = tiny().to(DEVICE)
    lm = static_on(model)
    reason = "no C compiler was found" if fault == "raises" else "predicts something other"
    assert lm.fused is not None and not lm.fused.triton and reason in lm.faults["no_triton"]
    (note,) = map(str, lm.notes_as("drafter"))
    assert note.startswith("the drafter runs without kernels written in Triton") and reason in note
    assert_same(our_logits(lm, 5), own_logits(model))


def test_an_int8_product_that_differs_with_17_rows_only_is_found(monkeypatch):
    product = triton_kernels.few_rows_product

    def wrong(x, *layer, **onto):
        return product(x, *layer, **onto) * (1.5 if len(x) == MOST_BY_TRITON else 1.0)

    monkeypatch.setattr(triton_kernels, "few_rows_product", wrong)
    lm = static_on(quantised(tiny()))
    assert (
        lm.fused is not None and not lm.fused.triton and "predicts something other" in lm.faults["no_triton"]
    )


def check_attention(given: Attending):
    n, dtype, first = len(given.rows), given.keys.dtype, int(given.rows[0])
    expected, new_keys, new_values = attended_exactly(given)
    output = attended(given)
    there = slice(first, first + n)
    # A number that is rounded on its way may become the next one.
    assert_exact(given.keys[0, :, there], new_keys, dtype, 2.0)
    assert torch.equal(given.values[0, :, there].double(), new_values)
    for cached in (given.keys, given.values):
        assert cached[:, :, first + n :].isnan().all() and not cached[:, :, : first + n].isnan().any()
    assert output.dtype == dtype
    error = ((output.double() - expected).abs().max() / new_values.abs().max()).item()
    assert error <= 4 * ROUNDED[dtype], error


FLOAT32, BFLOAT16, FLOAT16 = DTYPES.values()
SMALL = (4, 2, 16, FLOAT32)  # heads, key heads, head_dim, dtype
TREE = [-1, 0, 0, 1, 1, 2, 2, 5, 3, 8]  # by rows: the row of each one's parent
WIDE = [-1, *(i // 3 for i in range(MOST_OF_TREE - 1))]
ATTENTION = {
    "rotated": attending(6, 2, 16, FLOAT32),
    "a head that is padded": attending(3, 1, 20, BFLOAT16),
    "normed and rotated": attending(3, 1, 20, FLOAT32, how="normed and rotated"),
    "normed": attending(6, 2, 16, FLOAT16, how="normed"),
    "as it is": attending(2, 2, 64, FLOAT16, how="as it is"),
    # In a cache of 256 places: where a part of the keys is empty, or full, or one key short of it.
    **{
        f"{n} after {first}": attending(*SMALL, n, first, 256)
        for n, first in ((1, 0), (5, 63), (2, 64), (5, 251))
    },
    **{f"a window of {window}": attending(*SMALL, mask=RowMask(window)) for window in (1, 100, 5000)},
    "a block": attending(*SMALL, mask=RowMask(later=True)),
    "a block behind a window": attending(*SMALL, mask=RowMask(100, from_first=True, later=True)),
    "a block in a window": attending(*SMALL, mask=RowMask(3, later=True)),
    "a window of 3 in the draft": attending(*SMALL, MOST_BY_TRITON, 2, mask=RowMask(3)),
    "capped": attending(*SMALL, softcap=2.0),
    "a tree": attending(*SMALL, len(TREE), 700, parents=TREE),
    "a tree without a text": attending(*SMALL, len(TREE), 0, 256, parents=TREE),
    "a tree in a window": attending(*SMALL, len(TREE), 700, parents=TREE, mask=RowMask(2)),
    "a depth of a tree": attending(*SMALL, 4, 703, parents=TREE[:7], how="normed and rotated"),
    "the same in a window": attending(*SMALL, 2, 706, parents=TREE[:8], mask=RowMask(2)),
    "the largest tree": attending(6, 2, 16, FLOAT32, MOST_OF_TREE, 100, parents=WIDE, mask=RowMask(30)),
    # Whose heads are more rows than one block makes.
    "the longest draft": attending(28, 4, 16, FLOAT32, MOST_BY_TRITON, 90, 256, "rotated", mask=RowMask(70)),
    "the same, wider": attending(7, 1, 256, BFLOAT16, MOST_BY_TRITON, 90, 256, "rotated", mask=RowMask(70)),
}


@pytest.mark.parametrize("given", ATTENTION.values(), ids=ATTENTION)
def test_attention_from_product_to_product(given):
    check_attention(given)
    if given.attends.softcap:
        uncapped = replace(given, attends=replace(given.attends, softcap=None))
        assert not torch.allclose(attended(given), attended(uncapped), atol=0.05)


def test_a_high_cap_costs_no_digits():
    """Scores that are small beside the cap are where a tanh through a sigmoid would cost some."""
    given = attending(8, 2, 64, torch.float32, 1, 500, softcap=50.0)
    expected, _, _ = attended_exactly(given)
    assert (attended(given) - expected).abs().max() <= 2.5e-6 * expected.abs().max()


def test_attention_does_not_read_what_no_row_sees():
    """Keys before the window are NaN, too, and those of other places of the cache already were."""
    given = attending(4, 2, 16, torch.float32, mask=RowMask(64))
    for cached in (given.keys, given.values):
        cached[:, :, : 700 - 63] = torch.nan
    assert not attended(given).isnan().any()


@pytest.mark.parametrize(("place", "number"), [(10, torch.nan), (350, torch.inf), (699, -torch.inf)])
def test_a_key_that_is_no_number_is_not_hidden(monkeypatch, place, number):
    """A row that sees it is NaN, as with torch's attention, and not what memory held before."""
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **named: empty(*args, **named).fill_(7777.0))
    given = attending(4, 2, 16, torch.float32)
    given.keys[0, 0, place] = number
    output = attended(given).view(5, 4, 16)  # [N, heads, d]
    assert output[:, :2].isnan().all() and output[:, 2:].abs().max() < 10


@pytest.mark.parametrize("d", [16, 256], ids=["heads of 16", "wide heads, whose keys are read 16 at a time"])
def test_a_token_attends_alike_in_any_cache(d):
    """To the last bit: how large a cache is depends on the texts that were in it before."""
    small, large = (
        attending(4, 2, d, torch.float32, first=90, capacity=capacity) for capacity in (128, 4096)
    )
    for name in ("keys", "values"):
        getattr(large, name)[:, :, :90] = getattr(small, name)[:, :, :90]
    large = replace(large, rotation_table=torch.cat([small.rotation_table, large.rotation_table[128:]]))
    assert torch.equal(attended(small), attended(large))


@pytest.mark.parametrize(("width", "dtype"), [*zip((3, 1024, 1500), DTYPES.values(), strict=True)])
def test_the_gate_of_an_mlp(width, dtype):
    gate_up = 4 * randn(3, 2 * width, dtype=dtype)
    gate_up[0, 0], gate_up[1, 0] = 80.0, -80.0
    gate, up = gate_up.double().split(width, -1)
    assert_exact(triton_kernels.gate(gate_up, False), silu(gate) * up, dtype)
    expected = gelu(gate, approximate="tanh") * up
    assert_exact(triton_kernels.gate(gate_up, True), expected, dtype)
    assert torch.allclose(ACT2FN["gelu_new"](gate) * up, expected)


@pytest.mark.parametrize(("size", "dtype"), [*zip((1300, 64, 3), DTYPES.values(), strict=True)])
def test_norms(size, dtype):
    x, weight = 5 * randn(3, size, dtype=dtype), randn(size, seed=2)
    expected = nn.functional.rms_norm(x.double(), (size,), weight.double(), 1e-6)
    assert_exact(triton_kernels.normed(x, weight, 1e-6), expected, dtype)
    stream = randn(3, size, dtype=dtype, seed=3)
    there = stream.clone()
    triton_kernels.normed(x, weight, 1e-6, onto=there)
    assert_exact(there, stream.double() + expected, dtype)


def test_nothing_is_read_or_written_beyond_the_rows():
    """What lies around a stream, a cache and an input stays as it was, and counts for nothing."""
    layer = int8_layer(17, 65, torch.float32)
    around, x = torch.full((7, 17), 3.0, device=DEVICE), torch.full((7, 65), float("nan"), device=DEVICE)
    x[1:4] = randn(3, 65)
    triton_kernels.few_rows_product(x[1:4], *layer, onto=around[1:4])
    assert (around[[0, 4, 5, 6]] == 3).all() and not around.isnan().any()
    triton_kernels.few_rows_product(x[1:2], randn(17, 65), None, None, onto=around[5:6])
    assert (around[[0, 4, 6]] == 3).all() and (around[5] != 3).any() and not around.isnan().any()


@pytest.mark.long
@pytest.mark.parametrize("capability", MEMORY)
def test_every_kernel_is_compiled_for_a_device(capability, tmp_path):
    """For all sizes of the catalogue, without a device, in a process of its own, because the interpreter is
    chosen when Triton is imported: there is machine code, what is on its way fits into the memory that a
    program has, a processor has room for as many blocks of attention as its division counts on, and products
    with int8 weights use tensor cores in 16 bits, and nothing does in float32."""
    code = f"from tests.compiled_kernels import print_all; print_all({capability})"
    environment = os.environ | {
        "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DUMP_PTXAS_LOG": "1"
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) > 100
    for kernel in found:
        assert kernel["machine_code"] > 1000 and f".target sm_{capability}" in kernel["target"], kernel
        assert kernel["shared"] <= (MEMORY[capability] - 1) * 1024, kernel
        in_16_bits = kernel["dtype"] != "float32"
        assert kernel["spilled"] <= SPILLED or not in_16_bits, kernel
        if kernel["name"] == "attend_kernel" and in_16_bits and kernel["threads"] == 128:
            blocks = triton_kernels.BLOCKS_A_PROCESSOR
            assert blocks * (kernel["shared"] + 1024) <= MEMORY[capability] * 1024, kernel
        if kernel["name"] == "int8_kernel" or not in_16_bits:  # they would round float32 to TF32
            assert kernel["tensor_cores"] == in_16_bits, kernel
