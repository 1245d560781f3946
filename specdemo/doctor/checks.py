"""The doctor's sections: what this machine is; and whether the embedded pair writes the same text on the CPU
and the GPU, by captured and uncaptured steps, and with quantised weights."""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

import torch

from specdemo.doctor.run import Facts, Failed, NotRun, Trial, serve
from specdemo.errors import LoadError, PairError
from specdemo.events import Params, __version__
from specdemo.loading.catalog import QUANTIZE
from specdemo.runtime.device import cpu_name, has_bfloat16, memory_of

# What needs transformers is imported where it is used, so that `versions` tells of a broken installation.
if TYPE_CHECKING:
    from specdemo.loading.pair import Pair

PACKAGES = ("transformers", "optimum-quanto", "gradio")


def need_cuda() -> None:
    """Raises NotRun without a CUDA device."""
    if not torch.cuda.is_available():
        raise NotRun(f"torch {torch.__version__} sees no CUDA device")


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


def compared(texts: dict[str, tuple[list[int], list[int]]], must_be_equal: bool = True) -> str:
    """How many pairs of texts are equal, and up to where the others are. Failed if all of them must be and
    are not."""
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
    "versions": {"packages": packages, "processor": processor, "GPU": gpu},
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
    section, deadline = sys.argv[1:]
    serve(section, TRIALS[section], float(deadline))
