"""What the sections need of a CUDA device."""

from collections.abc import Callable

import torch

from specdemo.doctor.trials import NotRun
from specdemo.runtime import cuda


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def need_cuda() -> None:
    """NotRun without a CUDA device."""
    if torch.version.cuda is None and torch.version.hip is None:
        raise NotRun(f"torch {torch.__version__} is a CPU build")
    if not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA device")


def replayed_us(step: Callable[[], object], count: int) -> float:
    """Microseconds that the device takes for a step, which is captured `count` times in one CUDA graph, so
    that the host's part does not count."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # libraries set themselves up at first use, which cannot be captured
    cuda.synchronize("cuda")
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            step()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = 10
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    cuda.synchronize("cuda")
    return 1000 * start.elapsed_time(end) / (times * count)
