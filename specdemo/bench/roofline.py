"""The roofline: a round must read both models' weights, and the memory's bandwidth limits how fast."""

from statistics import median
from time import perf_counter

import torch

from specdemo.bench.results import Bound, Roofline
from specdemo.events.metrics import ratio
from specdemo.loading.pair import Pair, weight_bytes
from specdemo.runtime.cuda import synchronize

COPIED = {"cuda": 2**30, "cpu": 2**28}  # bytes: far more than any cache holds


def copy_bandwidth(device: torch.device | str, size: int | None = None, times: int = 7) -> float:
    """Bytes read and written per second when `size` bytes are copied within the device's memory; a median."""
    device = torch.device(device)
    source = torch.ones(size or COPIED[device.type], dtype=torch.uint8, device=device)
    copy = torch.zeros_like(source)
    seconds = []
    for _ in range(times + 1):
        synchronize(device)
        start = perf_counter()
        copy.copy_(source)
        synchronize(device)
        seconds.append(perf_counter() - start)
    return 2 * source.nbytes / median(seconds[1:])


def roofline(
    pair: Pair, gamma: int, bandwidth: float, round_ms: float | None, plain_ms: float | None
) -> Roofline:
    """For rounds that read the target's weights once and the drafter's `gamma` times."""
    target = weight_bytes(pair.target)
    drafter = weight_bytes(pair.drafter) if pair.drafter is not None else 0

    def bound(size: int, measured_ms: float | None) -> Bound:
        shortest = 1000 * size / bandwidth
        return Bound(shortest, measured_ms, ratio(shortest, measured_ms))

    of_round, of_plain = bound(target + gamma * drafter, round_ms), bound(target, plain_ms)
    return Roofline(bandwidth, target, drafter, of_round, of_plain)
