"""A linear layer that is fast for few rows on a CPU.

Verifying a draft multiplies few rows (gamma + 1) with every weight. BLAS libraries are slow at that: they are
tuned for one row or for many. The transposed product has the same result. With MKL on an AMD EPYC it takes
0.2 to 0.4 of the time for 2 rows and 0.3 to 0.9 for 5 (weights from 2048 x 2048 to 49152 x 576). The embedded
target's forward of 5 rows takes 8 ms instead of 10 on one thread. Above 8 rows there is no gain.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import linear

FEW = range(2, 9)  # rows for which the transposed product is faster


class SkinnyLinear(Linear):
    """torch's linear layer, with the transposed product for 2 to 8 rows."""

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        rows = x.reshape(-1, self.in_features)
        return skinny_linear(rows, self.weight, self.bias).view(*x.shape[:-1], self.out_features)


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [N, in], weight [out, in] -> [N, out]"""
    if len(x) not in FEW:
        return linear(x, weight, bias)
    output = torch.mm(weight, x.t()).t().contiguous()
    return output if bias is None else output.add_(bias)


def use_skinny_linear(model: Module) -> None:
    """Makes all linear layers SkinnyLinear, with the same weights. For a float32 model on a CPU."""
    _change_class(model, Linear, SkinnyLinear)


@contextmanager
def as_loaded(*models: Module | None) -> Iterator[None]:
    """Restores transformers' own layers for a while: a benchmark must compare with transformers as it is."""
    changed = [model for model in models if model and _change_class(model, SkinnyLinear, Linear)]
    try:
        yield
    finally:
        for model in changed:
            use_skinny_linear(model)


def _change_class(model: Module, old: type[Linear], new: type[Linear]) -> bool:
    layers = [module for module in model.modules() if type(module) is old]
    for layer in layers:
        layer.__class__ = new
    return bool(layers)
