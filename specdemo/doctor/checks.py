"""The doctor's sections: what this machine is; whether a step can be captured as a CUDA graph and replayed,
and what a capture that fails leaves behind; and whether the embedded pair writes the same text on the CPU and
the GPU, by captured and uncaptured steps, and with quantised weights."""

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdemo.doctor.run import Facts, Failed, NotRun, Trial, serve
from specdemo.errors import LoadError, PairError
from specdemo.events import Params, __version__
from specdemo.loading.catalog import QUANTIZE
from specdemo.runtime import cuda
from specdemo.runtime.device import Clock, cpu_name, has_bfloat16, memory_of

# What needs transformers is imported where it is used, so that `versions` tells of a broken installation.
if TYPE_CHECKING:
    from specdemo.loading.pair import Pair
    from specdemo.runtime.graphs import Graphs

PACKAGES = ("transformers", "optimum-quanto", "gradio")
COMPILERS = ("nvcc", "g++", "gcc")  # some quantised weights need one


def need_cuda() -> None:
    """Raises NotRun without a CUDA device."""
    if torch.version.cuda is None and torch.version.hip is None:
        raise NotRun(f"torch {torch.__version__} is a CPU build")
    if not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA device")


def packages() -> Facts:
    versions = {
        "python": platform.python_version(),
        "specdemo": __version__,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    return {"versions": versions | {name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def processor() -> Facts:
    facts = {
        "cpu": cpu_name(),
        "cpu_threads": torch.get_num_threads(),
        "cpu_memory_gb": round(memory_of("cpu") / 1e9, 1),
        "system": platform.platform(),
        "compilers": [name for name in COMPILERS if shutil.which(name)],
        "triton": find_spec("triton") is not None,
    }
    return {"hardware": facts}


def gpu() -> Facts:
    driver = _driver()
    if driver and not torch.cuda.is_available() and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise Failed(f"nvidia-smi lists a GPU ({driver}), but torch {torch.__version__} cannot use it")
    need_cuda()
    properties = torch.cuda.get_device_properties(0)
    facts = {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": driver,
        "bfloat16": has_bfloat16("cuda"),  # else it is emulated
    }
    return {"hardware": facts}


def _driver() -> str | None:
    """The first GPU's driver, as nvidia-smi says; None without a GPU or without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def kernel() -> str:
    need_cuda()
    numbers = torch.arange(1000, device="cuda").double()
    if (total := numbers.sum().item()) != 499_500:
        raise Failed(f"the sum of 0 to 999 is {total:g} on the GPU")
    return "a sum on the GPU is right"


# Capture

_MIB = 2**20


@dataclass(frozen=True)
class Numbers:
    x: Tensor

    def on_device(self) -> "Numbers":
        return self

    def varied(self) -> "Numbers":
        return Numbers(self.x + 1)


def step(value: Numbers) -> Numbers:
    return Numbers((value.x * 2 + 1).cumsum(0))


def bad_step(value: Numbers) -> Numbers:
    """A step that waits for the device, which no capture allows."""
    return Numbers(value.x * value.x.sum().item())


def numbers(n: int, size: int = 100) -> Numbers:
    return Numbers(torch.arange(size, device="cuda").double() + n)


def new_graphs(most: int = 64) -> "Graphs":
    need_cuda()
    from specdemo.runtime.graphs import Graphs

    return Graphs(Clock(), most)


def replay() -> str:
    graphs = new_graphs()
    for n in range(4):
        _, output = graphs(("doctor", 0), step, numbers(n))
        if graphs.fault:
            raise Failed(f"it cannot be captured: {graphs.fault}")
        if not torch.equal(output.x, step(numbers(n)).x):
            raise Failed(f"replay {n} differs from the step itself")
    return "4 replays equal the step itself"


def graphs_memory() -> str:
    graphs, held = new_graphs(most=4), []
    for key in range(40):
        graphs(("doctor", key), step, numbers(key, _MIB))  # 8 MiB
        held.append(torch.cuda.memory_reserved())
    if graphs.fault:
        raise Failed(f"it cannot be captured: {graphs.fault}")
    if (grown := (held[-1] - held[9]) / _MIB) > 64:
        raise Failed(f"with 4 graphs kept, 30 further captures took {grown:,.0f} MiB more")
    return f"with 4 graphs kept, 40 captures hold {held[-1] / _MIB:,.0f} MiB"


@cache
def fail() -> str:
    graphs = new_graphs()
    _, output = graphs(("doctor", 0), bad_step, numbers(1))
    if not torch.equal(output.x, bad_step(numbers(1)).x):
        raise Failed("the step's output is wrong")
    if not graphs.blocker:
        raise Failed("the capture did not fail, though the step waits for the device")
    return graphs.blocker


def uncaptured() -> str:
    if not torch.equal(step(numbers(2)).x.cpu(), step(Numbers(numbers(2).x.cpu())).x):
        raise Failed("its output is wrong")
    return "its output is right"


def freed_memory() -> str:
    """Each allocation is larger than the one before, so that none can take the last one's place."""
    cuda.free_cache("cuda")
    before = torch.cuda.memory_reserved()
    for size in range(64, 129, 8):
        torch.empty(size * _MIB, dtype=torch.uint8, device="cuda")
        cuda.free_cache("cuda")
    if (grown := (torch.cuda.memory_reserved() - before) // _MIB) > 32:
        stays = f"{grown:,} MiB that were freed stay reserved"
        raise Failed(f"{stays}: torch {torch.__version__} gives nothing back in this process any more")
    return "what is freed goes back to the device"


def after_failure(trial: Trial) -> Facts | str:
    """Runs the trial after a failed capture."""
    fail()
    return trial()


# Texts

PROMPT = "Once upon a time there was a little fox who"
DEVICE, RUN_TOKENS = ("cuda", 64) if torch.cuda.is_available() else ("cpu", 24)
GREEDY = Params(temperature=0.0, max_new_tokens=RUN_TOKENS, ignore_eos=True, seed=5)
SAMPLERS = {
    "greedy": GREEDY,
    "temperature": replace(GREEDY, temperature=0.8),
    "top-p": replace(GREEDY, temperature=0.8, top_p=0.9),
    "all filters": replace(GREEDY, temperature=1.2, top_k=20, top_p=0.95, min_p=0.05),
}
DRAFTERS = ("model", "lookup", "ngram", "none")
Texts = tuple[list[int], list[int]]  # two whose token ids are compared


@cache
def embedded(device: str, dtype: str) -> "Pair":
    from specdemo.loading.load import load_pair

    return load_pair(device=device, dtype=dtype)


def text(pair: "Pair", params: Params = GREEDY) -> list[int]:
    """The run's token ids. Fails if the run does not get to its end; NaN raises in the engine."""
    from specdemo.session import generate

    trace = generate(pair, PROMPT, params, measure=False)
    if trace.stats.tokens != RUN_TOKENS:
        raise Failed(f"a run ended after {trace.stats.tokens} of {RUN_TOKENS} tokens")
    return trace.output_ids


def in_common(ids: list[int], others: list[int]) -> int:
    """How many tokens both texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(ids, others, strict=True)))


def compared(texts: dict[str, Texts], must_be_equal: bool = True) -> str:
    """How many are equal, and up to where the others are. Failed if all of them must be and are not."""
    same = {name: in_common(*both) for name, both in texts.items()}
    parted = [f"{name} from token {count} on" for name, count in same.items() if count < len(texts[name][0])]
    if parted and must_be_equal:
        raise Failed(f"the texts differ: {', '.join(parted)}")
    share = sum(same.values()) / sum(len(ids) for ids, _ in texts.values())
    return f"{len(same) - len(parted)} of {len(same)} texts equal, {share:.0%} of the tokens before they part"


def cpu_and_transformers() -> str:
    from specdemo.measure.bench import bench_params, theirs

    pair = embedded("cpu", "float32")
    reference = theirs(pair, bench_params(pair, GREEDY))
    with pair.runner.torch_settings():  # one thread: with more it takes minutes on a busy machine
        expected, _ = reference(pair.tokenizer(PROMPT).input_ids)
    return compared({"greedy": (text(pair), expected)})


def gpu_and_cpu() -> str:
    need_cuda()
    return compared({"greedy": (text(embedded("cuda", "float32")), text(embedded("cpu", "float32")))})


def captured_and_not(dtype: str, drafter: str) -> str:
    """Compares the texts of every sampler, with and without capture. Only in float32 must the texts be equal:
    the steps of a captured round have other sizes, and round differently."""
    if dtype != "float32":
        need_cuda()
    pair, texts = embedded(DEVICE, dtype), {}
    as_it_is = pair.with_capture("off")
    for name, sampler in SAMPLERS.items():
        params = replace(sampler, draft_with=drafter)
        captured = text(pair, params)
        if pair.runner.notes:
            raise Failed(str(pair.runner.notes[0]))
        if DEVICE == "cuda" and not pair.runner.graphs.graphs:
            raise Failed("nothing was captured, and no reason is given")
        texts[name] = captured, text(as_it_is, params)
    return compared(texts, must_be_equal=dtype == "float32")


def quantised(kind: str) -> str:
    """Runs the pair with quantised weights. A kind that is refused on this device is no failure."""
    if DEVICE == "cpu" and kind != "int8":
        raise NotRun("without a GPU only int8 is tried")
    from specdemo.loading.load import load_pair

    try:
        pair = load_pair(device=DEVICE, quantize=kind)
    except LoadError:
        raise
    except PairError as error:
        raise NotRun(str(error)) from None
    texts = text(pair), text(pair.with_capture("off"))
    if texts[0][0] != texts[1][0]:
        raise Failed("captured and uncaptured steps begin with different tokens")
    dtype = pair.info.dtype.target
    share = pair.bytes_held.target / embedded(DEVICE, dtype).bytes_held.target
    how = "not captured" if pair.runner.notes else "captured"
    same = compared({"greedy": texts}, must_be_equal=False)
    return f"{share:.0%} of the target's memory in {dtype}; {how}; uncaptured {same}"


TRIALS: dict[str, dict[str, Trial]] = {
    "versions": {"packages": packages, "processor": processor, "GPU": gpu, "a kernel runs": kernel},
    "capture": {
        "a step is captured and replayed": replay,
        "captured steps take bounded memory": graphs_memory,
    },
    "failed-capture": {  # in a process of its own, because torch may not recover
        "a step that cannot be captured runs as it is, with a reason": fail,
        "an uncaptured step works after that": partial(after_failure, uncaptured),
        "another step can be captured after that": partial(after_failure, replay),
        "memory is given back after that": partial(after_failure, freed_memory),
    },
    "parity": {
        "greedy text on the CPU is transformers' own": cpu_and_transformers,
        "greedy text on the GPU is the CPU's": gpu_and_cpu,
        **{
            f"captured against uncaptured, {dtype}, {drafter}": partial(captured_and_not, dtype, drafter)
            for dtype in ("float32", "bfloat16", "float16")
            for drafter in DRAFTERS
        },
    },
    "quantised": {kind: partial(quantised, kind) for kind in QUANTIZE},
}

if __name__ == "__main__":  # a section's own process
    section, start, deadline = sys.argv[1:]
    serve(section, TRIALS[section], int(start), float(deadline))
