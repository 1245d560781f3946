"""Linear layers that are fast for few rows, and those of the same input (q, k and v, or gate and up) as one
product.

Verifying a draft multiplies few rows (gamma + 1) with every weight. BLAS libraries are slow at that on a CPU:
they are tuned for one row or for many. The transposed product has the same result. With MKL on an AMD EPYC it
takes 0.2 to 0.4 of the time for 2 rows and 0.3 to 0.9 for 5 (weights from 2048 x 2048 to 49152 x 576). The
embedded target's forward of 5 rows takes 8 ms instead of 10 on one thread. Above 8 rows there is no gain.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
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


class Product:
    """Linear layers of the same input. Where their weights lie one after the other in memory (see
    `join_weights`), they are one product."""

    def __init__(self, *layers: Module):
        self.layers = layers
        self.joined: dict[str, Tensor] = {}  # weight, and bias if there is one
        self.begin_run()

    def begin_run(self) -> None:
        self.joined.clear()
        if len(self.layers) == 1 or not is_plain(*self.layers):
            return
        for name in ("weight", "bias"):
            parts = [getattr(layer, name) for layer in self.layers]
            whole = _as_one(parts)
            if whole is not None:
                self.joined[name] = whole
            elif any(part is not None for part in parts):
                self.joined.clear()
                return

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, sum of the layers' outputs]"""
        if self.joined:
            product = skinny_linear if type(self.layers[0]) is SkinnyLinear else linear
            return product(x, self.joined["weight"], self.joined.get("bias"))
        outputs = [layer(x) for layer in self.layers]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def plus(self, x: Tensor, stream: Tensor) -> Tensor:
        """The product of a single layer, added to `stream`, whose memory is reused."""
        (layer,) = self.layers
        if type(layer) is SkinnyLinear and layer.bias is None and len(x) in FEW:
            return stream.add_(torch.mm(layer.weight, x.t()).t())
        if is_plain(layer) and layer.bias is None:
            return stream.addmm_(x, layer.weight.t())
        return stream.add_(layer(x))


def is_plain(*layers: object) -> bool:
    """False for layers of other classes, quantised ones for example."""
    return all(type(layer) in (Linear, SkinnyLinear) for layer in layers)


def _as_one(parts: list) -> Tensor | None:
    """The tensors as one, if each begins where the one before it ends."""
    if not all(isinstance(part, Parameter) and part.is_contiguous() for part in parts):
        return None
    first = parts[0]
    end = first.storage_offset()
    for part in parts:
        if part.storage_offset() != end or not torch._C._is_alias_of(part, first):
            return None
        end += part.numel()
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return first.detach().as_strided(shape, first.stride(), first.storage_offset())


@torch.no_grad()
def join_weights(model: Module) -> None:
    """Moves the weights of layers that have the same input one after the other. Their values and the layers
    stay as they are. For a model whose weights nobody else holds."""
    for module in model.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            layers = [getattr(module, name, None) for name in names]
            if not is_plain(*layers):
                continue
            for kind in ("weight", "bias"):
                parts = [getattr(layer, kind) for layer in layers]
                if any(part is None for part in parts):
                    continue
                whole = torch.cat([part.data for part in parts])
                for part, piece in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                    part.data = piece
