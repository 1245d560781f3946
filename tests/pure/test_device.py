"""What is known of the machine, on every operating system."""

import os

import pytest
import torch

from specdemo.runtime.device import memory_of, to_device


def test_memory_is_known_where_there_is_no_sysconf(monkeypatch):
    """Windows has no os.sysconf."""
    usual = memory_of("cpu")
    monkeypatch.delattr(os, "sysconf")
    assert memory_of("cpu") == usual > 2**28


@pytest.mark.parametrize("is_used", [False, True])
def test_memory_is_pinned_only_once_cuda_has_been_used(monkeypatch, is_used):
    """Pinning needs a driver, which ZeroGPU's server has not while it loads a pair."""
    pinned = []

    class OnHost:
        def to(self, device, non_blocking):
            return device, non_blocking

    def tensor(numbers, dtype, pin_memory):
        pinned.append(pin_memory)
        return OnHost()

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    cuda = torch.device("cuda")
    assert to_device([1, 2], torch.long, cuda) == (cuda, True)
    to_device([1, 2], torch.long, torch.device("cpu"))
    assert pinned == [is_used, False]
