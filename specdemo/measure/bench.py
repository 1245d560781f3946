"""The benchmark of one pair: transformers' ways to generate against this engine's, all with gamma drafts a
round. Whole generations are timed, prefill included, by the wall clock and by the processor time of this
process, in which all contestants run. They take turns, so that noise on the machine affects all of them. What
counts is the ratio of the medians."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, cycle, islice, product
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedModel

from specdemo.events import Params, Stats
from specdemo.events.trace import Trace, after_round
from specdemo.loading.pair import Pair
from specdemo.measure.prompts import prompts_for
from specdemo.measure.samples import measure
from specdemo.measure.settings import how_measured
from specdemo.measure.table import Column, Table, head_in_words, shown
from specdemo.runtime.linear import as_loaded
from specdemo.session import generate

RunIds = Callable[[list[int]], tuple[list[int], Trace | None]]  # prompt ids -> output ids, the engine's trace

PLAIN, ASSISTED = "transformers plain", "transformers assisted"
OURS_PLAIN, SPECULATIVE, LOOKUP = "specdemo plain", "specdemo speculative", "specdemo lookup"
MORE_TEXTS = 100  # for long prompts: one of each of five kinds of work, twenty times
PAUSE = 0.02  # seconds between turns, until the threads of the last one have gone to sleep


class TimedRun(NamedTuple):
    """One generation of a contestant. For transformers `trace` is None."""

    ms_per_token: float
    processor_ms_per_token: float  # of all threads
    ids: list[int]
    trace: Trace | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant: the speed of whole generations, by the wall clock if nothing else is said. x: how many
    times as fast as another one."""

    name: str
    ms_per_token: float  # median
    tokens_per_second: float
    tokens_per_processor_second: float  # of all threads
    x_plain: float  # transformers plain
    x_assisted: float | None  # transformers assisted
    equal_to_plain: str | None  # how many texts equal those of transformers plain: "5 of 6"; greedy only
    differs_at: int | None  # the first token that differs in any of them


def bench(
    pair: Pair, params: Params, prompts: int, repeats: int, prompt_tokens: int | None = None
) -> dict[str, Any]:
    """Times every contestant on every prompt `repeats` times, with as many threads as the engine uses. All
    contestants write `max_new_tokens` tokens, because end-of-sequence tokens end nothing here. Gives a row
    for each, the drafts that were accepted, and how all of it was measured.

    prompt_tokens: in each prompt; None: as many as it has.
    Raises ValueError if the texts do not fit the context."""
    params, prompt_ids = bench_params(pair, params), bench_prompts(pair, prompts, prompt_tokens)
    if max(map(len, prompt_ids)) + params.max_new_tokens > pair.context:
        room = f"in the context of {pair.context:,.0f} tokens"
        raise ValueError(f"max_new_tokens must leave the prompts room {room}")
    with pair.runner.torch_settings():
        samples = in_turns(contestants(pair, params), prompt_ids, repeats, params.max_new_tokens)
        threads = torch.get_num_threads()
    *_, drafted = samples.values()
    rounds = [one for sample in drafted if sample.trace for one in sample.trace.rounds]
    stats, is_greedy = reduce(after_round, rounds, Stats()), params.temperature == 0
    return {
        "acceptance_rate": stats.acceptance_rate,
        "mean_tokens_per_round": stats.mean_tokens_per_round,
        "pair": pair.info.name,
        **how_measured(pair, params, "gamma", "temperature", "top_p", "max_new_tokens"),
        "threads": threads,
        "prompts": prompts,
        "prompt_tokens": prompt_tokens,
        "repeats": repeats,
        "rows": [row(name, samples, is_greedy) for name in samples],
        "notes": list(map(str, pair.notes)),
    }


def bench_params(pair: Pair, params: Params) -> Params:
    """The Params with which all contestants do the same work: end-of-sequence tokens end nothing, and nothing
    is penalised. A pair without a drafter drafts by lookup."""
    none = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}}
    draft_with = "model" if pair.drafter is not None else "lookup"
    return replace(params, ignore_eos=True, draft_with=draft_with, **none)


def bench_prompts(pair: Pair, count: int, length: int | None) -> list[list[int]]:
    """`count` prompts that suit the pair. For prompts of `length` tokens, the texts that come next are
    appended."""
    texts = [pair.tokenizer(text).input_ids for text in prompts_for(pair, count + MORE_TEXTS)]
    if length is None:
        return texts[:count]
    following = (chain.from_iterable(cycle(texts[at:])) for at in range(count))
    return [list(islice(ids, length)) for ids in following]


def contestants(pair: Pair, params: Params) -> dict[str, RunIds]:
    """The contestants by their names, what drafts here last. transformers cannot draft with a head."""
    ways = {PLAIN: theirs(pair, params)}
    if isinstance(pair.drafter, PreTrainedModel) and pair.other_tokenizer is None:
        ways[ASSISTED] = theirs(pair, params, pair.drafter)
    ways[OURS_PLAIN] = ours(pair, replace(params, draft_with="none"))
    return ways | {LOOKUP if pair.drafter is None else SPECULATIVE: ours(pair, params)}


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
) -> dict[str, list[TimedRun]]:
    """The samples by contestant (all prompts, then all again), after a warm-up. RuntimeError for a text of
    fewer tokens or more."""

    def timed(name: str, prompt: list[int]) -> TimedRun:
        sleep(PAUSE)
        start, processor_start = perf_counter(), process_time()
        ids, trace = ways[name](prompt)
        seconds, processor_seconds = perf_counter() - start, process_time() - processor_start
        if len(ids) != tokens:
            raise RuntimeError(f"{len(ids)} tokens instead of {tokens}")
        return TimedRun(1000 * seconds / tokens, 1000 * processor_seconds / tokens, ids, trace)

    # The longest prompt first: code that is compiled or captured for its buffers serves all others.
    for name, choose in product(ways, (max, min)):
        timed(name, choose(prompts, key=len))
    turns = list[list[TimedRun]]()
    for _ in measure(lambda _: list(ways), repeats * prompts, timed, lambda _, turn: turns.append(turn)):
        pass
    return dict(zip(ways, map(list, zip(*turns, strict=True)), strict=True))


def row(name: str, samples: Mapping[str, Sequence[TimedRun]], greedy: bool) -> Row:
    """The contestant's row. `samples` must include those of transformers plain."""
    ms = {other: median(one.ms_per_token for one in own) for other, own in samples.items()}
    own, first_at = samples[name], differences(samples[name], samples[PLAIN])
    return Row(
        name=name,
        ms_per_token=ms[name],
        tokens_per_second=1000 / ms[name],
        tokens_per_processor_second=1000 / median(one.processor_ms_per_token for one in own),
        x_plain=ms[PLAIN] / ms[name],
        x_assisted=ms[ASSISTED] / ms[name] if ASSISTED in ms else None,
        equal_to_plain=f"{first_at.count(None)} of {len(first_at)}" if greedy else None,
        differs_at=min((at for at in first_at if at is not None), default=None) if greedy else None,
    )


def differences(samples: Sequence[TimedRun], reference: Sequence[TimedRun]) -> list[int | None]:
    """The first token in which each text differs from that of the reference; None: in none."""
    texts = [zip(one.ids, other.ids, strict=True) for one, other in zip(samples, reference, strict=True)]
    return [next((at for at, (a, b) in enumerate(both) if a != b), None) for both in texts]


def bench_text(result: Mapping[str, Any]) -> str:
    """The result as a table and sentences."""

    def same(row: Row) -> str:
        equal = row.equal_to_plain or f"– (temperature {result['temperature']:g})"
        return equal if row.differs_at is None else f"{equal}, differing from token {row.differs_at} on"

    columns = [
        Column[Row]("", lambda row: row.name, is_left=True),
        Column[Row]("ms/token", lambda row: shown(row.ms_per_token)),
        Column[Row]("tokens/s", lambda row: shown(row.tokens_per_second, ".1f")),
        Column[Row]("tokens/CPU-s", lambda row: shown(row.tokens_per_processor_second, ".1f")),
        Column[Row]("x plain", lambda row: shown(row.x_plain)),
        Column[Row]("x assisted", lambda row: shown(row.x_assisted)),
        Column[Row]("same text as plain", same, is_left=True),
    ]
    length = "" if result["prompt_tokens"] is None else f" of {result['prompt_tokens']:,} tokens"
    prompts = f"{result['prompts']} prompts{length}"
    head = head_in_words(result["pair"], result, prompts, str(result["max_new_tokens"]))
    more = f"gamma {result['gamma']}, {result['threads']} thread(s), whole generations"
    notes = "\n".join(f"note: {note}" for note in result["notes"])
    table = str(Table(columns, result["rows"]))
    rate, tokens = shown(result["acceptance_rate"], ".3f"), shown(result["mean_tokens_per_round"])
    drafts = f"acceptance rate {rate}, {tokens} tokens per round"
    return "\n\n".join(filter(None, (f"{head}; {more}", table, drafts, notes)))
