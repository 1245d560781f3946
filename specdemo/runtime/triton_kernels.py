"""What a fused forward computes on CUDA, for few rows: products, and as one launch each the gate of an MLP,
norms, and what lies between the product that makes queries, keys and values and the next one: attention, with
its norms, rotation, the cache, a sliding window and a cap on the scores. Sums and products are float32, and
rounded once; queries, keys and a softmax's numbers are rounded to the cache's dtype before they are
multiplied.

What limits a product is how fast the weight is read, so its bytes are read once, as they are kept, and
nothing else is written than the result. A weight that is quantised to int8 is multiplied with 1 to 17 rows
(optimum-quanto's own product writes the whole weight in the dtype first), another one with one row or two.
For products of more rows, BLAS libraries are as fast.

The keys that a text has so far are divided among many blocks, whose outputs are combined by their log-sum-exp
(flash-decoding, Dao et al. 2023). Each block keeps a running softmax (FlashAttention, Dao et al. 2022). Where
the text ends is read on the device, so one captured graph serves a text of any length, and nothing is read
that no row sees; but a tree's window begins where that of its first row does. Where a tree's rows stand and
what they see are read on the device, too.

Imports Triton, which comes with torch's CUDA builds. A kernel is compiled at its first call for each shape
of a weight. Nothing is tuned by timing in a run, so a call can be captured after that, and the same numbers
always give the same sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdemo.runtime.attention import BLOCKS_A_PROCESSOR, Branches, processors_of
from specdemo.runtime.cuda import device_of
from specdemo.runtime.decoder import Heads

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
# Of attention:
SMALLEST = 16  # rows or columns that a tensor core multiplies at once
KEYS_AT_ONCE = 64  # that a block reads, at most
COMBINED = 32  # parts at a time
INTERPRETED = 16  # multiprocessors that Triton's interpreter stands for
MOST_BYTES = 16_384  # of the keys that a block reads at a time, and as many of values


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


def few_rows_product(
    x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, onto: Tensor | None = None
) -> Tensor:
    """x [N, in] -> [N, out]. scale [out]: None for a weight that is not quantised, which takes one row or
    two. onto [N, out]: what the product is added to, in its memory."""
    (rows, inputs), outputs = x.shape, len(weight)
    y = x.new_empty(rows, outputs) if onto is None else onto
    assert y.is_contiguous() and (rows <= 2 or scale is not None), (x.shape, y.stride())
    x, sizes = x.contiguous(), {"INPUTS": inputs, "HAS_BIAS": bias is not None, "ADDS": onto is not None}
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


def normed(x: Tensor, weight: Tensor, eps: float, onto: Tensor | None = None) -> Tensor:
    """The RMS norm of x [..., H]. onto [..., H]: what it is added to, in its memory."""
    size, y = x.shape[-1], contiguous_like(x) if onto is None else onto
    sizes = {"SIZE": size, "BLOCK": triton.next_power_of_2(size), "ADDS": onto is not None}
    with device_of(x):
        warps = 8 if size > 1024 else 4
        norm_kernel[(x.numel() // size,)](x.contiguous(), weight, y, eps, **sizes, num_warps=warps)
    return y


def width_for(d: int) -> int:
    """The width of a head, padded."""
    return max(SMALLEST, triton.next_power_of_2(d))


def division_for(width: int, dtype: torch.dtype) -> dict[str, int]:
    """How attention is divided, as attend_kernel is told it. A block makes SMALLEST rows of the queries that
    share a key head, and reads so many KEYS at a time, of which `num_stages` reads are on their way.

    It is so large that a block's numbers fit into its registers, or nearly (what compilers for capabilities
    8.6 and 9.0 said). With heads of 64 and 128 numbers in bfloat16, it took near the least time over 512,
    4,096 and 32,768 tokens of what was timed on an NVIDIA H100 (2026-11-26)."""
    return {
        "KEYS": max(SMALLEST, min(KEYS_AT_ONCE, MOST_BYTES // (width * dtype.itemsize))),
        "num_warps": 4 if width <= 128 else 8,
        "num_stages": 3 if width * dtype.itemsize <= 128 else 2,
    }


def parts_of_text(capacity: int, groups: int, processors: int) -> int:
    """The number of parts that the keys of a text in a cache of this capacity are divided into: as many as
    the GPU reads at the same time, but no more than there would be keys for if the cache were full. Above
    COMBINED it is a multiple of that, because so many are combined at a time (as cache capacities of so many
    parts are)."""
    parts = max(1, min(capacity // KEYS_AT_ONCE, BLOCKS_A_PROCESSOR * processors // groups))
    return parts - parts % COMBINED if parts > COMBINED else parts


@triton.jit
def normed_and_rotated(
    place,  # [M] pointers: where each row begins
    norm,  # [D], read if NORMS
    eps,
    rotation,  # [M] pointers to the rotation at each position: D cosines, then D sines, half of them negative
    is_row,  # [M]
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMS: tl.constexpr,
    ROTATES: tl.constexpr,
):
    """Rows of queries or keys, normed and rotated: [M, WIDTH] float32."""
    i = tl.arange(0, WIDTH)
    partner = tl.where(i < D // 2, i + D // 2, i - D // 2)
    known = is_row[:, None] & (i < D)[None, :]
    x = tl.load(place[:, None] + i[None, :], known, other=0.0).to(tl.float32)
    if ROTATES:
        other = tl.load(place[:, None] + partner[None, :], known, other=0.0).to(tl.float32)
    if NORMS:
        size = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
        x *= size[:, None] * tl.load(norm + i, i < D, other=0.0).to(tl.float32)[None, :]
        if ROTATES:
            other *= size[:, None] * tl.load(norm + partner, i < D, other=0.0).to(tl.float32)[None, :]
    if ROTATES:
        by_cos = tl.load(rotation[:, None] + i[None, :], known, other=0.0).to(tl.float32)
        by_sin = tl.load(rotation[:, None] + D + i[None, :], known, other=0.0).to(tl.float32)
        x = x * by_cos + other * by_sin
    return x


@triton.jit
def softly_bounded(z):
    """tanh(z): between -1 and 1 by Lambert's continued fraction, whose first 5 terms are right to 1e-7. A
    sigmoid, from which it could be made, is near 1/2 there, so that digits would be lost."""
    square = z * z
    fraction = z * (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + square * 15.0))
    return tl.where(square < 1.0, fraction, 2.0 * tl.sigmoid(2.0 * z) - 1.0)


@triton.jit
def scored(q, k, visible, scale, softcap, CAPS: tl.constexpr):
    """q [M, WIDTH], k [WIDTH, L] -> scores [M, L], -inf where nothing is visible."""
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if CAPS:
        scores = softcap * softly_bounded(scores / softcap)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def with_more(output, total, most, scores, v):
    """The running softmax with more scores [M, L] and values [L, WIDTH]: output [M, WIDTH] and total [M] are
    sums of exp(score - most)."""
    higher = tl.maximum(most, tl.max(scores, 1))
    reference = tl.where(higher == float("-inf"), 0.0, higher)  # of a row that has seen nothing yet
    weights = tl.exp(scores - reference[:, None])
    before = tl.exp(most - reference)
    output = output * before[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return output, total * before + tl.sum(weights, 1), higher


@triton.jit
def kept(
    k,  # [M] pointers: where each row begins
    v,
    norm,
    eps,
    rotation,  # [M] pointers, see normed_and_rotated
    keys,
    values,
    there,  # [M]: where each row goes in keys and values
    is_row,  # [M]
    writes,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMS: tl.constexpr,
    ROTATES: tl.constexpr,
):
    """Rows of keys, normed and rotated, and of values, as the cache keeps them: [M, WIDTH] each."""
    i = tl.arange(0, WIDTH)
    known = is_row[:, None] & (i < D)[None, :]
    key = normed_and_rotated(k, norm, eps, rotation, is_row, D, WIDTH, NORMS, ROTATES).to(
        keys.dtype.element_ty
    )
    value = tl.load(v[:, None] + i[None, :], known, other=0.0).to(values.dtype.element_ty)
    if writes:
        tl.store(keys + there[:, None] + i[None, :], key, known)
        tl.store(values + there[:, None] + i[None, :], value, known)
    return key, value


@triton.jit(do_not_specialize=["tokens"])
def keep_kernel(
    k,  # [N, GROUPS, D], rows `stride` numbers apart
    v,  # [N, GROUPS, D], the same
    k_norm,  # [D], read if NORMS
    eps,
    rotation_table,  # [capacity, 2, D]
    rows,  # [N]: where keys and values go, one after the other
    keys,  # [GROUPS, capacity, D], heads `cache_stride` numbers apart
    values,
    stride,
    cache_stride,
    tokens,  # N
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Writes some rows of one key head."""
    group, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.load(rows).to(tl.int64) + row
    place = row * stride + group * D
    keys += group * cache_stride
    values += group * cache_stride
    kept(
        k + place, v + place, k_norm, eps, rotation_table + at * 2 * D, keys, values, at * D, row < tokens,
        True, D, WIDTH, NORMS, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["hidden_stride", "tokens", "newest"])
def attend_kernel(
    q,  # [N, HEADS, D], rows `q_stride` numbers apart
    k,  # [N, GROUPS, D]
    v,
    q_norm,  # [D], read if NORMS
    k_norm,
    eps,
    rotation_table,  # [capacity, 2, D], read if ROTATES
    rows,  # [N]: where keys and values go, one after the other
    depths,  # [W] int64, as of Branches; read if BRANCHES
    hidden,  # [N, W], as of Branches, rows `hidden_stride` numbers apart; read if BRANCHES
    keys,  # [GROUPS, capacity, D], heads `cache_stride` numbers apart
    values,
    outputs,  # [parts, GROUPS, SHARED * N, D] float32
    logsumexp,  # [parts, GROUPS, SHARED * N] float32
    q_stride,
    k_stride,
    v_stride,
    cache_stride,
    hidden_stride,
    tokens,  # N
    newest,  # W
    scale,
    softcap,  # read if CAPS
    SHARED: tl.constexpr,  # heads that share a key head
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,  # keys of a part, a multiple of KEYS
    WINDOW: tl.constexpr,  # of the tokens that each sees, its own included; 0: all before it
    FROM_FIRST: tl.constexpr,  # whether it is of those before the forward's first one, for all rows
    LATER: tl.constexpr,  # whether each sees the forward's later rows, too
    BRANCHES: tl.constexpr,  # whether the newest rows are those of a tree
    EARLIER: tl.constexpr,  # whether earlier forwards have written some of these
    CAPS: tl.constexpr,
    NORMS: tl.constexpr,
    ROTATES: tl.constexpr,
):
    """Attention of some rows of one key head's queries over one part of the text's keys. The first part has
    the keys of this forward's tokens, too, and writes them to the cache.

    A part has the same keys whatever the cache's capacity: where there is room for fewer parts than the GPU
    reads at once, each has LEAST keys, and those that a larger cache has in addition have none."""
    part, group, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(0)
    first = tl.load(rows).to(tl.int64)  # position
    i = tl.arange(0, WIDTH)
    keys += group.to(tl.int64) * cache_stride
    values += group.to(tl.int64) * cache_stride

    row = block * ROWS + tl.arange(0, ROWS)
    is_row = row < SHARED * tokens
    head, token = group * SHARED + row // tokens, row % tokens
    before = newest - tokens if EARLIER else 0
    text = first - before  # where the tree begins
    at = first + token  # [ROWS]: places in the text
    if BRANCHES:
        at = text + tl.load(depths + before + token)
    places, rotation = q + token * q_stride + head * D, rotation_table + at * 2 * D
    queries = normed_and_rotated(places, q_norm, eps, rotation, is_row, D, WIDTH, NORMS, ROTATES).to(
        keys.dtype.element_ty
    )

    output = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    if FROM_FIRST:
        lowest = tl.maximum(first - WINDOW, 0)  # that any row sees
    else:
        lowest = tl.maximum(text - WINDOW + 1, 0) if WINDOW else first * 0
    share = tl.cdiv(tl.cdiv(first - lowest, LEAST), parts) * LEAST
    begin = lowest + part * share
    end = tl.minimum(begin + share, first)
    for start in range(begin, end, KEYS):
        slot = start + tl.arange(0, KEYS)
        is_key = slot < end
        known = is_key[None, :] & (i < D)[:, None]
        old_keys = tl.load(keys + slot[None, :] * D + i[:, None], known, other=0.0)  # [WIDTH, KEYS]
        visible, position = is_key[None, :] & is_row[:, None], slot
        if EARLIER:
            node, is_node = slot - text, is_key & (slot >= text)
            position = tl.where(is_node, text + tl.load(depths + node, is_node, other=0), slot)
            elsewhere = hidden + token[:, None] * hidden_stride + node[None, :]
            visible = visible & (tl.load(elsewhere, is_row[:, None] & is_node[None, :], other=0) == 0)
        if WINDOW and not FROM_FIRST:
            visible = visible & (position[None, :] > at[:, None] - WINDOW)
        scores = scored(queries, old_keys, visible, scale, softcap, CAPS)
        known = is_key[:, None] & (i < D)[None, :]
        old_values = tl.load(values + slot[:, None] * D + i[None, :], known, other=0.0)
        output, total, most = with_more(output, total, most, scores, old_values)

    if part == 0:
        # As many at a time as a block has rows.
        for first_new in tl.range(0, tokens, ROWS, num_stages=1):
            new = first_new + tl.arange(0, ROWS)
            is_new = new < tokens
            new_at = first + new
            if BRANCHES:
                new_at = text + tl.load(depths + before + new, is_new, other=0)
            new_rotation = rotation_table + new_at * 2 * D
            k_places, v_places = k + new * k_stride + group * D, v + new * v_stride + group * D
            there = (first + new) * D
            new_keys, new_values = kept(
                k_places, v_places, k_norm, eps, new_rotation, keys, values, there, is_new, block == 0,
                D, WIDTH, NORMS, ROTATES,
            )  # fmt: skip
            sees = is_new[None, :] & is_row[:, None]
            if BRANCHES:
                elsewhere = hidden + token[:, None] * hidden_stride + before + new[None, :]
                sees = sees & (tl.load(elsewhere, sees, other=1) == 0)
            elif not LATER:
                sees = sees & (new[None, :] <= token[:, None])
            if WINDOW and not FROM_FIRST:
                sees = sees & (new_at[None, :] > at[:, None] - WINDOW)
            new_scores = scored(queries, tl.trans(new_keys), sees, scale, softcap, CAPS)
            output, total, most = with_more(output, total, most, new_scores, new_values)

    place = (part * tl.num_programs(1) + group) * SHARED * tokens + row
    has_seen = total != 0  # else `most` is -inf. NaN goes on
    total = tl.where(has_seen, total, 1.0)
    tl.store(logsumexp + place, most + tl.log(total), is_row)
    output /= total[:, None]
    known = (is_row & has_seen)[:, None] & (i < D)[None, :]
    tl.store(outputs + place[:, None] * D + i[None, :], output, known)


@triton.jit(do_not_specialize=["tokens", "parts"])
def combine_kernel(
    outputs,  # [parts, rows, D] float32, with rows by key head, by the heads that share it, by token
    logsumexp,  # [parts, rows] float32
    y,  # [N, HEADS, D]
    tokens,  # N
    parts,
    HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,  # parts
    D: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Combines the parts' outputs for one head of one token."""
    head, token = tl.program_id(0), tl.program_id(1)
    row, rows = head * tokens + token, HEADS * tokens
    i = tl.arange(0, WIDTH)
    highest = tl.full((AT_ONCE,), float("-inf"), tl.float32)
    for at in range(0, parts, AT_ONCE):
        part = at + tl.arange(0, AT_ONCE)
        by_part = tl.load(logsumexp + part * rows + row, part < parts, other=float("-inf"))
        highest = tl.maximum(highest, by_part)
    most = tl.max(highest, 0)
    total = tl.zeros((AT_ONCE,), tl.float32)
    result = tl.zeros((WIDTH,), tl.float32)
    for at in range(0, parts, AT_ONCE):
        part = at + tl.arange(0, AT_ONCE)
        by_part = tl.load(logsumexp + part * rows + row, part < parts, other=float("-inf"))
        weights = tl.exp(by_part - most)
        total += weights
        # A part that has seen nothing has written nothing; a weight can be NaN.
        known = ((weights != 0) & (part < parts))[:, None] & (i < D)[None, :]
        each = tl.load(outputs + (part * rows + row)[:, None] * D + i[None, :], known, other=0.0)
        result += tl.sum(each * weights[:, None], 0)
    result /= tl.sum(total, 0)
    tl.store(y + (token * HEADS + head) * D + i, result.to(y.dtype.element_ty), i < D)


def few_rows_attention(
    attends: Heads,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    rotation_table: Tensor | None,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    branches: Branches | None = None,
) -> Tensor:
    """q [N, heads * d], k and v [N, groups * d], of rows that may lie apart. norms: the weights [d] of that
    of q and that of k, and their eps. rotation_table [C, 2, d]: see `normed_and_rotated`. keys and values
    [1, groups, C, d]: the cache, which is read below rows[0], and written at the consecutive positions
    rows [N]. branches: whose rows see no later ones and no window from the first one. -> [N, heads * d]"""
    mask, (_, groups, capacity, d) = attends.mask, keys.shape
    n, shared = len(q), q.shape[1] // d // groups
    window, softcap = mask.window or 0, float(attends.softcap or 0.0)
    of_norms = (q, k, 0.0) if norms is None else norms
    depths, hidden, newest = rows, rows, n  # which are read with branches only
    if branches is not None:
        assert not (mask.from_first or mask.later)
        depths, hidden = branches.depths, branches.hidden.view(torch.uint8)
        newest = hidden.shape[1]
    parts = parts_of_text(capacity, groups, processors_of(keys.device)[0] if keys.is_cuda else INTERPRETED)
    outputs = q.new_empty(parts, groups * shared * n, d, dtype=torch.float32)
    logsumexp = q.new_empty(parts, groups * shared * n, dtype=torch.float32)
    y, width = contiguous_like(q), width_for(d)
    strides = q.stride(0), k.stride(0), v.stride(0), keys.stride(1), hidden.stride(0)
    table = q if rotation_table is None else rotation_table
    given = q, k, v, *of_norms, table, rows, depths, hidden, keys, values, outputs, logsumexp
    with device_of(q):
        attend_kernel[(parts, groups, triton.cdiv(shared * n, SMALLEST))](
            *given,
            *strides,
            n,
            newest,
            float(attends.scaling),
            softcap,
            SHARED=shared,
            D=d,
            WIDTH=width,
            ROWS=SMALLEST,
            LEAST=KEYS_AT_ONCE,
            WINDOW=window,
            FROM_FIRST=mask.from_first and window > 0,
            LATER=mask.later,
            BRANCHES=branches is not None,
            EARLIER=newest > n,
            CAPS=softcap > 0,
            NORMS=norms is not None,
            ROTATES=rotation_table is not None,
            **division_for(width, keys.dtype),
        )
        at_once = COMBINED if width <= 128 else COMBINED // 2  # which have registers
        sizes = {"HEADS": groups * shared, "AT_ONCE": at_once, "D": d, "WIDTH": width, "num_warps": 1}
        combine_kernel[(groups * shared, n)](outputs, logsumexp, y, n, parts, **sizes)
    return y


def keep_rows(
    kv: Tensor, norm: tuple[Tensor, float] | None, table: Tensor, rows: Tensor, keys: Tensor, values: Tensor
) -> None:
    """kv [N, 2 * groups * d]: keys, not yet normed or rotated, and values, that the cache gets at the
    consecutive positions rows [N]. The others are as of `few_rows_attention`."""
    _, groups, _, d = keys.shape
    k, v = kv.split(groups * d, 1)
    strides, of_norm = (kv.stride(0), keys.stride(1)), (k, 0.0) if norm is None else norm
    sizes = {"D": d, "WIDTH": width_for(d), "ROWS": SMALLEST, "NORMS": norm is not None}
    with device_of(kv):
        grid = groups, triton.cdiv(len(kv), SMALLEST)
        keep_kernel[grid](k, v, *of_norm, table, rows, keys, values, *strides, len(kv), **sizes)


def contiguous_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
