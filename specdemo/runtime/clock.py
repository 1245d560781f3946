"""The engine's clock: milliseconds on a device's own timeline, without the time in which steps are
captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Timestamp:
    at: float | torch.cuda.Event  # seconds, or an event on the GPU's timeline
    paused: float  # seconds that the clock had been paused for by then


class Clock:
    """Times drafting and verifying. A GPU works later than the host launches its work, so its times come from
    CUDA events, which the host does not wait for."""

    def __init__(self) -> None:
        self._paused = 0.0  # seconds

    def timestamp(self, device: torch.device = CPU) -> Timestamp:
        if device.type != "cuda":
            return Timestamp(perf_counter(), self._paused)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return Timestamp(event, self._paused)

    def ms_between(self, start: Timestamp, end: Timestamp) -> float:
        """Milliseconds between two timestamps of one device. CUDA events must have been reached by now."""
        if isinstance(start.at, float) and isinstance(end.at, float):
            elapsed = 1000 * (end.at - start.at)
        else:
            elapsed = start.at.elapsed_time(end.at)
        return max(0.0, elapsed - 1000 * (end.paused - start.paused))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Warm-up and capture are no part of a round's time."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # work that is still queued belongs to the round
        start = perf_counter()
        try:
            yield
        finally:
            self._paused += perf_counter() - start
