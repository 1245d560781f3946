"""What this machine is: its memory and its processor, and what its GPU can do."""

import os
import platform
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import psutil
import torch

from specdemo.runtime import cuda
from specdemo.words.message import Message, message

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
    """Bytes that the container uses, without the copies of files, which the system drops when their memory is
    needed."""
    statistics = (line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    files = next((int(value) for name, value in statistics if name == "inactive_file"), 0)
    return int((CGROUP / "memory.current").read_text()) - files


def amount(size: int) -> str:
    """A number of bytes, in words."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def why(device: str) -> Message:
    """Why a server computes on this device, in a few words."""
    if os.environ.get("SPACES_ZERO_GPU"):
        return message("lent_gpu")
    if device != "cpu":
        return message("gpu")
    if torch.cuda.is_available():
        return message("as_started")
    return message("no_gpu" if torch.version.cuda else "no_gpu_usable")


def device_name(device: torch.device | str) -> str:
    return torch.cuda.get_device_name(device) if cuda.is_cuda(device) else cpu_name()


@lru_cache
def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def has_bfloat16(device: torch.device | str) -> bool:
    """Whether the CUDA device computes in bfloat16. Older ones emulate it, which is slow and rules out fused
    attention; `torch.cuda.is_bf16_supported` counts that, and looks at the current device only."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def quantized_kinds(
    device: torch.device | str, dtype: torch.dtype, layers: Iterable[torch.nn.Linear]
) -> list[str]:
    """The kinds of quantised weights that these layers can have on a CUDA device without optimum-quanto's own
    CUDA code. That is compiled when it is first used (0.2.7, library/extensions/cuda), which takes minutes.

    int8     writes the whole weight anew in the dtype for each product (library/qbytes_mm.py)
    float8   the same in float32, and on devices before capability 8.0. Else 16-bit floats take Marlin
             (tensor/weights/qbytes.py), which is compiled; issue 409 reports that its output is wrong, too
    int4     from 8.0 on bfloat16 takes torch's own kernel (tensor/weights/qbits.py) if the layer has groups
             of 128 (nn/qmodule.py); the kernel has rows in eights. All else takes compiled code, and so does
             any operation on such a weight that is not a product
    int2     is unpacked by compiled code
    """
    kinds, modern = ["int8"], has_bfloat16(device)
    grouped = all(
        layer.in_features > 128 and layer.in_features % 128 == 0 and layer.out_features % 8 == 0
        for layer in layers
    )
    if modern and dtype == torch.bfloat16 and grouped:
        kinds.append("int4")
    if not modern or dtype == torch.float32:
        kinds.append("float8")
    return kinds
