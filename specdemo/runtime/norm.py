"""RMS norms in one operation."""

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import rms_norm


class Norm:
    """An RMS norm in one operation (Zhang and Sennrich 2019)."""

    def __init__(self, module: Module):
        self.module = module
        self.eps: float = getattr(module, "variance_epsilon", None) or module.eps
        self.around_one = type(module).__name__.startswith("Gemma")
        self.derived: dict[str, Tensor] = {}  # the weight that the module computes from its own
        self.begin_run()

    # What a caller's inference mode has made could not be written to after it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def begin_run(self) -> None:
        if not self.around_one:
            return
        weight = 1.0 + self.module.weight.float()  # Gemma's weights are differences from 1
        if self.derived and self.derived["weight"].device == weight.device:
            self.derived["weight"].copy_(weight)  # a CUDA graph reads it where it is
        else:
            self.derived["weight"] = weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.around_one:  # in float32
            weight = self.derived["weight"]
            return rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)
        return rms_norm(x, self.module.weight.shape, self.module.weight, self.eps)
