"""The engine's clock: milliseconds on a device's own timeline, without the time in which steps are
captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

from specdemo.runtime import cuda

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Timestamp:
    at: float | torch.cuda.Event  # seconds, or an event on the GPU's timeline
    paused: float  # seconds that the clock had been paused for by then


class Clock:
    """Times drafting and verifying. A GPU works later than the host launches its work, so its times come from
    CUDA events, which the host does not wait for."""

    def __init__(self) -> None:
        self.devices: set[torch.device] = set()  # of the models that it times
        self._paused = 0.0  # seconds

    def timestamp(self, device: torch.device = CPU) -> Timestamp:
        if not cuda.is_cuda(device):
            return Timestamp(perf_counter(), self._paused)
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return Timestamp(event, self._paused)

    def ms_between(self, start: Timestamp, end: Timestamp) -> float:
        """Milliseconds between two timestamps of one device. CUDA events must have been reached by now."""
        if isinstance(start.at, float) and isinstance(end.at, float):
            elapsed = 1000 * (end.at - start.at)
        else:
            elapsed = start.at.elapsed_time(end.at)
        return max(0.0, elapsed - 1000 * (end.paused - start.paused))

    def wait(self) -> None:
        """Until the models' devices have done all that was given to them."""
        for device in self.devices:
            cuda.synchronize(device)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Warm-up and capture are no part of a round's time."""
        self.wait()  # work that is still queued belongs to the round
        start = perf_counter()
        try:
            yield
        finally:
            self._paused += perf_counter() - start
