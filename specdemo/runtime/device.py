"""What this machine is: its memory and its processor, and the way to its device."""

import os
import platform
import re
from functools import lru_cache
from pathlib import Path

import psutil
import torch

from specdemo.runtime import cuda

CGROUP = Path("/sys/fs/cgroup")  # of a container


def memory_of(device: str) -> int:
    """Bytes of memory that the device has in all; a container's limit counts."""
    if device != "cpu":
        return torch.cuda.get_device_properties(device).total_memory
    total = psutil.virtual_memory().total
    limit = _container_limit()
    return total if limit is None else min(total, limit)


def free_memory(device: str) -> int:
    """Bytes of memory that are free on the device now, with what this process keeps there for itself."""
    if device != "cpu":
        with cuda.alone_on(device):
            free, _ = torch.cuda.mem_get_info(device)
            return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = psutil.virtual_memory().available
    limit = _container_limit()
    return free if limit is None else max(0, min(free, limit - _container_use()))


def _container_limit() -> int | None:
    limit = CGROUP / "memory.max"
    text = limit.read_text().strip() if limit.exists() else "max"
    return None if text == "max" else int(text)


def _container_use() -> int:
    """Without the copies of files, which the system drops when their memory is needed."""
    statistics = (line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    files = next((int(value) for name, value in statistics if name == "inactive_file"), 0)
    return int((CGROUP / "memory.current").read_text()) - files


def why(device: str) -> str:
    """Why a server computes there, in a few words."""
    if os.environ.get("SPACES_ZERO_GPU"):
        return "ZeroGPU lends a GPU for the time of each run"
    if device != "cpu":
        return "a GPU was found"
    if torch.cuda.is_available():
        return "as the server was started"
    return "no GPU was found" if torch.version.cuda else "no GPU was found, and this torch could not use one"


def device_name(device: torch.device | str) -> str:
    return torch.cuda.get_device_name(device) if cuda.is_cuda(device) else cpu_name()


@lru_cache
def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def to_device(numbers: list, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The numbers as a tensor on the device. The host does not wait: a copy from unpinned memory would."""
    return torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
