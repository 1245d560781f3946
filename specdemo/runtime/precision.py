"""Products and convolutions of float32 numbers, in float32.

On CUDA torch may round what they multiply to TF32, with 10 bits of fraction: products where the program asks
for it, or a container does (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), and cuDNN's convolutions without being asked.
Two forwards that should be equal can then differ by a thousandth, since not every kernel rounds."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

PRECISION_LOCK = threading.Lock()
_users = 0  # how many need full precision now
_before = ExitStack()  # puts back what was there before them


@contextmanager
def full_float32() -> Iterator[None]:
    """Nothing rounds float32 meanwhile. The settings are torch's own, for the whole process. So the first of
    several threads changes them, and the last puts back what was there."""
    global _users
    with PRECISION_LOCK:
        if not _users:
            _before.callback(_set_full())
        _users += 1
    try:
        yield
    finally:
        with PRECISION_LOCK:
            _users -= 1
            if not _users:
                _before.close()


def _set_full() -> Callable[[], None]:
    """Returns what puts back what was there. torch keeps the settings twice, and some of its calls fail while
    the old and the new ones contradict each other, so both are set."""
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
    """Of products. Where it contradicts the new one, torch does not tell it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest" if new == "tf32" else "high"
