"""Linear layers that are fast for few rows, and those of the same input (q, k and v, or gate and up) as one
product.

Verifying a draft multiplies few rows (gamma + 1) with every weight. BLAS libraries are slow at that on a CPU:
they are tuned for one row or for many. The transposed product has the same result. With MKL on an AMD EPYC it
takes 0.2 to 0.4 of the time for 2 rows and 0.3 to 0.9 for 5 (weights from 2048 x 2048 to 49152 x 576). The
embedded target's forward of 5 rows takes 8 ms instead of 10 on one thread. Above 8 rows there is no gain.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import linear

from specdemo.runtime import cuda
from specdemo.runtime.weights import is_made_of_parts

CACHE_LINE = 64  # bytes
FEW = range(2, 9)  # rows for which the transposed product is faster
INT8_PARTS = ("_data", "_scale")  # of optimum-quanto's int8 weights: [out, in] int8, and [out, 1]
MOST_BY_TRITON = 17  # rows of a forward: the longest draft, and the token before it


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
    """Makes all linear layers SkinnyLinear, with the same weights. It is for a float32 model on a CPU."""
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
    layers = [
        module for module in model.modules() if type(module) is old and not is_made_of_parts(module.weight)
    ]
    for layer in layers:
        layer.__class__ = new
    return bool(layers)


class JoinedLinear:
    """Linear layers of the same input. Where their weights lie one after the other in memory (see
    `join_weights`), they are one product.

    kernels: triton_kernels.py, which multiplies one row or two, and few rows with int8 weights, by weights as
    these lie in memory. None: torch's operations do."""

    def __init__(self, *layers: Module, kernels: ModuleType | None = None):
        self.layers = layers
        self.joined: Stored | None = None  # the plain layers as one
        self.kernels = kernels
        self.stored: list[Stored] = []  # what the kernels read: all layers as one, or each
        self.most_rows = 0  # that the kernels multiply
        self.begin_run()

    def begin_run(self) -> None:
        self.joined, self.stored, self.most_rows = None, [], 0
        plain = is_plain(*self.layers)
        each = [stored for layer in self.layers if (stored := (plain_of if plain else int8_of)(layer))]
        if len(each) < len(self.layers):
            return
        whole = _as_one_each(each)
        if plain and len(self.layers) > 1:
            self.joined = whole
        if self.kernels is not None:
            self.stored = each if whole is None else [whole]
            self.most_rows = 2 if plain else MOST_BY_TRITON

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., N, in] -> [..., N, sum of the layers' outputs]"""
        if x.dim() > 2:
            return self(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        if len(x) <= self.most_rows:
            outputs = [self.kernels.few_rows_product(x, *each) for each in self.stored]
        elif self.joined is not None:
            product = skinny_linear if type(self.layers[0]) is SkinnyLinear else linear
            return product(x, self.joined.weight, self.joined.bias)
        else:
            outputs = [layer(x) for layer in self.layers]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def plus(self, x: Tensor, stream: Tensor) -> Tensor:
        """Adds the product of a single layer to `stream`, whose memory is reused."""
        (layer,) = self.layers
        if x.dim() > 2:
            return stream.add_(layer(x))
        if len(x) <= self.most_rows:
            return self.kernels.few_rows_product(x, *self.stored[0], onto=stream)
        if type(layer) is SkinnyLinear and layer.bias is None and len(x) in FEW:
            return stream.add_(torch.mm(layer.weight, x.t()).t())
        if is_plain(layer) and layer.bias is None:
            return stream.addmm_(x, layer.weight.t())
        return stream.add_(layer(x))


def is_plain(*layers: object) -> bool:
    """Whether the layers and their weights are torch's own; false for quantised ones, for example."""
    return all(
        type(layer) in (Linear, SkinnyLinear) and not is_made_of_parts(layer.weight) for layer in layers
    )


class Stored(NamedTuple):
    """A linear layer's numbers as they lie in memory: torch's own, or quantised to int8 by optimum-quanto."""

    weight: Tensor  # [out, in]
    scale: Tensor | None  # [out]: what each row of a weight in int8 is multiplied by
    bias: Tensor | None  # [out]


def plain_of(layer: Module) -> Stored | None:
    """The numbers of a plain layer; None where they do not lie in order."""
    weight, bias = layer.weight, layer.bias
    in_order = weight.is_contiguous() and (bias is None or bias.is_contiguous())
    return Stored(weight.detach(), None, bias if bias is None else bias.detach()) if in_order else None


def int8_of(layer: Module) -> Stored | None:
    """The numbers of a layer that is quantised to int8; None for any other layer."""
    weight = getattr(layer, "weight", None)
    data, scale = (getattr(weight, name, None) for name in INT8_PARTS)
    if not isinstance(data, Tensor) or not isinstance(scale, Tensor) or data.dtype != torch.int8:
        return None
    fits = data.shape == (layer.out_features, layer.in_features) and scale.shape == (len(data), 1)
    in_order = data.is_contiguous() and scale.is_contiguous()
    if not fits or not in_order or getattr(layer, "activation_qtype", None) is not None:
        return None
    bias = None if layer.bias is None else layer.bias.detach()
    return Stored(data.detach(), scale.detach().flatten(), bias)


def _as_one_each(layers: Sequence[Stored]) -> Stored | None:
    """All layers as one; None if they cannot be one."""
    wholes: list[Tensor | None] = []
    for parts in zip(*layers, strict=True):
        wholes.append(_as_one(parts))
        if wholes[-1] is None and any(part is not None for part in parts):
            return None
    return Stored(*wholes)


def _as_one(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors as one, if each begins where the one before it ends."""
    if not all(isinstance(part, Tensor) and part.is_contiguous() for part in parts):
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
def align_weights(model: Module) -> None:
    """Copies weights that begin in the middle of a cache line, as those in a mapped file do, to memory of
    their own. There the products of few rows with weights that fit in the cache took 1.15 to 1.35 times as
    long (2 to 9 rows, 256 x 256 to 256 x 1024, medians of 21 on an Intel Xeon with AVX-512, 2026-11-26), and
    some processors round them otherwise than elsewhere in memory. It is for a model whose weights
    nobody else holds."""
    for weight in (*model.parameters(), *model.buffers()):
        if type(weight) in (Parameter, Tensor) and weight.data_ptr() % CACHE_LINE:
            weight.data = weight.data.clone()


@torch.no_grad()
def join_weights(model: Module) -> None:
    """Moves the weights of layers that have the same input one after the other. Their values and the layers
    stay as they are. int8 weights are moved only where they are read as they are. It is for a model whose
    weights nobody else holds."""
    for module in model.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            layers = [getattr(module, name, None) for name in names]
            if is_plain(*layers):
                _join([layer.weight for layer in layers], "data")
            elif all(map(int8_of, layers)) and cuda.has_triton(layers[0].weight.device):
                for part in INT8_PARTS:
                    _join([layer.weight for layer in layers], part)
            else:
                continue
            if all(layer.bias is not None for layer in layers):
                _join([layer.bias for layer in layers], "data")


def _join(owners: list, name: str) -> None:
    """Moves the tensors of this name one after the other."""
    parts = [getattr(owner, name) for owner in owners]
    for owner, piece in zip(owners, torch.cat(parts).split([len(part) for part in parts]), strict=True):
        setattr(owner, name, piece)
