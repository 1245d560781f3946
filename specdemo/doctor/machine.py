"""What this machine is, what is installed on it, and what the other sections need of its GPU."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from specdemo.doctor.trials import Failed, Finding, NotRun, Trial
from specdemo.events import __version__
from specdemo.runtime.device import cpu_name, memory_of

PACKAGES = ("transformers", "optimum-quanto", "gradio")


def packages() -> Finding:
    versions: dict[str, object] = {
        "python": platform.python_version(),
        "specdemo": __version__,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **{name: _version(name) for name in PACKAGES},
    }
    named = ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None)
    return Finding(named, {"versions": versions})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> Finding:
    facts: dict[str, object] = {
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cpu_threads": torch.get_num_threads(),
        "cpu_memory_gb": round(memory_of("cpu") / 1e9, 1),
    }
    detail = f"{facts['cpu']}, {facts['cpu_threads']} threads, {facts['cpu_memory_gb']:g} GB"
    return Finding(f"{detail}; {facts['system']}", {"hardware": facts})


def gpu() -> Finding:
    driver = _driver()
    if driver and not torch.cuda.is_available() and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise Failed(f"nvidia-smi lists a GPU ({driver}), but torch {torch.__version__} cannot use it")
    need_cuda()
    properties = torch.cuda.get_device_properties(0)
    facts: dict[str, object] = {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": driver,
    }
    detail = f"{facts['gpus']} x {facts['gpu']}, {facts['gpu_memory_gb']:g} GB"
    detail += f", capability {facts['capability']}, driver {driver or 'unknown'}"
    return Finding(detail, {"hardware": facts})


def _driver() -> str | None:
    """The first GPU's driver, as nvidia-smi says; None without a GPU or without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def kernel() -> str:
    need_cuda()
    numbers = torch.arange(1000, device="cuda").double()
    if (total := numbers.sum().item()) != 499_500:
        raise Failed(f"the sum of 0 to 999 is {total:g} on the GPU")
    return "a sum on the GPU is right"


def bfloat16() -> Finding:
    need_cuda()
    from specdemo.loading.load import plan
    from specdemo.loading.request import resolve

    is_real = torch.cuda.is_bf16_supported(including_emulation=False)
    chosen = {str(dtype) for dtype in plan(resolve(device="cuda")).dtypes}
    if not is_real and "torch.bfloat16" in chosen:
        raise Failed("this GPU only emulates bfloat16, and yet it is the dtype that is chosen here")
    words = "computed by the GPU" if is_real else "emulated, so it is not chosen"
    return Finding(f"{words}; without --dtype: {', '.join(chosen)}", {"hardware": {"bfloat16": is_real}})


def compilers() -> Finding:
    found: dict[str, object] = {name: shutil.which(name) is not None for name in ("nvcc", "g++", "gcc")}
    found["triton"] = find_spec("triton") is not None
    named = ", ".join(f"{name} {'found' if there else 'missing'}" for name, there in found.items())
    if not any(found.values()):
        raise NotRun("there is none, and some quantised weights need one")
    return Finding(named, {"hardware": {"compilers": found}})


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def need_cuda() -> None:
    """Raises NotRun without a CUDA device."""
    if torch.version.cuda is None and torch.version.hip is None:
        raise NotRun(f"torch {torch.__version__} is a CPU build")
    if not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA device")


TRIALS = {
    "versions": [
        Trial("packages", packages),
        Trial("processor", processor),
        Trial("GPU", gpu),
        Trial("a kernel runs", kernel),
        Trial("bfloat16", bfloat16),
        Trial("compilers", compilers),
    ]
}
