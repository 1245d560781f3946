"""The benchmark of one pair: contestants, roofline, the device's idle time and sweeps."""

from collections.abc import Sequence
from datetime import date
from functools import partial

import torch

from specdemo.bench.contestants import bench_params, contestants, forgetting_compiled
from specdemo.bench.idle import device_idle
from specdemo.bench.measure import (
    Sample,
    differences,
    drafting,
    first_differences,
    in_turns,
    ms_per_token,
    round_ms,
    speed,
)
from specdemo.bench.prompts import Prompts, story_prompts
from specdemo.bench.results import NotRun, Result, Row
from specdemo.bench.roofline import copy_bandwidth, roofline
from specdemo.bench.sweeps import context_sweep, gamma_sweep
from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.runtime.gpu import attention_backends


def bench(
    pair: Pair,
    params: Params,
    prompts: int,
    repeats: int,
    *,
    peers: bool = False,
    gammas: Sequence[int] = (),
    contexts: Sequence[int] = (),
    prompts_of: Prompts | None = None,
) -> Result:
    """Times every contestant on every prompt `repeats` times, with as many threads as the engine uses. All
    write `max_new_tokens` tokens, because end-of-sequence tokens end nothing here.

    peers: also transformers compiled, and this engine uncaptured. gammas, contexts: values to sweep over.
    prompts_of: makes the prompts (None: stories). Raises ValueError if the texts do not fit the context.
    """
    params, prompts_of = bench_params(pair, params), prompts_of or partial(story_prompts, pair)
    gamma, greedy, prompt_ids = params.gamma, params.temperature == 0, prompts_of(prompts, None)
    _check_room(pair, params, max(map(len, prompt_ids)), contexts)
    with pair.runner.threads(), forgetting_compiled(pair):
        chosen = contestants(pair, params, peers)
        samples, failures = in_turns(chosen, prompt_ids, repeats)
        plain = samples["specdemo plain"]
        drafted = samples["specdemo speculative" if pair.drafter is not None else "specdemo lookup"]
        return Result(
            pair=pair.info.name,
            device=pair.info.device,
            device_name=pair.info.device_name,
            dtype=pair.info.dtype.target,
            date=date.today().isoformat(),
            threads=torch.get_num_threads(),
            gamma=gamma,
            temperature=params.temperature,
            top_p=params.top_p,
            max_new_tokens=params.max_new_tokens,
            prompts=prompts,
            repeats=repeats,
            attention=attention_backends() if pair.target.device.type == "cuda" else None,
            rows=[
                NotRun(name, failures[name]) if name in failures else row(name, samples, greedy)
                for name in (one.name for one in chosen)
            ],
            **vars(drafting(plain, drafted, gamma)),
            differing_argmaxes=differences(drafted[:prompts], plain[:prompts]) if greedy else None,
            roofline=roofline(
                pair,
                gamma if pair.drafter is not None else 0,
                copy_bandwidth(pair.target.device),
                round_ms(drafted, gamma),
                round_ms(plain, 0),
            ),
            host_ms=device_idle(pair, prompt_ids[0], params),
            gammas=gamma_sweep(pair, params, prompt_ids, repeats, gammas) if gammas else [],
            contexts=context_sweep(pair, params, prompts_of, repeats, contexts),
            notes=list(pair.notes),  # last, because they include what could not be captured
        )


def _check_room(pair: Pair, params: Params, longest: int, contexts: Sequence[int]) -> None:
    room = f"in the context of {pair.context:,.0f} tokens"
    if longest + params.max_new_tokens > pair.context:
        raise ValueError(f"max_new_tokens must leave the prompts room {room}")
    if contexts and max(contexts) + params.max_new_tokens > pair.context:
        raise ValueError(
            f"contexts must leave room for {params.max_new_tokens:,} new tokens {room}, "
            f"but {max(contexts):,} does not"
        )


def row(name: str, samples: dict[str, list[Sample]], greedy: bool) -> Row:
    """A contestant's row. `samples` must include those of transformers plain."""
    own, plain = samples[name], samples["transformers plain"]
    assisted = samples.get("transformers assisted")
    ms, first_at = ms_per_token(own), first_differences(own, plain)
    return Row(
        name=name,
        **vars(speed(own)),
        x_plain=ms_per_token(plain) / ms,
        x_assisted=ms_per_token(assisted) / ms if assisted else None,
        equal_to_plain=f"{first_at.count(None)} of {len(first_at)}" if greedy else None,
    )
