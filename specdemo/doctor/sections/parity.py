"""Whether the same text is written on the CPU and the GPU, and by captured and uncaptured steps."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile

from specdemo.bench.contestants import bench_params, theirs
from specdemo.doctor.sections.cuda import device, need_cuda
from specdemo.doctor.sections.runs import PROMPT, SAMPLERS, TOKENS, check_captured, embedded, text
from specdemo.doctor.trials import Failed, Trial
from specdemo.events import Params

DRAFTERS = ("model", "lookup", "ngram", "none")
GREEDY = Params(temperature=0.0, max_new_tokens=2 * TOKENS, ignore_eos=True, seed=5)


def trials() -> Iterator[Trial]:
    yield Trial("greedy text on the CPU is transformers' own", cpu_and_transformers)
    yield Trial("greedy text on the GPU is the CPU's", gpu_and_cpu)
    for dtype in ("float32", "bfloat16", "float16"):
        for drafter in DRAFTERS:
            name = f"captured against uncaptured, {dtype}, {drafter}"
            yield Trial(name, partial(captured_and_not, dtype, drafter))


@cache
def on_the_cpu() -> list[int]:
    return text(embedded("cpu", "float32"), GREEDY)


def cpu_and_transformers() -> str:
    pair = embedded("cpu", "float32")
    reference = theirs(pair, "transformers plain", bench_params(pair, GREEDY))
    expected, _ = reference.run(pair.tokenizer(PROMPT).input_ids)
    return _equal(on_the_cpu(), expected)


def gpu_and_cpu() -> str:
    need_cuda()
    return _equal(text(embedded("cuda", "float32"), GREEDY), on_the_cpu())


def _equal(ids: list[int], expected: list[int]) -> str:
    if (same := _same(ids, expected)) < len(expected):
        raise Failed(f"the texts differ from token {same} of {len(expected)} on")
    return f"all {same} tokens"


def _same(ids: list[int], others: list[int]) -> int:
    """How many tokens they have in common at their beginning."""
    return len(list(takewhile(lambda both: both[0] == both[1], zip(ids, others, strict=False))))


def captured_and_not(dtype: str, drafter: str) -> str:
    """Every sampler, with and without capture. Only in float32 must the texts be equal: the steps of a
    captured round have other sizes, and round differently."""
    if dtype != "float32":
        need_cuda()
    pair = embedded(device(), dtype)
    uncaptured = pair.with_capture("off")
    counts = {}  # equal tokens by sampler
    for name, sampler in SAMPLERS.items():
        params = replace(sampler, draft_with=drafter, max_new_tokens=TOKENS, ignore_eos=True, seed=5)
        ids = text(pair, params)
        check_captured(pair)
        counts[name] = _same(ids, text(uncaptured, params))
    different = [f"{name} from token {count} on" for name, count in counts.items() if count < TOKENS]
    if different and dtype == "float32":
        raise Failed(f"of {TOKENS} tokens differ: {', '.join(different)}")
    share = sum(counts.values()) / (TOKENS * len(counts))
    equal = len(counts) - len(different)
    return f"{equal} of {len(counts)} texts equal, {share:.0%} of the tokens before they part"
