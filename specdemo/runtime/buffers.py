"""Memory that is written by position, and how much of it a forward reads."""

import torch
from torch import Tensor

MIN_CAPACITY = 256  # tokens that there is room for


# Buffers outlive a caller's inference mode, and could not be written to after it.
@torch.inference_mode(False)
def longer(old: Tensor, length: int) -> Tensor:
    """`old` [..., n, d] followed by zeros up to [..., length, d]. Not uninitialised memory: masked values are
    multiplied by 0, and NaN would survive that."""
    new = old.new_zeros(*old.shape[:-2], length, old.shape[-1])
    new[..., : old.shape[-2], :] = old
    return new


def kv_length_for(length: int, device: torch.device) -> int:
    """How many positions a forward attends to when the text has this length: few different numbers on a GPU,
    where each has to be captured (256, 384, 512, 768, 1024, ...), and the next multiple of 64 on a CPU."""
    if device.type == "cpu":
        return -(-length // 64) * 64
    power = max(MIN_CAPACITY, 1 << (length - 1).bit_length())
    return power * 3 // 4 if length <= power * 3 // 4 and power > MIN_CAPACITY else power
