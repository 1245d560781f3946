"""What lies between the products of a fused forward, as one launch each on CUDA: the way of queries, keys and
values to attention (their norms, rotation and cache), the gate of an MLP, and norms that torch has no single
operation for. For few rows. Sums and products are float32, and rounded once.

Imports Triton, which comes with torch's CUDA builds. Each kernel is compiled at its first call for the sizes
of a model. Nothing is tuned by timing, so a call can be captured after that."""

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from specdemo.runtime.cuda import device_of

_LIBRARY = library.Library("specdemo", "FRAGMENT")  # keeps what is defined through it
_LIBRARY.define(
    "to_attention(Tensor q, Tensor k, Tensor v, Tensor? q_norm, Tensor? k_norm, float eps, Tensor? cos, "
    "Tensor? sin, Tensor rows, Tensor(a!) keys, Tensor(b!) values) -> Tensor"
)
_LIBRARY.define("gate(Tensor gate_up, bool gelu) -> Tensor")
_LIBRARY.define("normed(Tensor x, Tensor weight, float eps) -> Tensor")
_LIBRARY.define("add_normed(Tensor(a!) stream, Tensor x, Tensor weight, float eps) -> Tensor(a!)")
GATE_BLOCK = 1024  # numbers of a program


@triton.jit
def head_kernel(
    q,  # [N, HEADS, D], rows `q_stride` numbers apart
    k,  # [N, GROUPS, D]
    v,
    q_norm,  # [D], read if NORMS
    k_norm,
    eps,
    cos,  # [N, D], read if ROTATES; the first half of sin is negative
    sin,
    rows,  # [N]: where keys and values go
    queries,  # [GROUPS, HEADS / GROUPS * N, D]
    keys,  # [GROUPS, capacity, D], heads `cache_stride` numbers apart
    values,
    q_stride,
    k_stride,
    v_stride,
    cache_stride,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMS: tl.constexpr,
    ROTATES: tl.constexpr,
):
    """One head of one token."""
    token, head, count = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    i = tl.arange(0, BLOCK)
    known = i < D
    row = tl.load(rows + token).to(tl.int64)
    if head >= HEADS + GROUPS:
        group = head - HEADS - GROUPS
        there = values + group * cache_stride + row * D + i
        number = tl.load(v + token * v_stride + group * D + i, known, other=0.0)
        tl.store(there, number.to(values.dtype.element_ty), known)
    else:
        partner = tl.where(i < D // 2, i + D // 2, i - D // 2)
        is_query = head < HEADS
        group = head - HEADS  # of a key
        place = q + token * q_stride + head * D if is_query else k + token * k_stride + group * D
        x = tl.load(place + i, known, other=0.0).to(tl.float32)
        if ROTATES:
            other = tl.load(place + partner, known, other=0.0).to(tl.float32)
        if NORMS:
            weight = q_norm if is_query else k_norm
            size = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
            x *= size * tl.load(weight + i, known, other=0.0).to(tl.float32)
            if ROTATES:
                other *= size * tl.load(weight + partner, known, other=0.0).to(tl.float32)
        if ROTATES:
            by_cos = tl.load(cos + token * D + i, known, other=0.0).to(tl.float32)
            by_sin = tl.load(sin + token * D + i, known, other=0.0).to(tl.float32)
            x = x * by_cos + other * by_sin
        if is_query:  # as as_rows has them: by group, by the heads that share it, by token
            tl.store(queries + (head * count + token) * D + i, x.to(queries.dtype.element_ty), known)
        else:
            there = keys + group * cache_stride + row * D + i
            tl.store(there, x.to(keys.dtype.element_ty), known)


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


def _to_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """q [N, heads * d], k and v [N, groups * d], of rows that may lie apart; cos and sin [N, 1, d];
    keys and values [1, groups, C, d]: what is written to, at the positions rows [N].
    -> the queries as attention reads them, [1, groups, heads / groups * N, d]"""
    _, groups, _, d = keys.shape
    n, heads = len(q), q.shape[1] // d
    queries = q.new_empty(1, groups, heads // groups * n, d)
    with device_of(q):
        head_kernel[(n, heads + 2 * groups)](
            q,
            k,
            v,
            q if q_norm is None else q_norm,
            k if k_norm is None else k_norm,
            eps,
            q if cos is None else cos.contiguous(),
            q if sin is None else sin.contiguous(),
            rows,
            queries,
            keys,
            values,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            keys.stride(1),
            HEADS=heads,
            GROUPS=groups,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            NORMS=q_norm is not None,
            ROTATES=cos is not None,
            num_warps=1,
        )
    return queries


def _gate(gate_up: Tensor, gelu: bool) -> Tensor:
    n, width = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty(n, width)
    with device_of(gate_up):
        gate_kernel[(triton.cdiv(width, GATE_BLOCK), n)](
            gate_up.contiguous(), output, WIDTH=width, BLOCK=GATE_BLOCK, GELU=gelu
        )
    return output


def _norm(x: Tensor, weight: Tensor, eps: float, y: Tensor, adds: bool) -> Tensor:
    size = x.shape[-1]
    with device_of(x):
        norm_kernel[(x.numel() // size,)](
            x.contiguous(),
            weight,
            y,
            eps,
            SIZE=size,
            BLOCK=triton.next_power_of_2(size),
            ADDS=adds,
            num_warps=8 if size > 1024 else 4,
        )
    return y


# As operations of torch, so that tensors without numbers have their shapes. The CPU is for Triton's
# interpreter.
for backend in ("CUDA", "CPU"):
    _LIBRARY.impl("to_attention", _to_attention, backend)
    _LIBRARY.impl("gate", _gate, backend)
    _LIBRARY.impl(
        "normed", lambda x, weight, eps: _norm(x, weight, eps, torch.empty_like(x), adds=False), backend
    )
    _LIBRARY.impl(
        "add_normed", lambda stream, x, weight, eps: _norm(x, weight, eps, stream, adds=True), backend
    )


def _queries(q: Tensor, keys: Tensor) -> Tensor:
    _, groups, _, d = keys.shape
    return q.new_empty(1, groups, q.numel() // (groups * d), d)


_LIBRARY.impl("to_attention", lambda q, *others: _queries(q, others[-2]), "Meta")
_LIBRARY.impl("gate", lambda gate_up, gelu: gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2), "Meta")
_LIBRARY.impl("normed", lambda x, weight, eps: torch.empty_like(x), "Meta")
_LIBRARY.impl("add_normed", lambda stream, x, weight, eps: stream, "Meta")
to_attention = torch.ops.specdemo.to_attention
gate = torch.ops.specdemo.gate
normed = torch.ops.specdemo.normed
add_normed = torch.ops.specdemo.add_normed
