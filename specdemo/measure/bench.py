"""The benchmark of one pair: transformers' ways to generate against this engine's, all with gamma drafts a
round. Whole generations are timed, prefill included, by the wall clock and by the processor time of this
process, in which all contestants run. They take turns, so that noise on the machine affects all of them. What
counts is the ratio of the medians."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from itertools import product
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from specdemo.events import Params
from specdemo.events.metrics import after_round, fresh
from specdemo.events.speedup import expected_speedup
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.measure.prompts import story_prompts
from specdemo.measure.samples import measure
from specdemo.measure.table import Column, Table, shown
from specdemo.runtime.linear import as_loaded
from specdemo.session import generate

RunIds = Callable[[list[int]], tuple[list[int], Trace | None]]  # prompt ids -> output ids, the engine's trace

PLAIN, ASSISTED = "transformers plain", "transformers assisted"
OURS_PLAIN, SPECULATIVE, LOOKUP = "specdemo plain", "specdemo speculative", "specdemo lookup"
RATIOS = ((SPECULATIVE, PLAIN), (SPECULATIVE, ASSISTED), (SPECULATIVE, OURS_PLAIN))
PAUSE = 0.02  # seconds between turns, until the threads of the last one have gone to sleep


@dataclass(frozen=True)
class Sample:
    """One generation of a contestant. For transformers `trace` is None."""

    ms_per_token: float
    processor_ms_per_token: float  # of all threads
    ids: list[int]
    trace: Trace | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant: the speed of whole generations, by the wall clock if nothing else is said. x: how many
    times as fast as another one."""

    ms_per_token: float  # median
    ms_per_token_10_90: tuple[float, float]  # 10th and 90th percentile
    tokens_per_second: float
    tokens_per_processor_second: float  # of all threads
    name: str
    x_plain: float  # transformers plain
    x_assisted: float | None  # transformers assisted
    equal_to_plain: str | None  # how many texts equal those of transformers plain: "5 of 6"; greedy only
    differs_at: int | None  # the first token that differs in any of them


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one contestant is as another, by medians."""

    name: str
    other: str
    wall: float
    processor: float


@dataclass(frozen=True)
class Differences:
    """How many of two contestants' greedy texts differ, and by text at which token (None: nowhere)."""

    prompts: int
    first_at: list[int | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that was measured. `asdict` of it is the JSON that is printed last."""

    acceptance_rate: float | None
    mean_tokens_per_round: float | None
    cost_ratio: float | None
    expected_x_plain: float | None  # the speed-up over plain decoding that the formula expects from these
    pair: str
    device: str
    device_name: str
    dtype: str | None
    date: str
    threads: int
    gamma: int
    temperature: float
    top_p: float
    max_new_tokens: int
    prompts: int
    repeats: int
    rows: list[Row]
    ratios: list[Ratio]
    differing_argmaxes: Differences | None  # of the engine with drafts and plain; greedy only
    notes: list[str]
    prompt_tokens: int | None  # in each prompt; None: as many as it has


def bench(
    pair: Pair, params: Params, prompts: int, repeats: int, *, prompt_tokens: int | None = None
) -> Result:
    """Times every contestant on every prompt `repeats` times, with as many threads as the engine uses. All
    contestants write `max_new_tokens` tokens, because end-of-sequence tokens end nothing here.

    prompt_tokens: in each prompt; None: as many as it has.
    Raises ValueError if the texts do not fit the context."""
    params, prompt_ids = bench_params(pair, params), story_prompts(pair, prompts, prompt_tokens)
    if max(map(len, prompt_ids)) + params.max_new_tokens > pair.context:
        room = f"in the context of {pair.context:,.0f} tokens"
        raise ValueError(f"max_new_tokens must leave the prompts room {room}")
    with pair.runner.torch_settings():
        samples = in_turns(contestants(pair, params), prompt_ids, repeats, params.max_new_tokens)
        threads = torch.get_num_threads()
    plain, drafted = samples[OURS_PLAIN], samples[SPECULATIVE if SPECULATIVE in samples else LOOKUP]
    greedy, info = params.temperature == 0, pair.info
    rows = [row(name, samples, greedy) for name in samples]
    return Result(
        **_drafting(plain, drafted, params.gamma),
        pair=info.name,
        device=info.device,
        device_name=info.device_name,
        dtype=info.dtype.target,
        date=date.today().isoformat(),
        threads=threads,
        **{name: getattr(params, name) for name in ("gamma", "temperature", "top_p", "max_new_tokens")},
        prompts=prompts,
        repeats=repeats,
        rows=rows,
        ratios=ratios(rows),
        differing_argmaxes=differences(drafted[:prompts], plain[:prompts]) if greedy else None,
        notes=list(map(str, pair.notes)),
        prompt_tokens=prompt_tokens,
    )


def bench_params(pair: Pair, params: Params) -> Params:
    """The Params with which all contestants do the same work: end-of-sequence tokens end nothing, and nothing
    is penalised. A pair without a drafter drafts by lookup."""
    none = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}}
    draft_with = "model" if pair.drafter is not None else "lookup"
    return replace(params, ignore_eos=True, draft_with=draft_with, **none)


def contestants(pair: Pair, params: Params) -> dict[str, RunIds]:
    """The contestants by their names. transformers cannot draft with a head. Where a drafter samples with
    another tokenizer, it replaces the drafter's own embeddings and head."""
    ways = {PLAIN: theirs(pair, params)}
    if isinstance(pair.drafter, PreTrainedModel) and (pair.other_tokenizer is None or not params.temperature):
        ways[ASSISTED] = theirs(pair, params, pair.drafter)
    ways[OURS_PLAIN] = ours(pair, replace(params, draft_with="none"))
    if pair.drafter is not None:
        ways[SPECULATIVE] = ours(pair, params)
    return ways | {LOOKUP: ours(pair, replace(params, draft_with="lookup", tree=()))}


def ours(pair: Pair, params: Params) -> RunIds:
    def run(ids: list[int]) -> tuple[list[int], Trace]:
        trace = generate(pair, ids, params, measure=False)
        return trace.output_ids, trace

    return run


def theirs(pair: Pair, params: Params, assistant: PreTrainedModel | None = None) -> RunIds:
    """transformers' own generation, set up to do the same work: gamma drafts per round, no early end."""
    options = {"do_sample": params.temperature > 0, "max_new_tokens": params.max_new_tokens}
    if params.temperature:
        options |= {name: getattr(params, name) for name in ("temperature", "top_k", "top_p")}
        options["min_p"] = params.min_p or None
    given = {"generation_config": GenerationConfig(eos_token_id=None, pad_token_id=0, **options)}
    if assistant is not None:
        given |= {"assistant_model": assistant}
        if pair.other_tokenizer is not None:
            given |= {"tokenizer": pair.tokenizer, "assistant_tokenizer": pair.other_tokenizer.tokenizer}

    def run(ids: list[int]) -> tuple[list[int], None]:
        torch.manual_seed(params.seed)
        prompt = torch.tensor([ids], device=pair.target.device)  # (1, tokens)
        drafts = {"num_assistant_tokens": params.gamma, "num_assistant_tokens_schedule": "constant"}
        drafting = _generation_config(assistant, assistant_confidence_threshold=0.0, **drafts)
        with as_loaded(pair.target, assistant), _generation_config(pair.target), drafting:
            output = pair.target.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
        return output[0, len(ids) :].tolist(), None

    return run


@contextmanager
def _generation_config(model: PreTrainedModel | None, **settings: Any) -> Iterator[None]:
    """Replaces the model's generation config, from which `generate` would fill in eos and other settings."""
    if model is None:
        yield
        return
    before, model.generation_config = model.generation_config, GenerationConfig(**settings)
    try:
        yield
    finally:
        model.generation_config = before


def in_turns(
    ways: Mapping[str, RunIds], prompts: list[list[int]], repeats: int, tokens: int
) -> dict[str, list[Sample]]:
    """The samples by contestant (all prompts, then all again), after a warm-up. RuntimeError for a text of
    fewer tokens or more."""

    samples: dict[str, list[Sample]] = {name: [] for name in ways}

    def timed(name: str, prompt: list[int]) -> Sample:
        sleep(PAUSE)
        start, processor_start = perf_counter(), process_time()
        ids, trace = ways[name](prompt)
        seconds, processor_seconds = perf_counter() - start, process_time() - processor_start
        if len(ids) != tokens:
            raise RuntimeError(f"{len(ids)} tokens instead of {tokens}")
        return Sample(1000 * seconds / tokens, 1000 * processor_seconds / tokens, ids, trace)

    # The longest prompt first: code that is compiled or captured for its buffers serves all others.
    for name, choose in product(ways, (max, min)):
        timed(name, choose(prompts, key=len))

    def sample(name: str, prompt: list[int]) -> None:
        samples[name].append(timed(name, prompt))

    for _ in measure(lambda _: list(ways), repeats * prompts, sample):
        pass
    return samples


def row(name: str, samples: Mapping[str, Sequence[Sample]], greedy: bool) -> Row:
    """The contestant's row. `samples` must include those of transformers plain."""
    ms = {other: median(one.ms_per_token for one in own) for other, own in samples.items()}
    own, first_at = samples[name], differences(samples[name], samples[PLAIN]).first_at
    low, high = np.percentile([one.ms_per_token for one in own], (10, 90)).tolist()
    return Row(
        ms_per_token=ms[name],
        ms_per_token_10_90=(low, high),
        tokens_per_second=1000 / ms[name],
        tokens_per_processor_second=1000 / median(one.processor_ms_per_token for one in own),
        name=name,
        x_plain=ms[PLAIN] / ms[name],
        x_assisted=ms[ASSISTED] / ms[name] if ASSISTED in ms else None,
        equal_to_plain=f"{first_at.count(None)} of {len(first_at)}" if greedy else None,
        differs_at=min((at for at in first_at if at is not None), default=None) if greedy else None,
    )


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """The ratios of which both sides have been measured."""
    found, by_name = [], {row.name: row for row in rows}
    for one, other in ((by_name.get(name), by_name.get(other)) for name, other in RATIOS):
        if one and other:
            processor = one.tokens_per_processor_second / other.tokens_per_processor_second
            found.append(Ratio(one.name, other.name, other.ms_per_token / one.ms_per_token, processor))
    return found


def differences(samples: Sequence[Sample], reference: Sequence[Sample]) -> Differences:
    """The same prompts in the same order."""
    texts = [(one.ids, other.ids) for one, other in zip(samples, reference, strict=True)]
    first_at = [
        next((at for at, (a, b) in enumerate(zip(*both, strict=True)) if a != b), None) for both in texts
    ]
    return Differences(len(first_at) - first_at.count(None), first_at)


def _drafting(plain: Sequence[Sample], drafted: Sequence[Sample], gamma: int) -> dict[str, float | None]:
    """What drafting achieved. The cost ratio is the time per draft in a full round (one with gamma drafts),
    divided by the time of a round of plain decoding."""
    rounds, steps = ([each for one in own for each in one.trace.rounds] for own in (drafted, plain))
    stats = reduce(after_round, rounds, fresh())
    draft_ms = [one.draft_ms / gamma for one in rounds if len(one.draft) == gamma]
    step_ms = median(one.draft_ms + one.verify_ms for one in steps)
    alpha, cost = stats.acceptance_rate, median(draft_ms) / step_ms if draft_ms else None
    return {
        "acceptance_rate": alpha,
        "mean_tokens_per_round": stats.mean_tokens_per_round,
        "cost_ratio": cost,
        "expected_x_plain": None if alpha is None or cost is None else expected_speedup(alpha, gamma, cost),
    }


RATIO_COLUMNS = (
    Column[Ratio]("times as fast, by medians", lambda one: f"{one.name} / {one.other}", is_left=True),
    Column[Ratio]("wall time", lambda one: shown(one.wall)),
    Column[Ratio]("processor time", lambda one: shown(one.processor)),
)


def row_columns(result: Result) -> list[Column[Row]]:
    def same(row: Row) -> str:
        equal = row.equal_to_plain or f"– (temperature {result.temperature:g})"
        return equal if row.differs_at is None else f"{equal}, differing from token {row.differs_at} on"

    return [
        Column("", lambda row: row.name, is_left=True),
        Column("ms/token", lambda row: shown(row.ms_per_token)),
        Column("10-90 %", lambda row: "-".join(map(shown, row.ms_per_token_10_90))),
        Column("tokens/s", lambda row: shown(row.tokens_per_second, ".1f")),
        Column("tokens/CPU-s", lambda row: shown(row.tokens_per_processor_second, ".1f")),
        Column("x plain", lambda row: shown(row.x_plain)),
        Column("x assisted", lambda row: shown(row.x_assisted)),
        Column("same text as plain", same, is_left=True),
    ]


def bench_text(result: Result) -> str:
    """The result as tables and sentences."""
    length = "" if result.prompt_tokens is None else f" of {result.prompt_tokens:,} tokens"
    head = (
        f"{result.pair} on {result.device} ({result.device_name}), {result.dtype}, "
        f"{result.threads} thread(s), gamma {result.gamma}, temperature {result.temperature:g}, "
        f"{result.prompts} prompts{length} x {result.repeats}, "
        f"{result.max_new_tokens} tokens each, {result.date}"
    )
    by_wall = max(result.rows, key=lambda row: row.tokens_per_second).name
    by_processor = max(result.rows, key=lambda row: row.tokens_per_processor_second).name
    fastest = f"fastest by wall time: {by_wall}; by processor time: {by_processor}"
    rows, ratios = Table(row_columns(result), result.rows), Table(RATIO_COLUMNS, result.ratios)
    notes = "\n".join(f"note: {note}" for note in result.notes)
    parts = (head, str(rows), f"{fastest}\n{ratios}", _speculation(result), notes)
    return "\n\n".join(filter(None, parts))


def _speculation(result: Result) -> str:
    rate, tokens = shown(result.acceptance_rate, ".3f"), shown(result.mean_tokens_per_round)
    lines = [f"acceptance rate {rate}, {tokens} tokens per round"]
    if result.expected_x_plain is not None:
        lines.append(
            f"cost ratio {result.cost_ratio:.3f}: for that the theory expects {result.expected_x_plain:.2f} "
            "x specdemo plain (if verifying takes no longer than one step)"
        )
    if (differing := result.differing_argmaxes) is not None:
        count = f"{differing.prompts} of {result.prompts}"
        line = f"differing argmaxes: with drafts {count} texts differ from plain"
        if differing.prompts:
            line += f", first at token {', '.join(str(at) for at in differing.first_at if at is not None)}"
            line += "; in float32 there must be none: this is a bug" if result.dtype == "float32" else ""
        lines.append(line)
    return "\n".join(lines)
