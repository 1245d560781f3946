"""Where the time of a round goes, and how close it comes to the memory's bandwidth."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from specdemo.bench.by_count import (
    COUNT_COLUMNS,
    COUNTED_ACCEPTANCE,
    COUNTED_GAMMA,
    bytes_of_model,
    count_rows,
    counted_round,
    round_bytes,
)
from specdemo.bench.cards import CARDS, Accelerator, bandwidth_in_words, specified_bandwidth
from specdemo.bench.contestants import plain_and_speculative
from specdemo.bench.hardware import copy_bandwidth, device_idle, roofline
from specdemo.bench.measure import in_turns, round_ms
from specdemo.bench.prompts import story_prompts
from specdemo.bench.shapes import shaped_pair
from specdemo.doctor.machine import device, need_cuda, replayed_us
from specdemo.doctor.texts import SAMPLER_PARAMS, embedded
from specdemo.doctor.trials import Finding, NotRun, Table, Trial
from specdemo.errors import LoadError
from specdemo.events import Params
from specdemo.loading.load import plan
from specdemo.loading.pair import Pair
from specdemo.loading.request import resolve
from specdemo.runtime import cuda
from specdemo.runtime.device import device_name
from specdemo.runtime.weights import weight_bytes
from specdemo.session import generate, stream

SPEED_SHAPES = ("llama-3.2-3b-1b", "qwen3-8b-0.6b")
PROFILED = 5  # rounds
MOST_OPERATIONS = 15  # operations in a table
EMPTY_NODES = 1000
SPEED_TOKENS = {"cuda": 96, "cpu": 32}
CPU_TEXTS = (64, 256, 768)  # tokens


@cache
def bandwidth() -> float:
    return copy_bandwidth(device())


def copying() -> Finding:
    specified = specified_here()
    in_gb = {"copy_gb_per_s": bandwidth(), "specified_gb_per_s": specified}
    measured = {name: rate and round(rate / 1e9, 1) for name, rate in in_gb.items()}
    return Finding(bandwidth_in_words(bandwidth(), specified), {"measured": measured})


def specified_here() -> float | None:
    return specified_bandwidth(device_name(device()))


@cache
def node_us() -> float:
    number = torch.zeros((), device="cuda")
    return replayed_us(lambda: number.add_(1), EMPTY_NODES)


def empty_node() -> Finding:
    need_cuda()
    us = node_us()
    return Finding(f"{us:.2f} us, of {EMPTY_NODES:,} in a graph", {"measured": {"graph_node_us": us}})


def counted_rounds() -> Finding:
    """The rounds that this machine's copies and launches would allow; without a GPU, those that an H200's
    would."""
    if device() == "cuda":
        machines = {torch.cuda.get_device_name(): this_gpu()}
        return Finding(
            "counted with this machine's copy bandwidth and launches", tables=count_tables(machines)
        )
    h200 = CARDS["h200"]
    how = f"this CPU by its copy bandwidth; {h200.device_name} by what was measured on one"
    tables = count_tables({h200.device_name: h200.accelerator})
    return Finding(how, tables=[embedded_table(), *tables])


def this_gpu() -> Accelerator:
    return Accelerator(bandwidth(), node_us(), specified=specified_here())


def count_tables(machines: Mapping[str, Accelerator]) -> list[Table]:
    about = f"gamma {COUNTED_GAMMA}, acceptance {COUNTED_ACCEPTANCE}, us"
    return [
        Table(f"{name} on {on}: a round by count, {about}", COUNT_COLUMNS, count_rows(name, machine))
        for on, machine in machines.items()
        for name in SPEED_SHAPES
    ]


def embedded_table() -> Table:
    """The table of the embedded pair on a CPU, where a forward is one call: it counts only what the call
    reads."""
    pair = embedded("cpu", "float32")
    copied = pair.bytes_copied
    both = ((pair.target, copied.target), (pair.drafter, copied.drafter or 0))
    reads = [bytes_of_model(model, weight_bytes(model) - less) for model, less in both]
    rows = []
    for text in CPU_TEXTS:
        size = round_bytes(*reads, COUNTED_GAMMA, text)
        rows.append([text, size / 1e6, round(1e6 * size / bandwidth())])
    name = f"embedded on this CPU: a round by count, gamma {COUNTED_GAMMA}, us"
    return Table(name, ["text", "MB read", "limit"], rows)


def embedded_rounds() -> Finding:
    dtype = dtype_here()
    pair = embedded(device(), str(dtype).removeprefix("torch."))
    return rounds("embedded", pair, story_prompts(pair, 1))


def dtype_here() -> torch.dtype:
    """The dtype of a pair that is loaded without --dtype."""
    return plan(resolve(device=device())).dtypes[0]


def shaped_rounds(name: str) -> Finding:
    need_cuda()
    gc.collect()  # the shapes before
    cuda.free_cache("cuda")
    try:
        pair, follows = shaped_pair(name, "cuda", dtype_here())
        return rounds(name, pair, follows.prompts(1))
    except (LoadError, torch.OutOfMemoryError) as error:
        raise NotRun(f"too little memory, so only smaller models are measured: {error}") from None


def rounds(name: str, pair: Pair, prompts: list[list[int]]) -> Finding:
    """Measures rounds, greedy and with top-p: the shares of the bandwidth, and the operations that take
    longest."""
    sentences, measured, tables = [], {}, []
    for sampler in ("greedy", "top-p"):
        run = {"max_new_tokens": SPEED_TOKENS[device()], "ignore_eos": True, "seed": 0, "alternatives": 0}
        params = replace(SAMPLER_PARAMS[sampler], **run)
        numbers, share = medians(pair, prompts, params)
        measured[f"{name}, {sampler}"] = numbers
        share = share and f" ({share})"
        if device() == "cuda" and name in SPEED_SHAPES and sampler == "greedy":
            length = len(prompts[0]) + SPEED_TOKENS["cuda"]
            engine = "with Triton" if cuda.has_triton("cuda") else "without Triton"
            by_count = counted_round(name, this_gpu(), length, params.gamma, engine)
            numbers["counted_round_ms"] = by_count.us / 1000
            share += f", by count {by_count.us / 1000:.2f} ms"
        ms = "no full round" if numbers["round_ms"] is None else f"{numbers['round_ms']:.2f} ms a round"
        sentences.append(f"{sampler} {ms}{share}")
        measured_here = "kernels of a round" if device() == "cuda" else "operations of a round"
        columns = ["us a round", "share", "calls a round", "name"]
        rows = operations(pair, prompts[0], params)
        tables.append(Table(f"{name}, {sampler}: {measured_here}", columns, rows))
    if pair.runner.notes:
        sentences.append(str(pair.runner.notes[0]))
    return Finding("; ".join(sentences), {"measured": measured}, tables)


def medians(pair: Pair, prompts: list[list[int]], params: Params) -> tuple[dict[str, float | None], str]:
    """Medians of full rounds, on a GPU how long the GPU waits for the host, and in words what share of the
    bandwidth the rounds reach."""
    with pair.runner.torch_settings():
        samples, _ = in_turns(plain_and_speculative(pair, params), prompts, repeats=2)
        of_round = round_ms(samples["speculative"], params.gamma)
        of_plain = round_ms(samples["plain"], 0)
        line = roofline(pair, params.gamma, bandwidth(), of_round, of_plain)
        idle = device_idle(pair, prompts[0], params)
    numbers = {
        "round_ms": of_round,
        "shortest_round_ms": line.round.shortest_round_ms,
        "roofline": line.round.reached.of_copy,
        "roofline_of_specification": line.round.reached.of_specification,
        "plain_round_ms": of_plain,
        "plain_roofline": line.plain.reached.of_copy,
        "plain_roofline_of_specification": line.plain.reached.of_specification,
        "idle_between_rounds_ms": idle and idle.between,
        "idle_in_all_ms": idle and idle.all,
    }
    return numbers, line.round.reached.in_words()


def operations(pair: Pair, prompt: list[int], params: Params) -> list[list[str | float | None]]:
    """The operations that take longest in a round, from a profile of some rounds."""
    generate(pair, prompt, params, measure=False)  # captured by now
    on_gpu = pair.target.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with stream(pair, prompt, params, measure=False) as run:
        next(run), next(run)  # Started, and the round that comes with the prefill
        with profile(activities=activities) as profiler:
            for _ in range(PROFILED):
                next(run)
            cuda.synchronize(pair.target.device)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [event for event in profiler.key_averages() if event.device_type == kind]
    times = {event: event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in events}
    total = sum(times.values())
    longest = sorted(times, key=lambda event: times[event], reverse=True)[:MOST_OPERATIONS]
    return [
        [times[event] / PROFILED, f"{times[event] / total:.1%}", event.count / PROFILED, event.key[:90]]
        for event in longest
    ]


TRIALS = {
    "speed": [
        Trial("copy bandwidth", copying),
        Trial("an empty graph node", empty_node),
        Trial("what a round would take, by count", counted_rounds),
        Trial("the embedded pair's rounds", embedded_rounds),
        *(Trial(f"the rounds of {name}'s shapes", partial(shaped_rounds, name)) for name in SPEED_SHAPES),
    ]
}
