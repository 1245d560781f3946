"""What the engine itself adds to the models' work: on a CPU its share of a round, on a GPU the time in which the device waits."""

from statistics import median
from time import perf_counter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from specdemo.bench.contestants import changed
from specdemo.events import Params, Round
from specdemo.loading.pair import Pair
from specdemo.session import stream

Interval = tuple[float, float]  # start and end, in one unit


def engine_share(pair: Pair, prompts: list[list[int]], params: Params) -> float | None:
    """The part of the rounds' time that is not spent in the two models' forwards: drafting, judging, recording. Hooks on the
    models tell the two apart. A recorded forward calls no hooks, so this is measured with `pair.record = False`; where recorded
    forwards are faster, the engine's share of a round is larger than this."""
    inside, started = 0.0, 0.0

    def before(*_):
        nonlocal started
        started = perf_counter()

    def after(*_):
        nonlocal inside
        inside += perf_counter() - started

    shares = []
    hooks = [
        hook
        for model in (pair.target, pair.drafter)
        if model is not None
        for hook in (model.register_forward_pre_hook(before), model.register_forward_hook(after))
    ]
    try:
        with changed(pair, record=False):
            for prompt in prompts:
                total = 0.0
                for index, round in enumerate(_rounds(pair, prompt, params)):
                    if index == 0:  # it comes with the prefill behind it: both models' prefill is taken out
                        inside = 0.0
                        continue
                    total += round.draft_ms + round.verify_ms
                if total:
                    shares.append(1 - 1000 * inside / total)
    finally:
        for hook in hooks:
            hook.remove()
    return median(shares) if shares else None


def _rounds(pair: Pair, prompt: list[int], params: Params):
    return (event for event in stream(pair, prompt, params) if isinstance(event, Round))


def host_gap_ms(pair: Pair, prompt: list[int], params: Params) -> dict | None:
    """Milliseconds a round in which the device has nothing to do, medians over the rounds: "between" rounds, and in "all" with what
    it waits for inside of them. None on a CPU. The profiler slows the host down, so these are upper bounds."""
    if pair.info.device == "cpu":
        return None
    mark, run = "specdemo round", stream(pair, prompt, params)
    next(run), next(run)  # Started, and the round that comes with the prefill
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        while run.trace.finish is None:
            with record_function(mark):
                next(run)
        torch.cuda.synchronize()
    run.close()
    events = [
        (event.time_range.start, event.time_range.end, event) for event in profiler.events()
    ]  # microseconds
    starts = sorted(
        start for start, _, event in events if event.name == mark and event.device_type == DeviceType.CPU
    )
    work = sorted(
        (start, end)
        for start, end, event in events
        if event.device_type == DeviceType.CUDA and event.name != mark
    )
    return round_gaps(by_round(work, starts), scale=1e-3)


def by_round(work: list[Interval], starts: list[float]) -> list[list[Interval]]:
    """The device's intervals, each given to the last round that had begun before it."""
    edges = [*starts[1:], float("inf")]
    return [[one for one in work if start <= one[0] < end] for start, end in zip(starts, edges, strict=True)]


def round_gaps(rounds: list[list[Interval]], scale: float = 1.0) -> dict | None:
    """Medians over the rounds: "between" a round's last end and the next one's first start, and in "all" with the gaps inside."""
    rounds = [sorted(round) for round in rounds if round]
    pairs = list(zip(rounds, rounds[1:], strict=False))
    if not pairs:
        return None
    between = [idle([(a[0][0], max(end for _, end in a)), b[0]]) for a, b in pairs]
    all = [idle([*a, b[0]]) for a, b in pairs]
    return {"between": scale * median(between), "all": scale * median(all)}


def idle(intervals: list[Interval]) -> float:
    """What lies between the first start and the last end and in none of the intervals, which may overlap."""
    total, reached = 0.0, None
    for start, end in sorted(intervals):
        total += max(0.0, start - reached) if reached is not None else 0.0
        reached = end if reached is None else max(reached, end)
    return total
