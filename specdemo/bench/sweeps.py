"""The same measurement again over a range: of gamma, of the prompt's length, of quantised weights."""

import gc
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from specdemo.bench.contestants import endless, ours
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    expected,
    in_turns,
    ms_per_token,
    round_ms,
    spread,
    tokens_per_round,
)
from specdemo.bench.prompts import Prompts, stories
from specdemo.events import Params
from specdemo.events.metrics import ratio
from specdemo.loading.pair import Pair


def gamma_sweep(
    pair: Pair, params: Params, prompts: list[list[int]], repeats: int, gammas: list[int]
) -> list[dict]:
    """For each gamma: speed by the wall, acceptance, and the speed-up over plain decoding beside what the formula expects."""
    plain = ours(pair, "plain", replace(params, draft_with="none"))
    others = {gamma: ours(pair, f"gamma {gamma}", replace(params, gamma=gamma)) for gamma in gammas}
    samples, _ = in_turns([plain, *others.values()], prompts, repeats)
    return [_gamma_row(gamma, samples["plain"], samples[one.name]) for gamma, one in others.items()]


def _gamma_row(gamma: int, plain: list[Sample], samples: list[Sample]) -> dict:
    low, ms, high = spread(sample.ms_per_token for sample in samples)
    alpha, c = acceptance_rate(samples), cost_ratio(plain, samples, gamma)
    return {
        "gamma": gamma,
        "ms_per_token": ms,
        "ms_per_token_10_90": [low, high],
        "tokens_per_second": 1000 / ms,
        "acceptance_rate": alpha,
        "mean_tokens_per_round": tokens_per_round(samples),
        "cost_ratio": c,
        "x_plain": ms_per_token(plain) / ms,
        "expected_x_plain": expected(alpha, gamma, c),
    }


def context_sweep(
    pair: Pair, params: Params, prompts: Prompts, repeats: int, contexts: list[int]
) -> list[dict]:
    """For each length one prompt of so many tokens. Times are the engine's own, so the prefill stands apart."""
    both = [ours(pair, "plain", replace(params, draft_with="none")), ours(pair, "speculative", params)]
    return [
        _context_row(length, params.gamma, in_turns(both, prompts(1, length), repeats)[0])
        for length in contexts
    ]


def _context_row(length: int, gamma: int, samples: dict[str, list[Sample]]) -> dict:
    plain, drafting = samples["plain"], samples["speculative"]
    alpha, c = acceptance_rate(drafting), cost_ratio(plain, drafting, gamma)
    plain_ms, ms = _decoding_ms(plain), _decoding_ms(drafting)
    return {
        "context": length,
        "prefill_ms": median(sample.stats.prefill_ms for sample in drafting),
        "plain": {"round_ms": round_ms(plain, 0), "ms_per_token": plain_ms},
        "speculative": {"round_ms": round_ms(drafting, gamma), "ms_per_token": ms},
        "acceptance_rate": alpha,
        "cost_ratio": c,
        "x_plain": plain_ms / ms,
        "expected_x_plain": expected(alpha, gamma, c),
    }


def _decoding_ms(samples: list[Sample]) -> float:
    """A token's share of drafting and verifying."""
    return median(
        (sample.stats.draft_ms + sample.stats.verify_ms) / sample.stats.tokens for sample in samples
    )


def quantize_sweep(
    load: Callable[[str], Pair], params: Params, prompts: int, repeats: int, kinds: list[str]
) -> list[dict]:
    """The pair loaded again for each kind ("none": as it is), one after the other. x_none: against the unquantised, where it is there."""
    rows: list[dict] = []
    for kind in kinds:
        gc.collect()  # the pair before goes first
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rows.append({"quantize": kind, **_quantized(load(kind), params, prompts, repeats)})
    none = next((row for row in rows if row["quantize"] == "none"), None)
    for row in rows:
        row["x_none"] = none and {
            way: ratio(none[way], row[way]) for way in ("plain_ms_per_token", "ms_per_token")
        }
    return rows


def _quantized(pair: Pair, params: Params, prompts: int, repeats: int) -> dict:
    params = endless(pair, params)
    plain = ours(pair, "plain", replace(params, draft_with="none"))
    drafting = ours(pair, "speculative", params)
    with pair.runner.threads():
        samples, _ = in_turns([plain, drafting], stories(pair)(prompts), repeats)
    held = pair.bytes_held
    ms = {name: spread(sample.ms_per_token for sample in some) for name, some in samples.items()}
    return {
        "plain_ms_per_token": ms["plain"][1],
        "plain_ms_per_token_10_90": [ms["plain"][0], ms["plain"][2]],
        "ms_per_token": ms["speculative"][1],
        "ms_per_token_10_90": [ms["speculative"][0], ms["speculative"][2]],
        "acceptance_rate": acceptance_rate(samples["speculative"]),
        "bytes_held": held.target + (held.drafter or 0),
        "notes": list(pair.notes),
    }
