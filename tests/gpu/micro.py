"""python -m tests.gpu.micro: small measurements that decide what is worth a kernel of its own. Attention by
length, products of few rows, and small kernels, beside what the memory's bandwidth allows; and what the host
does between two rounds."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, thread_time_ns
from unittest.mock import patch

import torch
from optimum.quanto import QLinear, qint8
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from specdemo import Params, load_pair
from specdemo.doctor.machine import device
from specdemo.drafters.model.drafter import ModelDrafter
from specdemo.runtime import cuda, steps
from specdemo.runtime.attention import additive, grouped_attention, without_cudnn
from specdemo.runtime.linear import JoinedLinear
from specdemo.runtime.steps import RunStep
from specdemo.session import decoder_of, prepare
from tests.kernel_shapes import MODELS, ModelShape, products_of

GAMMA = 4
LENGTHS = (512, 1024, 4096, 8192, 32_768, 49_152)  # of a cache on a GPU
WEIGHTS_AT_LEAST = 2**28  # bytes that products read in turns: more than a GPU's cache holds
ROWS = (1, 2, GAMMA + 1)
PAIR = ("Llama-3.2-3B", "Llama-3.2-1B")
COPIED = {"cuda": 2**30, "cpu": 2**28}  # bytes: far more than any cache holds
BY_TRITON = " by Triton"
RUNS = 4  # of 200 tokens, between whose rounds the host is timed


def replayed_us(step: Callable[[], object], count: int) -> float:
    """Microseconds that the device takes for a step, which is captured `count` times in one CUDA graph, so
    that the host's part does not count."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # libraries set themselves up at first use, which cannot be captured
    cuda.synchronize("cuda")
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            step()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = 10
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    cuda.synchronize("cuda")
    return 1000 * start.elapsed_time(end) / (times * count)


def copy_bandwidth() -> float:
    """Bytes read and written per second when many are copied within the device's memory; a median."""
    source = torch.ones(COPIED[device()], dtype=torch.uint8, device=device())
    copy, seconds = torch.zeros_like(source), []
    for _ in range(8):
        cuda.synchronize(device())
        start = perf_counter()
        copy.copy_(source)
        cuda.synchronize(device())
        seconds.append(perf_counter() - start)
    return 2 * source.nbytes / median(seconds[1:])


def microseconds(step: Callable[[], object], times: int) -> float:
    """Of one step. On a CPU of one call."""
    if device() == "cuda":
        return replayed_us(step, times)
    step()
    start = perf_counter()
    step()
    return 1e6 * (perf_counter() - start)


def attention(shape: ModelShape, rows: int, length: int, bandwidth: float) -> str:
    """In a cache of this length that is filled to seven eighths: by torch's kernel, the same over parts, and
    by our own where there is Triton. Errors are those against float64."""
    where, dtype = device(), torch.bfloat16 if device() == "cuda" else torch.float32
    heads, groups, width = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    query = torch.randn(1, heads, rows, width, device=where, dtype=dtype)
    key, value = torch.randn(2, 1, groups, length, width, device=where, dtype=dtype)
    first = length - length // 8 - rows
    position = torch.arange(first, first + rows, device=where)
    hidden = torch.arange(length, device=where) > position[:, None]
    mask = additive(hidden, dtype)  # [1, 1, N, L]
    grouped = query.reshape(1, groups, -1, width)  # [1, G, H/G * N, d]
    wide = mask.repeat(1, 1, heads // groups, 1)

    def whole() -> Tensor:
        output = scaled_dot_product_attention(grouped, key, value, attn_mask=wide)
        return output.reshape(1, heads, rows, width).transpose(1, 2)

    def over_parts() -> Tensor:
        return grouped_attention(torch.nn.Module(), query, key, value, mask, scaling=width**-0.5)[0]

    ways = {"torch's": whole, "over parts": over_parts}
    if cuda.has_triton(where):
        from specdemo.runtime.triton_attention import few_rows_attention  # imports Triton

        new = (each[0, :, first : first + rows].transpose(0, 1).flatten(1) for each in (key, value))
        given = query[0].transpose(0, 1).flatten(1), *(each.contiguous() for each in new)
        others = None, None, 0.0, None, position, key, value, width**-0.5, 0.0, 0, False, False, None, None
        ways["ours"] = lambda: few_rows_attention(*given, *others).view(1, rows, heads, width)

    exact = scaled_dot_product_attention(*(each.double() for each in (grouped, key, value)), wide.double())
    exact = exact.reshape(1, heads, rows, width).transpose(1, 2)
    told = []
    for name, way in ways.items():
        error = (way().double() - exact).norm() / exact.norm()
        told.append(f"{name} {microseconds(way, 20):.1f} us (error {error:.0e})")
    floor = 2 * key[:, :, : first + rows].nbytes / bandwidth * 1e6
    return f"{', '.join(told)}, memory {floor:.1f} us"


def products(rows: int, outputs: int, inputs: int, kind: str, bandwidth: float) -> str:
    """Through as many weights in turns as no cache holds. kind: one of `kinds`."""
    where, dtype = device(), torch.bfloat16 if device() == "cuda" else torch.float32
    int8 = kind.startswith("int8")
    weight_bytes = outputs * inputs * (1 if int8 else dtype.itemsize)
    count = 1 if where == "cpu" else max(1, -(-WEIGHTS_AT_LEAST // weight_bytes))
    x = torch.randn(rows, inputs, device=where, dtype=dtype)
    layers = [
        torch.nn.Linear(inputs, outputs, bias=False, device=where, dtype=dtype).requires_grad_(False)
        for _ in range(count)
    ]
    if int8:
        layers = [QLinear.from_module(layer, weights=qint8) for layer in layers]
        for layer in layers:
            layer.freeze()

    calls = [JoinedLinear(layer, triton=kind.endswith(BY_TRITON)) for layer in layers]

    def all_of_them() -> None:
        for call in calls:
            call(x)

    us = microseconds(all_of_them, 4) / count
    rate = 1e6 * weight_bytes / us
    return f"{us:.1f} us, {rate / 1e9:,.0f} GB/s, {rate / bandwidth:.0%} of the copy bandwidth"


def kinds() -> list[str]:
    """Of products, here. The last are this engine's own kernels, where there is Triton."""
    kinds = ["bfloat16" if device() == "cuda" else "float32", "int8"]
    return kinds + [kind + BY_TRITON for kind in kinds] * cuda.has_triton(device())


def rows_of(kind: str) -> tuple[int, ...]:
    """One and two where our own kernel multiplies no more with weights that are not quantised."""
    return ROWS if kind.startswith("int8") or not kind.endswith(BY_TRITON) else ROWS[:2]


def small_kernels(hidden: int) -> dict[str, Callable[[], object]]:
    where, dtype = device(), torch.bfloat16 if device() == "cuda" else torch.float32
    x = torch.randn(GAMMA + 1, hidden, device=where, dtype=dtype)
    weight, number = torch.ones(hidden, device=where, dtype=dtype), torch.zeros((), device=where)
    return {
        "an empty one": lambda: number.add_(1),
        "a sum": lambda: x + x,
        "rms_norm": lambda: rms_norm(x, (hidden,), weight, 1e-5),
        "silu and product": lambda: silu(x) * x,
    }


class DraftsTimed:
    """A RunStep of drafts. gaps: the host's processor time, in us, from when a verdict's numbers are there
    until the next draft is launched: until its graph has been replayed, or its step begins."""

    captures = True

    def __init__(self, run_step: RunStep):
        self.run_step = run_step
        self.rows = run_step.rows
        self.home: int | None = None
        self.gaps: list[float] = []

    def on_host(self, tensor: Tensor) -> Tensor:
        copy = cuda.on_host(tensor)
        self.home = thread_time_ns()
        return copy

    def launched(self) -> None:
        if self.home is not None:
            self.gaps.append((thread_time_ns() - self.home) / 1000)
            self.home = None

    def __call__(self, key: tuple, step: Callable, value: object, expected: Callable | None = None) -> tuple:
        def begins(*arguments: object) -> object:
            self.launched()
            return step(*arguments)

        output = self.run_step(key, begins, value, expected)
        self.launched()
        return output


def between_rounds(temperature: float) -> str:
    """With the embedded pair, each round launched ahead as on a GPU."""
    pair, gaps = load_pair(device=device()), []
    for seed in range(RUNS):
        params = Params(temperature=temperature, max_new_tokens=200, ignore_eos=True, seed=seed)
        started = prepare(pair, "Once upon a time", params)
        with pair.runner.active():
            decoder = replace(decoder_of(pair, started, lambda: False), ahead=True)
            assert isinstance(decoder.drafter, ModelDrafter)
            timed = decoder.drafter.run_step = DraftsTimed(decoder.drafter.run_step)
            with patch.object(steps, "on_host", timed.on_host):
                for _ in decoder.decode(list(started.prompt_ids)):
                    pass
        gaps += timed.gaps
    return f"{median(gaps):.0f} us, median of {len(gaps)}"


def options() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m tests.gpu.micro", description=__doc__)
    about = "only one of each, also on a CPU, where the times say nothing, but for the last ones"
    parser.add_argument("--small", action="store_true", help=about)
    return parser


@torch.no_grad()
@without_cudnn()  # as in a run
def main(arguments: Sequence[str] | None = None) -> int:
    small = options().parse_args(arguments).small
    if device() == "cpu" and not small:
        options().error("there is no CUDA device: on a CPU it runs with --small")
    bandwidth = copy_bandwidth()
    print(f"{device()}: memory is copied at {bandwidth / 1e9:,.1f} GB/s, read and written")
    target, drafter = (MODELS[name] for name in PAIR)
    torch.manual_seed(0)
    for name, shape, rows in (("verifying", target, GAMMA + 1), ("drafting", drafter, 1)):
        for length in LENGTHS[:1] if small else LENGTHS:
            print(
                f"attention, {name}, {length:,} keys: {attention(shape, rows, length, bandwidth)}", flush=True
            )
    every = [*matrices(target), *matrices(drafter)]
    for kind in kinds():
        for rows in ROWS[:1] if small else rows_of(kind):
            for outputs, inputs in every[-2:-1] if small else dict.fromkeys(every):
                told = products(rows, outputs, inputs, kind, bandwidth)
                print(f"product, {kind}, {rows} x {inputs} x {outputs}: {told}", flush=True)
    for name, step in small_kernels(target.hidden_size).items():
        print(f"small kernel, {name}: {microseconds(step, 200):.2f} us", flush=True)
    for temperature in (0.0, 0.9):
        print(
            f"host between two rounds, temperature {temperature}: {between_rounds(temperature)}", flush=True
        )
    return 0


def matrices(shape: ModelShape) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's products as a fused forward does them, and of the output layer."""
    return [*products_of(shape), (shape.vocab_size, shape.hidden_size)]


if __name__ == "__main__":
    sys.exit(main())
