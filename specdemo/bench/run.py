"""The benchmark: contestants, roofline, overhead and sweeps of one pair, as one JSON object."""

from datetime import date

import torch

from specdemo.bench.contestants import contestants, endless, forget_compiled
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    expected,
    first_differences,
    in_turns,
    ms_per_token,
    round_ms,
    spread,
    tokens_per_round,
)
from specdemo.bench.overhead import engine_share, host_gap_ms
from specdemo.bench.prompts import Prompts, stories
from specdemo.bench.roofline import copy_bandwidth, roofline
from specdemo.bench.sweeps import context_sweep, gamma_sweep
from specdemo.events import Params
from specdemo.events.metrics import ratio
from specdemo.loading.pair import Pair


def bench(
    pair: Pair,
    params: Params,
    prompts: int,
    repeats: int,
    *,
    peers: bool = False,
    gammas: list[int] = (),
    contexts: list[int] = (),
    prompts_of: Prompts | None = None,
) -> dict:
    """Times every contestant on every prompt `repeats` times, all with the threads that the engine takes. All write
    `max_new_tokens` tokens: an end-of-sequence token ends nothing here, so that all of them do the same work.

    peers: also transformers compiled, and this engine unrecorded. gammas, contexts: what to sweep over. prompts_of: where
    the prompts come from (None: stories). Raises ValueError where prompts and new tokens do not fit the context."""
    params = endless(pair, params)
    prompts_of = prompts_of or stories(pair)
    _check_room(pair, params, max(map(len, prompts_of(prompts))), contexts)
    with pair.runner.threads():
        try:
            return _bench(pair, params, prompts_of, prompts, repeats, peers, gammas, contexts)
        finally:
            forget_compiled(pair)


def _check_room(pair: Pair, params: Params, longest: int, contexts: list[int]) -> None:
    if longest + params.max_new_tokens > pair.context:
        raise ValueError(
            f"max_new_tokens must leave the prompts room in the context of {pair.context:,.0f} tokens"
        )
    if contexts and max(contexts) + params.max_new_tokens > pair.context:
        raise ValueError(
            f"contexts must leave room for {params.max_new_tokens:,} new tokens in the context of {pair.context:,.0f} tokens, "
            f"but {max(contexts):,} does not"
        )


def _bench(
    pair: Pair,
    params: Params,
    prompts_of: Prompts,
    count: int,
    repeats: int,
    peers: bool,
    gammas: list[int],
    contexts: list[int],
) -> dict:
    gamma, prompts = params.gamma, prompts_of(count)
    taking_part = contestants(pair, params, peers)
    samples, failures = in_turns(taking_part, prompts, repeats)
    plain = samples["specdemo plain"]
    drafting = samples["specdemo speculative" if pair.drafter is not None else "specdemo lookup"]
    unrecorded = samples.get("specdemo speculative, unrecorded")
    alpha, c = acceptance_rate(drafting), cost_ratio(plain, drafting, gamma)
    greedy, device = params.temperature == 0, pair.target.device
    drafts_read = gamma if pair.drafter is not None else 0
    return {
        "pair": pair.info.name,
        "device": pair.info.device,
        "device_name": pair.info.device_name,
        "dtype": pair.info.dtype.target,
        "date": date.today().isoformat(),
        "threads": torch.get_num_threads(),
        "gamma": gamma,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_new_tokens": params.max_new_tokens,
        "prompts": count,
        "repeats": repeats,
        "rows": [_row(one.name, samples, failures, greedy) for one in taking_part],
        "acceptance_rate": alpha,
        "mean_tokens_per_round": tokens_per_round(drafting),
        "cost_ratio": c,
        "expected_x_plain": expected(alpha, gamma, c),
        "differing_argmaxes": _differing(drafting[:count], plain[:count]) if greedy else None,
        "differing_unrecorded": _differing(drafting[:count], unrecorded[:count]) if unrecorded else None,
        "roofline": roofline(
            pair, drafts_read, copy_bandwidth(device), round_ms(drafting, gamma), round_ms(plain, 0)
        ),
        "engine_share": engine_share(pair, prompts, params) if device.type == "cpu" else None,
        "host_ms": host_gap_ms(pair, prompts[0], params),
        "gammas": gamma_sweep(pair, params, prompts, repeats, gammas) if gammas else [],
        "contexts": context_sweep(pair, params, prompts_of, repeats, contexts) if contexts else [],
        "notes": list(pair.notes),  # asked for last, when it has turned out what could not be recorded
    }


def _row(name: str, samples: dict[str, list[Sample]], failures: dict[str, str], greedy: bool) -> dict:
    if name in failures:
        return {"name": name, "ms_per_token": None, "why_not": failures[name]}
    first, assisted, own = samples["transformers plain"], samples.get("transformers assisted"), samples[name]
    low, ms, high = spread(sample.ms_per_token for sample in own)
    differences = first_differences(own, first)
    return {
        "name": name,
        "ms_per_token": ms,
        "ms_per_token_10_90": [low, high],
        "tokens_per_second": 1000 / ms,
        "x_plain": ms_per_token(first) / ms,
        "x_assisted": ratio(assisted and ms_per_token(assisted), ms),
        "equal_to_plain": f"{differences.count(None)} of {len(differences)}" if greedy else None,
    }


def _differing(drafting: list[Sample], plain: list[Sample]) -> dict:
    """Where greedy text with drafts first parts from the engine's own plain text, by prompt. In float32 it must not."""
    differences = first_differences(drafting, plain)
    return {"prompts": sum(place is not None for place in differences), "first_at": differences}
