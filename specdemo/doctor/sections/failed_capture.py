"""What a capture that fails leaves behind. It has a process of its own, because torch may not recover."""

from collections.abc import Iterator
from functools import cache

import torch

from specdemo.doctor.sections.capture import Numbers, numbers, step
from specdemo.doctor.sections.cuda import need_cuda
from specdemo.doctor.trials import Failed, Trial

MIB = 2**20


def trials() -> Iterator[Trial]:
    yield Trial("a step that cannot be captured runs as it is, with a reason", fail)
    yield Trial("an uncaptured step works after that", uncaptured)
    yield Trial("another step can be captured after that", captured)
    yield Trial("memory is given back after that", memory)


def bad_step(value: Numbers) -> Numbers:
    """Waits for the device, which no capture allows."""
    return Numbers(value.x * value.x.sum().item())


@cache
def fail() -> str:
    need_cuda()
    from specdemo.runtime.clock import Clock
    from specdemo.runtime.graphs import Graphs

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
    output = step(numbers(2)).x.cpu()
    if not torch.equal(output, step(Numbers(numbers(2).x.cpu())).x):
        raise Failed("its output is wrong")
    return "its output is right"


def captured() -> str:
    need_cuda()
    from specdemo.runtime.clock import Clock
    from specdemo.runtime.graphs import Graphs

    fail()
    graphs = Graphs(Clock())
    _, output = graphs(("doctor", 1), step, numbers(3))
    if graphs.blocker:
        raise Failed(f"it cannot: {graphs.blocker}")
    if not torch.equal(output.x, step(numbers(3)).x):
        raise Failed("its output is wrong")
    return "its output is right"


def memory() -> str:
    """Each allocation is larger than the one before, so that none can take the last one's place."""
    need_cuda()
    from specdemo.runtime import cuda

    fail()
    cuda.free_cache("cuda")
    before = torch.cuda.memory_reserved()
    for size in range(64, 129, 8):
        torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        cuda.free_cache("cuda")
    grown = (torch.cuda.memory_reserved() - before) // MIB
    if grown > 32:
        raise Failed(
            f"{grown:,} MiB that were freed stay reserved: torch {torch.__version__} gives nothing back in "
            "this process any more"
        )
    return "what is freed goes back to the device"
