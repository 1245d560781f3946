"""What a fused forward computes on CUDA, for few rows: products, and as one launch each the gate of an MLP,
norms, and attention (triton_attention.py). Sums and products are float32, and rounded once.

What limits a product is how fast the weight is read, so its bytes are read once, as they are kept, and
nothing else is written than the result. A weight that is quantised to int8 is multiplied with 1 to 17 rows
(optimum-quanto's own product writes the whole weight in the dtype first), another one with one row or two.
For products of more rows, BLAS libraries are as fast.

Imports Triton, which comes with torch's CUDA builds. A kernel is compiled at its first call for each shape
of a weight. Nothing is tuned by timing in a run, so a call can be captured after that, and the same numbers
always give the same sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdemo.runtime.cuda import device_of
from specdemo.runtime.triton_attention import contiguous_like, few_rows_attention, keep_rows  # noqa: F401

GATE_BLOCK = 1024  # numbers of a program
# The division of a product with one row or two: outputs of a program, inputs at a time, and warps. Of the
# divisions that were timed with one row and each of ten weights of Llama 3.2 1B and 3B in bfloat16, these
# took the least time in all (NVIDIA H100, 2026-11-26).
ROW_TILE, ROW_STEP, ROW_WARPS = 4, 1024, 8


# The division of a product with an int8 weight, by the fewest outputs of the weight: outputs of a program,
# inputs at a time, and warps. So a weight of 2048 rows keeps some 130 processors busy. They are estimates,
# which have not been compared by timing.
TILINGS = {16_384: (64, 128, 4), 4096: (32, 256, 2), 0: (16, 256, 1)}
PADDED_ROWS = (16, 32)  # a tensor core multiplies whole tiles
# Outputs of a program. With 64, by four warps, Triton 3.6 has a B200's tensor cores multiply float32 as TF32,
# although full precision is asked for: it overlooks that where the floats were narrower numbers before
# (triton-lang/triton, issue 10176; mended since).
MOST_IN_FLOAT32 = 32


def tiling_for(outputs: int, inputs: int, rows: int, dtype: torch.dtype) -> dict[str, int]:
    """The division of a product with an int8 weight, as int8_kernel is told it. rows: one of PADDED_ROWS. The
    `num_stages` steps that are on their way must fit into 99 KB, which the smallest device has for a
    program."""
    tile, step, warps = next(tiling for fewest, tiling in TILINGS.items() if outputs >= fewest)
    is_float32 = dtype == torch.float32
    while step > 64 and (inputs % step or is_float32 and step > 128):
        step //= 2
    if is_float32:
        tile, warps = min(tile, MOST_IN_FLOAT32), min(warps, 2)
    stages = 4 if rows == PADDED_ROWS[0] and not is_float32 else 2
    return {"TILE": tile, "STEP": step, "num_warps": warps, "num_stages": stages}


@triton.jit(do_not_specialize=["rows"])
def int8_kernel(
    x,  # [rows, INPUTS]
    weight,  # [outputs, INPUTS] int8
    scale,  # [outputs]
    bias,  # [outputs], read if HAS_BIAS
    y,  # [rows, outputs]; if ADDS, the result is added to what is there
    rows,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):
    first = tl.program_id(0) * TILE
    output, row, step = tl.arange(0, TILE), tl.arange(0, ROWS), tl.arange(0, STEP)
    is_output, is_row = first + output < outputs, row < rows
    weight += first.to(tl.int64) * INPUTS
    sums = tl.zeros((TILE, ROWS), tl.float32)
    for at in range(0, INPUTS, STEP):
        column = at + step
        of_weight, of_x = is_output[:, None], is_row[None, :]
        if INPUTS % STEP:
            of_weight = of_weight & (column < INPUTS)[None, :]
            of_x = of_x & (column < INPUTS)[:, None]
        places = weight + output[:, None] * INPUTS + column[None, :]
        w = tl.load(places, of_weight, other=0, eviction_policy="evict_first")  # [TILE, STEP]
        xs = tl.load(x + row[None, :] * INPUTS + column[:, None], of_x, other=0.0)  # [STEP, ROWS]
        # 16-bit floats hold every int8 exactly. Float32 is not to be rounded to TF32.
        sums = tl.dot(w.to(xs.dtype), xs, sums, input_precision="ieee")
    result = sums * tl.load(scale + first + output, is_output, other=0.0).to(tl.float32)[:, None]
    if HAS_BIAS:
        result += tl.load(bias + first + output, is_output, other=0.0).to(tl.float32)[:, None]
    places, known = y + row[None, :] * outputs + first + output[:, None], is_output[:, None] & is_row[None, :]
    if ADDS:
        result += tl.load(places, known, other=0.0).to(tl.float32)
    tl.store(places, result.to(y.dtype.element_ty), known)


@triton.jit
def row_kernel(
    x,  # [ROWS, INPUTS]
    weight,  # [outputs, INPUTS]
    bias,  # [outputs], read if HAS_BIAS
    y,  # [ROWS, outputs]; if ADDS, the result is added to what is there
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,  # 1 or 2
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Multiplies without tensor cores, which multiply 8 rows or more: what is on its way from memory fills
    the registers. Each row's sums are those of a row by itself."""
    output, step = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, STEP)
    is_output = output < outputs
    places = weight + output.to(tl.int64)[:, None] * INPUTS + step[None, :]
    sums = tl.zeros((TILE, STEP), tl.float32)
    second = tl.zeros((TILE, STEP), tl.float32)  # sums of the second row
    for at in range(0, INPUTS, STEP):
        of_x, of_weight = step < INPUTS - at, is_output[:, None]
        if INPUTS % STEP:
            of_weight = of_weight & of_x[None, :]
        w = tl.load(places + at, of_weight, other=0, eviction_policy="evict_first").to(tl.float32)
        sums += w * tl.load(x + at + step, of_x, other=0.0).to(tl.float32)[None, :]
        if ROWS == 2:
            second += w * tl.load(x + INPUTS + at + step, of_x, other=0.0).to(tl.float32)[None, :]
    store_row(y + output, tl.sum(sums, 1), bias + output, is_output, HAS_BIAS, ADDS)
    if ROWS == 2:
        store_row(y + outputs + output, tl.sum(second, 1), bias + output, is_output, HAS_BIAS, ADDS)


@triton.jit
def store_row(places, result, bias, is_output, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr):
    if HAS_BIAS:
        result += tl.load(bias, is_output, other=0.0).to(tl.float32)
    if ADDS:
        result += tl.load(places, is_output, other=0.0).to(tl.float32)
    tl.store(places, result.to(places.dtype.element_ty), is_output)


def few_rows_product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x [N, in] -> [N, out]. scale [out]: None for a weight that is not quantised, which takes one row or
    two."""
    return _product(x.new_empty(len(x), len(weight)), x, weight, scale, bias, adds=False)


def add_few_rows_product(
    stream: Tensor, x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Adds that product to `stream` [N, out], whose memory is reused."""
    return _product(stream, x, weight, scale, bias, adds=True)


def _product(
    y: Tensor, x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, adds: bool
) -> Tensor:
    (rows, inputs), outputs = x.shape, len(weight)
    assert y.is_contiguous() and (rows <= 2 or scale is not None), (x.shape, y.stride())
    x, sizes = x.contiguous(), {"INPUTS": inputs, "HAS_BIAS": bias is not None, "ADDS": adds}
    bias = (weight if scale is None else scale) if bias is None else bias
    with device_of(x):
        if scale is None:
            step = min(ROW_STEP, triton.next_power_of_2(inputs))
            sizes |= {"ROWS": rows, "TILE": ROW_TILE, "STEP": step, "num_warps": ROW_WARPS}
            row_kernel[(triton.cdiv(outputs, ROW_TILE),)](x, weight, bias, y, outputs, **sizes)
        else:
            padded = next(padded for padded in PADDED_ROWS if rows <= padded)
            sizes |= tiling_for(outputs, inputs, padded, x.dtype) | {"ROWS": padded}
            grid = (triton.cdiv(outputs, sizes["TILE"]),)
            int8_kernel[grid](x, weight, scale, bias, y, rows, outputs, **sizes)
    return y


@triton.jit
def gate_kernel(gate_up, output, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """gate_up [N, 2 WIDTH] -> output [N, WIDTH]"""
    row, i = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known, place = i < WIDTH, gate_up + row * 2 * WIDTH + i
    gate = tl.load(place, known, other=0.0).to(tl.float32)
    up = tl.load(place + WIDTH, known, other=0.0).to(tl.float32)
    if GELU:  # its form with tanh z = 2 sigmoid(2 z) - 1
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2.0 * z)
    else:
        gate = gate * tl.sigmoid(gate)
    tl.store(output + row * WIDTH + i, (gate * up).to(output.dtype.element_ty), known)


@triton.jit
def norm_kernel(x, weight, y, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr):
    """x [N, SIZE] -> y [N, SIZE]; if ADDS, added to what is there."""
    i, row = tl.arange(0, BLOCK), tl.program_id(0)
    known = i < SIZE
    given = tl.load(x + row * SIZE + i, known, other=0.0).to(tl.float32)
    size = 1.0 / tl.sqrt(tl.sum(given * given, 0) / SIZE + eps)
    result = given * size * tl.load(weight + i, known, other=0.0).to(tl.float32)
    if ADDS:
        result += tl.load(y + row * SIZE + i, known, other=0.0).to(tl.float32)
    tl.store(y + row * SIZE + i, result.to(y.dtype.element_ty), known)


def gate(gate_up: Tensor, gelu: bool) -> Tensor:
    """gate_up [N, 2 I] -> [N, I]. gelu: whether the activation is GELU's tanh form; else it is SiLU."""
    n, width = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty(n, width)
    with device_of(gate_up):
        gate_kernel[(triton.cdiv(width, GATE_BLOCK), n)](
            gate_up.contiguous(), output, WIDTH=width, BLOCK=GATE_BLOCK, GELU=gelu
        )
    return output


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm of x [..., H]."""
    return _norm(contiguous_like(x), x, weight, eps, adds=False)


def add_normed(stream: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds that norm to `stream` [..., H], whose memory is reused."""
    return _norm(stream, x, weight, eps, adds=True)


def _norm(y: Tensor, x: Tensor, weight: Tensor, eps: float, adds: bool) -> Tensor:
    size = x.shape[-1]
    sizes = {"SIZE": size, "BLOCK": triton.next_power_of_2(size), "ADDS": adds}
    with device_of(x):
        warps = 8 if size > 1024 else 4
        norm_kernel[(x.numel() // size,)](x.contiguous(), weight, y, eps, **sizes, num_warps=warps)
    return y
