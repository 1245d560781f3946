"""What lies between the products of a fused forward on CUDA, for few rows: attention (triton_attention.py),
and as one launch each the gate of an MLP, and norms. Sums and products are float32, and rounded once.

Imports Triton, which comes with torch's CUDA builds. Each kernel is compiled at its first call for the sizes
of a model. Nothing is tuned by timing, so a call can be captured after that."""

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from specdemo.runtime.cuda import device_of
from specdemo.runtime.triton_attention import few_rows_attention, keep_rows

__all__ = ["add_normed", "few_rows_attention", "gate", "keep_rows", "normed"]
_LIBRARY = library.Library("specdemo", "FRAGMENT")  # keeps what is defined through it
_LIBRARY.define("gate(Tensor gate_up, bool gelu) -> Tensor")
_LIBRARY.define("normed(Tensor x, Tensor weight, float eps) -> Tensor")
_LIBRARY.define("add_normed(Tensor(a!) stream, Tensor x, Tensor weight, float eps) -> Tensor(a!)")
GATE_BLOCK = 1024  # numbers of a program


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


def _contiguous_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# The kernels are operations of torch, so that tensors without numbers have their shapes. The CPU is for
# Triton's interpreter.
for backend in ("CUDA", "CPU"):
    _LIBRARY.impl("gate", _gate, backend)
    _LIBRARY.impl(
        "normed", lambda x, weight, eps: _norm(x, weight, eps, _contiguous_like(x), adds=False), backend
    )
    _LIBRARY.impl(
        "add_normed", lambda stream, x, weight, eps: _norm(x, weight, eps, stream, adds=True), backend
    )


_LIBRARY.impl("gate", lambda gate_up, gelu: gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2), "Meta")
_LIBRARY.impl("normed", lambda x, weight, eps: _contiguous_like(x), "Meta")
_LIBRARY.impl("add_normed", lambda stream, x, weight, eps: stream, "Meta")
gate = torch.ops.specdemo.gate
normed = torch.ops.specdemo.normed
add_normed = torch.ops.specdemo.add_normed
