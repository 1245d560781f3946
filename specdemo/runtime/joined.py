"""Linear layers of the same input as one product: q, k and v, or gate and up."""

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import linear

from specdemo.runtime.skinny_linear import FEW, SkinnyLinear, skinny_linear


class Product:
    """Linear layers of the same input. Where their weights lie one after the other in memory (see
    `join_weights`), they are one product."""

    def __init__(self, *layers: Module):
        self.layers = layers
        self.joined: dict[str, Tensor] = {}  # weight, and bias if there is one
        self.begin_run()

    def begin_run(self) -> None:
        self.joined.clear()
        if len(self.layers) == 1 or not _plain(*self.layers):
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
        if _plain(layer) and layer.bias is None:
            return stream.addmm_(x, layer.weight.t())
        return stream.add_(layer(x))


def _plain(*layers: object) -> bool:
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
            if not _plain(*layers):
                continue
            for kind in ("weight", "bias"):
                parts = [getattr(layer, kind) for layer in layers]
                if any(part is None for part in parts):
                    continue
                whole = torch.cat([part.data for part in parts])
                for part, piece in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                    part.data = piece
