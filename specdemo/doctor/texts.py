"""Whether the embedded pair writes the same text on the CPU and the GPU, by captured and uncaptured steps,
with quantised weights, and while another thread loads pairs or runs one, as on the page."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from time import perf_counter

import torch

from specdemo.doctor.machine import device, need_cuda
from specdemo.doctor.trials import Failed, NotRun, Trial
from specdemo.errors import LoadError, PairError
from specdemo.events import Params
from specdemo.loading.catalog import QUANTIZE
from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.measure.bench import bench_params, theirs
from specdemo.session import generate

PROMPT = "Once upon a time there was a little fox who"
RUN_TOKENS = 48 if torch.cuda.is_available() else 24
SAMPLER_PARAMS = {
    "greedy": Params(temperature=0.0),
    "temperature": Params(temperature=0.8),
    "top-p": Params(temperature=0.8, top_p=0.9),
    "all filters": Params(temperature=1.2, top_k=20, top_p=0.95, min_p=0.05),
}


@cache
def embedded(device: str, dtype: str) -> Pair:
    return load_pair(device=device, dtype=dtype)


def text(pair: Pair, params: Params) -> list[int]:
    """The run's token ids. Fails if the run does not get to its end; NaN raises in the engine."""
    trace = generate(pair, PROMPT, params, measure=False)
    if trace.stats.tokens != params.max_new_tokens:
        raise Failed(f"a run ended after {trace.stats.tokens} of {params.max_new_tokens} tokens")
    return trace.output_ids


def check_captured(pair: Pair) -> None:
    """Raises Failed if the pair's last run was not captured."""
    if pair.runner.notes:
        raise Failed(str(pair.runner.notes[0]))
    if pair.target.device.type == "cuda" and not pair.runner.graphs.graphs:
        raise Failed("nothing was captured, and no reason is given")


DRAFTERS = ("model", "lookup", "ngram", "none")
GREEDY = Params(temperature=0.0, max_new_tokens=2 * RUN_TOKENS, ignore_eos=True, seed=5)


@cache
def on_the_cpu() -> list[int]:
    return text(embedded("cpu", "float32"), GREEDY)


def cpu_and_transformers() -> str:
    pair = embedded("cpu", "float32")
    reference = theirs(pair, bench_params(pair, GREEDY))
    with pair.runner.torch_settings():  # one thread: with more it takes minutes on a busy machine
        expected, _ = reference(pair.tokenizer(PROMPT).input_ids)
    return _equal(on_the_cpu(), expected)


def gpu_and_cpu() -> str:
    need_cuda()
    return _equal(text(embedded("cuda", "float32"), GREEDY), on_the_cpu())


def _equal(ids: list[int], expected: list[int]) -> str:
    if (same := in_common(ids, expected)) < len(expected):
        raise Failed(f"the texts differ from token {same} of {len(expected)} on")
    return f"all {same} tokens"


def in_common(ids: list[int], others: list[int]) -> int:
    """How many tokens both texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(ids, others, strict=False)))


def captured_and_not(dtype: str, drafter: str) -> str:
    """Compares the texts of every sampler, with and without capture. Only in float32 must the texts be equal:
    the steps of a captured round have other sizes, and round differently."""
    if dtype != "float32":
        need_cuda()
    pair = embedded(device(), dtype)
    uncaptured = pair.with_capture("off")
    counts = {}  # equal tokens by sampler
    for name, sampler in SAMPLER_PARAMS.items():
        params = replace(sampler, draft_with=drafter, max_new_tokens=RUN_TOKENS, ignore_eos=True, seed=5)
        ids = text(pair, params)
        check_captured(pair)
        counts[name] = in_common(ids, text(uncaptured, params))
    different = [f"{name} from token {count} on" for name, count in counts.items() if count < RUN_TOKENS]
    if different and dtype == "float32":
        raise Failed(f"of {RUN_TOKENS} tokens differ: {', '.join(different)}")
    share = sum(counts.values()) / (RUN_TOKENS * len(counts))
    equal = len(counts) - len(different)
    return f"{equal} of {len(counts)} texts equal, {share:.0%} of the tokens before they part"


def run_quantised(kind: str) -> str:
    """Runs the pair with quantised weights. A kind that is refused on this device is no failure."""
    if device() == "cpu" and kind != "int8":
        raise NotRun("without a GPU only int8 is tried")
    params = replace(SAMPLER_PARAMS["greedy"], max_new_tokens=RUN_TOKENS, ignore_eos=True, seed=5)
    try:
        pair = load_pair(device=device(), quantize=kind)
    except LoadError:
        raise
    except PairError as error:
        raise NotRun(str(error)) from None
    captured = text(pair, params)  # sets itself up
    start = perf_counter()
    text(pair, params)
    ms = 1000 * (perf_counter() - start) / RUN_TOKENS
    uncaptured = text(pair.with_capture("off"), params)
    same = sum(one == other for one, other in zip(captured, uncaptured, strict=True))
    if captured[0] != uncaptured[0]:
        raise Failed("captured and uncaptured steps begin with different tokens")
    dtype = pair.info.dtype.target
    share = pair.bytes_held.target / embedded(device(), dtype).bytes_held.target
    return (
        f"{share:.0%} of the target's memory in {dtype}, {ms:.1f} ms a token; "
        f"{'not captured' if pair.runner.notes else 'captured'}; "
        f"{same} of {len(captured)} tokens are the same uncaptured"
    )


LOADS = {"cuda": 8, "cpu": 2}
THREAD_GAMMAS = range(2, 9) if torch.cuda.is_available() else range(2, 5)


def text_of(pair: Pair, gamma: int) -> list[int]:
    params = replace(SAMPLER_PARAMS["top-p"], gamma=gamma, seed=gamma)
    return text(pair, replace(params, max_new_tokens=RUN_TOKENS, ignore_eos=True))


def texts_alone() -> list[list[int]]:
    """The texts for each of THREAD_GAMMAS, uncaptured."""
    alone = embedded(device(), "float32").with_capture("off")
    return [text_of(alone, gamma) for gamma in THREAD_GAMMAS]


def load_again_and_again() -> None:
    pool = ModelPool(share=0.0)  # each load drops the pair before it
    names = ("embedded", "embedded-poor")
    for i in range(LOADS[device()]):
        pool.get(resolve(names[i % 2], device=device(), dtype="float32"))


def loading_and_running() -> str:
    """Compares texts while another thread loads pairs. Each gamma needs captures of its own, so that some
    happen during loads."""
    expected, pair, runs = texts_alone(), load_pair(device=device(), dtype="float32"), 0
    with ThreadPoolExecutor(1) as executor:
        loading = executor.submit(load_again_and_again)
        while not loading.done() or runs < len(THREAD_GAMMAS):
            at = runs % len(expected)
            if text_of(pair, THREAD_GAMMAS[at]) != expected[at]:
                raise Failed(f"with gamma {THREAD_GAMMAS[at]} another text was written than alone")
            runs += 1
        loading.result()
    _check_notes([pair])
    return f"{LOADS[device()]} loads during {runs} runs, each with the text that it has alone"


def two_runs() -> str:
    pairs, expected = [load_pair(device=device(), dtype="float32") for _ in range(2)], texts_alone()

    @torch.no_grad()
    def run(pair: Pair) -> list[list[int]]:
        return [text_of(pair, gamma) for gamma in THREAD_GAMMAS]

    with ThreadPoolExecutor(2) as executor:
        texts = list(executor.map(run, pairs))
    if texts != [expected, expected]:
        raise Failed("another text was written than alone")
    _check_notes(pairs)
    return f"{2 * len(expected)} runs, each with the text that it has alone"


def _check_notes(pairs) -> None:
    """Checks the pair's notes, since a capture that failed leaves a note."""
    if notes := [note for pair in pairs for note in pair.runner.notes]:
        raise Failed(str(notes[0]))


TRIALS = {
    "parity": [
        Trial("greedy text on the CPU is transformers' own", cpu_and_transformers),
        Trial("greedy text on the GPU is the CPU's", gpu_and_cpu),
        *(
            Trial(f"captured against uncaptured, {dtype}, {own}", partial(captured_and_not, dtype, own))
            for dtype in ("float32", "bfloat16", "float16")
            for own in DRAFTERS
        ),
    ],
    "quantised": [Trial(kind, partial(run_quantised, kind)) for kind in QUANTIZE],
    "threads": [
        Trial("loading pairs while another one runs", loading_and_running),
        Trial("two pairs run at once", two_runs),
    ],
}
