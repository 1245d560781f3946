"""What the hardware allows: the roofline, since a round must read both models' weights and the memory's
bandwidth limits how fast; and how long a GPU waits for the host."""

from statistics import median
from time import perf_counter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from specdemo.bench.by_count import ForwardBytes, round_bytes
from specdemo.bench.cards import reached, specified_bandwidth
from specdemo.bench.results import Bound, DeviceIdle, Roofline
from specdemo.events import Params
from specdemo.events.metrics import ratio
from specdemo.loading.pair import Pair
from specdemo.runtime.cuda import synchronize
from specdemo.runtime.weights import weight_bytes
from specdemo.session import stream

COPIED = {"cuda": 2**30, "cpu": 2**28}  # bytes: far more than any cache holds
TO_HOST = "Memcpy DtoH"  # how the profiler's names of copies to the host begin

Interval = tuple[float, float]  # start and end, both in the same unit


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
    """The roofline of rounds that read the target's weights once and the drafter's `gamma` times. Weights
    count as they are read: on a CPU mostly from copies in 16 bits."""
    copied = pair.bytes_copied
    target = weight_bytes(pair.target) - copied.target
    drafter = weight_bytes(pair.drafter) - (copied.drafter or 0) if pair.drafter is not None else 0

    specified = specified_bandwidth(pair.info.device_name)

    def bound(size: int, measured_ms: float | None) -> Bound:
        share = reached(ratio(1000 * size, measured_ms), bandwidth, specified)
        return Bound(1000 * size / bandwidth, measured_ms, share)

    both = ForwardBytes(target), ForwardBytes(drafter)
    of_round, of_plain = (
        bound(round_bytes(*both, count), ms) for count, ms in ((gamma, round_ms), (0, plain_ms))
    )
    return Roofline(bandwidth, specified, target, drafter, of_round, of_plain)


def device_idle(pair: Pair, prompt: list[int], params: Params) -> DeviceIdle | None:
    """How long the device has nothing to do; None on a CPU, and for a drafter with another tokenizer, which
    copies more than verdicts to the host. Profiling slows the host: an upper bound."""
    if pair.info.device == "cpu" or pair.other_tokenizer is not None:
        return None
    run = stream(pair, prompt, params, measure=False)
    next(run), next(run)  # Started, and the round that comes with the prefill
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in run:
            pass
        synchronize(pair.info.device)
    run.close()
    work, copies = [], []  # microseconds
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            interval = (event.time_range.start, event.time_range.end)
            (copies if event.name.startswith(TO_HOST) else work).append(interval)
    return idle_per_round(by_round(sorted(work), sorted(copies)), scale=1e-3)


def by_round(work: list[Interval], copies: list[Interval]) -> list[list[Interval]]:
    """The device's work, in order, by round. A round ends with the copy of its verdict to the host, which is
    its last interval. What ran before the first copy is left out: the profiler has not seen all of it."""
    return [
        [*(one for one in work if before[1] <= one[0] < copy[1]), copy]
        for before, copy in zip(copies, copies[1:], strict=False)
    ]


def idle_per_round(rounds: list[list[Interval]], scale: float = 1.0) -> DeviceIdle | None:
    """The device's idle times as medians over all rounds but the last. A round lasts from its first start to
    the next round's first start; the time between rounds begins with the end of the copy to the host."""
    between, in_all = [], []
    for intervals, following in zip(rounds, rounds[1:], strict=False):
        between.append(idle([intervals[-1], following[0]]))
        in_all.append(idle([*intervals, following[0]]))
    return DeviceIdle(scale * median(between), scale * median(in_all)) if between else None


def idle(intervals: list[Interval]) -> float:
    """The time between the first start and the last end that no interval covers. They may overlap."""
    intervals = sorted(intervals)
    total, covered_until = 0.0, intervals[0][0] if intervals else 0.0
    for start, end in intervals:
        total += max(0.0, start - covered_until)
        covered_until = max(covered_until, end)
    return total
