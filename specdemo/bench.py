"""Side by side, in one run: transformers plain and assisted, this engine plain and speculative.

Whole generations are timed by the wall, prefill and everything else included, the contestants in turns, so that a noisy
machine is noisy for all of them. What counts is the ratio of the medians.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch
from transformers import GenerationConfig, PreTrainedModel

from specdemo.events import Params
from specdemo.few_rows import as_loaded
from specdemo.metrics import expected_speedup
from specdemo.pair import Pair
from specdemo.session import stream
from specdemo.trace import Trace

PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She loved to",
    "One day, a small dog found a shiny red ball in the park. He",
    "Tom and his sister wanted to build a big tower with their blocks. First,",
    "The old farmer had a horse that would not eat. Every morning",
    "It was raining, and Ben was sad because he could not play outside. His mom said,",
    "A tiny bird fell out of its nest. It was scared and",
    "Mia had a secret box under her bed. Inside the box",
    "The bear and the rabbit were best friends, but one day they",
    "There was a big boat on the lake. The captain looked at the sky and",
    "Sam found a key in the garden. He did not know",
)


@dataclass(frozen=True)
class Contestant:
    """One way to generate: run(prompt ids, seed) -> output ids."""

    name: str
    run: Callable[[list[int], int], list[int]]


def bench(pair: Pair, params: Params, prompts: int, repeats: int) -> dict:
    """Times every contestant on every prompt `repeats` times, all with the threads that the engine takes. All write
    `max_new_tokens` tokens: an end-of-sequence token ends nothing here, so that all of them do the same work."""
    with pair.threads():
        return _bench(pair, params, prompts, repeats)


def _bench(pair: Pair, params: Params, prompts: int, repeats: int) -> dict:
    params = replace(params, ignore_eos=True, draft_with="model" if pair.drafter else "lookup")
    texts = [PROMPTS[i % len(PROMPTS)] for i in range(prompts)]
    ids = [pair.tokenizer(text).input_ids for text in texts]
    if max(map(len, ids)) + params.max_new_tokens > pair.context:
        raise ValueError(f"max_new_tokens must leave the prompts room in the context of {pair.context:,.0f} tokens")
    contestants = _contestants(pair, params)
    seconds = {contestant.name: [] for contestant in contestants}
    outputs = {contestant.name: [] for contestant in contestants}

    for contestant in contestants:
        contestant.run(ids[0], params.seed)  # warm-up
    for _ in range(repeats):
        for prompt in ids:
            for contestant in contestants:
                start = perf_counter()
                output = contestant.run(prompt, params.seed)
                seconds[contestant.name].append(perf_counter() - start)
                outputs[contestant.name].append(output)

    rows = []
    for contestant in contestants:
        lengths = [len(output) for output in outputs[contestant.name]]
        rows.append(
            {
                "name": contestant.name,
                "ms_per_token": median(1000 * s / n for s, n in zip(seconds[contestant.name], lengths, strict=True)),
                "equal_to_plain": _equal(outputs[contestant.name], outputs[contestants[0].name]) if params.temperature == 0 else None,
            }
        )
    traces = [_trace(pair, prompt, params) for prompt in ids]
    return {
        "pair": pair.info.name,
        "device": pair.info.device,
        "device_name": pair.info.device_name,
        "dtype": pair.info.dtype.target,
        "threads": torch.get_num_threads(),
        "gamma": params.gamma,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_new_tokens": params.max_new_tokens,
        "prompts": prompts,
        "repeats": repeats,
        "rows": rows,
        "acceptance_rate": sum(t.stats.accepted for t in traces) / max(1, sum(t.stats.accepted + t.stats.rejected for t in traces)),
        "mean_tokens_per_round": sum(t.stats.tokens for t in traces) / sum(t.stats.rounds for t in traces),
        "cost_ratio": traces[0].stats.cost_ratio,
        "engine_share": engine_share(pair, ids, params) if pair.info.device == "cpu" else None,
    }


def _contestants(pair: Pair, params: Params) -> list[Contestant]:
    plain = replace(params, draft_with="none")
    contestants = [Contestant("transformers plain", lambda ids, seed: _generate(pair, ids, params, seed, None))]
    if pair.drafter is not None:
        contestants.append(Contestant("transformers assisted", lambda ids, seed: _generate(pair, ids, params, seed, pair.drafter)))
    contestants.append(Contestant("specdemo plain", lambda ids, seed: _trace(pair, ids, plain).output_ids))
    if pair.drafter is not None:
        contestants.append(Contestant("specdemo speculative", lambda ids, seed: _trace(pair, ids, params).output_ids))
    contestants.append(Contestant("specdemo lookup", lambda ids, seed: _trace(pair, ids, replace(params, draft_with="lookup")).output_ids))
    return contestants


def _trace(pair: Pair, ids: list[int], params: Params) -> Trace:
    run = stream(pair, ids, params)
    for _ in run:
        pass
    return run.trace


def _generate(pair: Pair, ids: list[int], params: Params, seed: int, assistant: PreTrainedModel | None) -> list[int]:
    """transformers' own generation, set up to do the same: gamma drafts in every round, nothing that ends it early."""
    sampling = {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p} if params.temperature else {}
    if params.min_p and params.temperature:
        sampling["min_p"] = params.min_p
    config = GenerationConfig(
        do_sample=params.temperature > 0, max_new_tokens=params.max_new_tokens, eos_token_id=None, pad_token_id=0, **sampling
    )
    torch.manual_seed(seed)
    prompt = torch.tensor([ids], device=pair.target.device)
    with as_loaded(pair.target, assistant), _plain_config(pair.target), _assisting(assistant, params.gamma):
        extra = {} if assistant is None else {"assistant_model": assistant}
        output = pair.target.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config, **extra)
    return output[0, len(ids) :].tolist()


@contextmanager
def _plain_config(model: PreTrainedModel):
    """`generate` fills what a given config leaves open (the eos ids too) from the model's own: that is set aside."""
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _assisting(assistant: PreTrainedModel | None, gamma: int):
    if assistant is None:
        yield
        return
    with _plain_config(assistant):
        config = assistant.generation_config
        config.num_assistant_tokens = gamma
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        yield


def engine_share(pair: Pair, prompts: list[list[int]], params: Params) -> float | None:
    """The part of the rounds' time that is not spent in the two models' forwards: drafting, judging, recording."""
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
        for prompt in prompts:
            inside, total = 0.0, 0.0
            run = stream(pair, prompt, params)
            next(run)  # Started
            prefill = True
            for event in run:
                if prefill:  # the first round's event comes with the prefill behind it: both models' prefill is taken out
                    inside, prefill = 0.0, False
                    continue
                if hasattr(event, "draft_ms"):
                    total += event.draft_ms + event.verify_ms
            if total:
                shares.append(1 - 1000 * inside / total)
    finally:
        for hook in hooks:
            hook.remove()
    return median(shares) if shares else None


def _equal(outputs: list[list[int]], reference: list[list[int]]) -> str:
    return f"{sum(a == b for a, b in zip(outputs, reference, strict=True))} of {len(reference)}"


def table(result: dict) -> str:
    """The result for people."""
    first = result["rows"][0]["ms_per_token"]
    by_name = {row["name"]: row["ms_per_token"] for row in result["rows"]}
    assisted = by_name.get("transformers assisted")
    lines = [
        f"{result['pair']} on {result['device']} ({result['device_name']}), {result['dtype']}, {result['threads']} thread(s), "
        f"gamma {result['gamma']}, temperature {result['temperature']:g}, "
        f"{result['prompts']} prompts x {result['repeats']}, {result['max_new_tokens']} tokens each",
        "",
        f"{'':<24}{'ms/token':>10}{'tokens/s':>10}{'x plain':>9}{'x assisted':>12}   same text as plain",
    ]
    for row in result["rows"]:
        ms = row["ms_per_token"]
        against = f"{assisted / ms:.2f}" if assisted else "–"
        lines.append(f"{row['name']:<24}{ms:>10.2f}{1000 / ms:>10.1f}{first / ms:>9.2f}{against:>12}   {row['equal_to_plain'] or '–'}")
    share = f", the engine's own share of a round {result['engine_share']:.1%}" if result["engine_share"] is not None else ""
    lines += ["", f"acceptance rate {result['acceptance_rate']:.3f}, {result['mean_tokens_per_round']:.2f} tokens a round{share}"]
    if (c := result["cost_ratio"]) is not None:
        speedup = expected_speedup(result["acceptance_rate"], result["gamma"], c)
        lines.append(f"cost ratio {c:.3f}: with that, the theory allows {speedup:.2f} x specdemo plain (verifying as fast as one step)")
    return "\n".join(lines)
