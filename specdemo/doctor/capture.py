"""A section that finds whether a step can be captured as a CUDA graph and replayed, and what a capture that
fails leaves behind. It is a section of its own, in another process, because torch may not recover."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from specdemo.doctor.machine import need_cuda
from specdemo.doctor.trials import Failed, Trial
from specdemo.runtime import cuda
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs

_MIB = 2**20


@dataclass(frozen=True)
class Numbers:
    x: Tensor

    def on_device(self) -> "Numbers":
        return self

    def varied(self) -> "Numbers":
        return Numbers(self.x + 1)


def step(value: Numbers) -> Numbers:
    return Numbers((value.x * 2 + 1).cumsum(0))


def numbers(n: int, size: int = 100) -> Numbers:
    return Numbers(torch.arange(size, device="cuda").double() + n)


def replay() -> str:
    need_cuda()
    graphs = Graphs(Clock())
    for n in range(4):
        _, output = graphs(("doctor", 0), step, numbers(n))
        _check_captured(graphs)
        if not torch.equal(output.x, step(numbers(n)).x):
            raise Failed(f"replay {n} differs from the step itself")
    return "4 replays equal the step itself"


def graphs_memory() -> str:
    need_cuda()
    graphs = Graphs(Clock(), most=4)
    size = _MIB  # 8 MiB each
    held = []
    for key in range(40):
        graphs(("doctor", key), step, numbers(key, size))
        held.append(torch.cuda.memory_reserved())
    _check_captured(graphs)
    grown = (held[-1] - held[9]) / _MIB
    if grown > 64:
        raise Failed(f"with 4 graphs kept, 30 further captures took {grown:,.0f} MiB more")
    return f"with 4 graphs kept, 40 captures hold {held[-1] / _MIB:,.0f} MiB"


def bad_step(value: Numbers) -> Numbers:
    """A step that waits for the device, which no capture allows."""
    return Numbers(value.x * value.x.sum().item())


@cache
def fail() -> str:
    need_cuda()
    graphs = Graphs(Clock())
    _, output = graphs(("doctor", 0), bad_step, numbers(1))
    if not torch.equal(output.x, bad_step(numbers(1)).x):
        raise Failed("the step's output is wrong")
    if not graphs.blocker:
        raise Failed("the capture did not fail, though the step waits for the device")
    return graphs.blocker


def uncaptured() -> str:
    need_cuda()
    fail()
    return _compared(step(numbers(2)).x.cpu(), step(Numbers(numbers(2).x.cpu())).x)


def captured() -> str:
    need_cuda()
    fail()
    graphs = Graphs(Clock())
    _, output = graphs(("doctor", 1), step, numbers(3))
    _check_captured(graphs)
    return _compared(output.x, step(numbers(3)).x)


def _check_captured(graphs: Graphs) -> None:
    if graphs.fault:
        raise Failed(f"it cannot be captured: {graphs.fault}")


def _compared(output: Tensor, expected: Tensor) -> str:
    if not torch.equal(output, expected):
        raise Failed("its output is wrong")
    return "its output is right"


def freed_memory() -> str:
    """Checks that memory is freed after a failed capture. Each allocation is larger than the one before, so
    that none can take the last one's place."""
    need_cuda()
    fail()
    cuda.free_cache("cuda")
    before = torch.cuda.memory_reserved()
    for size in range(64, 129, 8):
        torch.empty(size * _MIB, dtype=torch.uint8, device="cuda")
        cuda.free_cache("cuda")
    grown = (torch.cuda.memory_reserved() - before) // _MIB
    if grown > 32:
        raise Failed(
            f"{grown:,} MiB that were freed stay reserved: torch {torch.__version__} gives nothing back in "
            "this process any more"
        )
    return "what is freed goes back to the device"


TRIALS = {
    "capture": [
        Trial("a step is captured and replayed", replay),
        Trial("captured steps take bounded memory", graphs_memory),
    ],
    "failed-capture": [
        Trial("a step that cannot be captured runs as it is, with a reason", fail),
        Trial("an uncaptured step works after that", uncaptured),
        Trial("another step can be captured after that", captured),
        Trial("memory is given back after that", freed_memory),
    ],
}
