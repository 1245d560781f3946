"""Where numbers for a device are made on the host."""

import pytest
import torch

from specdemo.runtime import cuda
from specdemo.runtime.cuda import for_device


@pytest.mark.parametrize("is_used", [False, True])
def test_memory_is_pinned_only_once_cuda_has_been_used(monkeypatch, is_used):
    """Pinning needs a driver, which ZeroGPU's server has not while it loads a pair."""
    pinned = []

    def allocate(size):
        pinned.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(cuda, "_pinned_bytes", allocate)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    assert for_device([1, 2], torch.long, torch.device("cuda")).tolist() == [1, 2]
    assert pinned == ([cuda.HEADER + 16] if is_used else [])
    assert for_device([1, 2], torch.long, torch.device("cpu")).tolist() == [1, 2]
    assert len(pinned) == is_used
