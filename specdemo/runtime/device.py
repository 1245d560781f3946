"""What this machine is: its memory and its processor, and the way to its device."""

import platform
import re
from pathlib import Path

import psutil
import torch


def memory_of(device: str) -> int:
    """Bytes of memory that the device has in all; a container's limit counts."""
    if device != "cpu":
        return torch.cuda.get_device_properties(device).total_memory
    total = psutil.virtual_memory().total
    limit = Path("/sys/fs/cgroup/memory.max")
    limited = limit.read_text().strip() if limit.exists() else "max"
    return total if limited == "max" else min(total, int(limited))


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def to_device(numbers: list, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The numbers as a tensor on the device. The host does not wait: a copy from unpinned memory would."""
    return torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
