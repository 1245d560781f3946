"""Whether a step can be captured as a CUDA graph and replayed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.doctor.sections.cuda import need_cuda
from specdemo.doctor.trials import Failed, Trial


@dataclass(frozen=True)
class Numbers:
    x: Tensor

    def varied(self) -> "Numbers":
        return Numbers(self.x + 1)


def trials() -> Iterator[Trial]:
    yield Trial("a step is captured and replayed", replay)
    yield Trial("captured steps take bounded memory", memory)


def step(value: Numbers) -> Numbers:
    return Numbers((value.x * 2 + 1).cumsum(0))


def numbers(n: int, size: int = 100) -> Numbers:
    return Numbers(torch.arange(size, device="cuda").double() + n)


def replay() -> str:
    need_cuda()
    from specdemo.runtime.clock import Clock
    from specdemo.runtime.graphs import Graphs

    graphs = Graphs(Clock())
    for n in range(4):
        _, output = graphs(("doctor", 0), step, numbers(n))
        if graphs.blocker:
            raise Failed(f"it cannot be captured: {graphs.blocker}")
        if not torch.equal(output.x, step(numbers(n)).x):
            raise Failed(f"replay {n} differs from the step itself")
    return "4 replays equal the step itself"


def memory() -> str:
    need_cuda()
    from specdemo.runtime.clock import Clock
    from specdemo.runtime.graphs import Graphs

    graphs = Graphs(Clock(), most=4)
    size = 2**20  # 8 MiB each
    held = []
    for key in range(40):
        graphs(("doctor", key), step, numbers(key, size))
        held.append(torch.cuda.memory_reserved())
    if graphs.blocker:
        raise Failed(f"it cannot be captured: {graphs.blocker}")
    grown = (held[-1] - held[9]) / 2**20
    if grown > 64:
        raise Failed(f"with 4 graphs kept, 30 further captures took {grown:,.0f} MiB more")
    return f"with 4 graphs kept, 40 captures hold {held[-1] / 2**20:,.0f} MiB"
