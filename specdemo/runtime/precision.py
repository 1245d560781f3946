"""Products and convolutions of float32 numbers, in float32.

On CUDA torch may round what they multiply to TF32, with 10 bits of fraction: products where the program asks
for it, or a container does (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), and cuDNN's convolutions without being asked.
Two forwards that should be equal can then differ by a thousandth, since not every kernel rounds."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from specdemo.runtime.shared import Shared


def full_float32() -> AbstractContextManager:
    """A context in which nothing rounds float32."""
    return _full.held()


def _set_full() -> Callable[[], None]:
    """Turns rounding off, and returns what puts the settings back. torch keeps the settings twice, and some
    of its calls fail while the old and the new ones contradict each other, so both are set."""
    backends = torch.backends
    ours = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [one.fp32_precision for one in ours]
    products, convolutions = _old_setting(before[0]), before[2] == "tf32"
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = False
    for one in ours:
        one.fp32_precision = "ieee"

    def put_back() -> None:
        torch.set_float32_matmul_precision(products)
        backends.cudnn.allow_tf32 = convolutions
        for one, precision in zip(ours, before, strict=True):
            one.fp32_precision = precision

    return put_back


def _old_setting(new: str) -> str:
    """The old setting of products. Where it contradicts the new one, torch does not tell it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest" if new == "tf32" else "high"


_full = Shared(lambda _: _set_full())
