"""How long a GPU waits for the host."""

from statistics import median

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from specdemo.bench.results import DeviceIdle
from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.runtime import cuda
from specdemo.session import stream

Interval = tuple[float, float]  # start and end, both in the same unit
ROUND = "specdemo round"  # the profiler's label of a round


def device_idle(pair: Pair, prompt: list[int], params: Params) -> DeviceIdle | None:
    """How long the device has nothing to do; None on a CPU. Profiling slows the host: an upper bound."""
    if pair.info.device == "cpu":
        return None
    run = stream(pair, prompt, params, measure=False)
    next(run), next(run)  # Started, and the round that comes with the prefill
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        while run.trace.finish is None:
            with record_function(ROUND):
                next(run)
        cuda.synchronize(pair.info.device)
    run.close()
    starts, work = [], []  # microseconds
    for event in profiler.events():
        time = event.time_range
        if event.name == ROUND and event.device_type == DeviceType.CPU:
            starts.append(time.start)
        elif event.name != ROUND and event.device_type == DeviceType.CUDA:
            work.append((time.start, time.end))
    return idle_per_round(by_round(sorted(work), sorted(starts)), scale=1e-3)


def by_round(work: list[Interval], starts: list[float]) -> list[list[Interval]]:
    """The device's intervals by the round in which they start. Those before the first round are left out."""
    ends = [*starts[1:], float("inf")]
    return [[one for one in work if start <= one[0] < end] for start, end in zip(starts, ends, strict=True)]


def idle_per_round(rounds: list[list[Interval]], scale: float = 1.0) -> DeviceIdle | None:
    """Medians over the rounds but the last, from each round's first start to the next round's first start."""
    rounds = [sorted(intervals) for intervals in rounds if intervals]
    between, in_all = [], []
    for intervals, following in zip(rounds, rounds[1:], strict=False):
        whole = (intervals[0][0], max(end for _, end in intervals))
        between.append(idle([whole, following[0]]))
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
