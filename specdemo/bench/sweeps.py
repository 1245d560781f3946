"""The same measurement for several values: of gamma, of the prompt's length, of the weights' quantisation."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from specdemo.bench.contestants import bench_params, ours
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    drafting,
    engine_stats,
    in_turns,
    ms_per_token,
    round_ms,
    speed,
)
from specdemo.bench.prompts import Prompts, story_prompts
from specdemo.bench.results import ContextRow, EngineTimes, GammaRow, QuantizedRow
from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.runtime.cuda import free_cache


def gamma_sweep(
    pair: Pair, params: Params, prompts: list[list[int]], repeats: int, gammas: Sequence[int]
) -> list[GammaRow]:
    plain = ours(pair, "plain", replace(params, draft_with="none"))
    by_gamma = {gamma: ours(pair, f"gamma {gamma}", replace(params, gamma=gamma)) for gamma in gammas}
    samples, _ = in_turns([plain, *by_gamma.values()], prompts, repeats)
    return [gamma_row(gamma, samples["plain"], samples[one.name]) for gamma, one in by_gamma.items()]


def gamma_row(gamma: int, plain: list[Sample], drafted: list[Sample]) -> GammaRow:
    x_plain = ms_per_token(plain) / ms_per_token(drafted)
    return GammaRow(
        gamma=gamma, **vars(speed(drafted)), **vars(drafting(plain, drafted, gamma)), x_plain=x_plain
    )


def context_sweep(
    pair: Pair, params: Params, prompts_of: Prompts, repeats: int, contexts: Sequence[int]
) -> list[ContextRow]:
    """One prompt for each length in `contexts`."""
    both = [ours(pair, "plain", replace(params, draft_with="none")), ours(pair, "speculative", params)]
    rows = []
    for length in contexts:
        samples, _ = in_turns(both, prompts_of(1, length), repeats)
        rows.append(context_row(length, params.gamma, samples["plain"], samples["speculative"]))
    return rows


def context_row(length: int, gamma: int, plain: list[Sample], drafted: list[Sample]) -> ContextRow:
    plain_ms, ms = _decoding_ms(plain), _decoding_ms(drafted)
    return ContextRow(
        context=length,
        prefill_ms=median(stats.prefill_ms for stats in engine_stats(drafted)),
        plain=EngineTimes(round_ms(plain, 0), plain_ms),
        speculative=EngineTimes(round_ms(drafted, gamma), ms),
        **vars(drafting(plain, drafted, gamma)),
        x_plain=plain_ms / ms,
    )


def _decoding_ms(samples: list[Sample]) -> float:
    """The median time per token for drafting and verifying."""
    return median((stats.draft_ms + stats.verify_ms) / stats.tokens for stats in engine_stats(samples))


def quantize_sweep(
    load: Callable[[str], Pair], params: Params, prompts: int, repeats: int, kinds: list[str]
) -> list[QuantizedRow]:
    """Loads the pair again for each kind of weights ("none": unquantised), one after the other."""
    rows = []
    for kind in kinds:
        gc.collect()  # frees the previous pair
        free_cache("cuda")
        rows.append(_quantized_row(kind, load(kind), params, prompts, repeats))
    return rows


def _quantized_row(kind: str, pair: Pair, params: Params, prompts: int, repeats: int) -> QuantizedRow:
    params = bench_params(pair, params)
    both = [ours(pair, "plain", replace(params, draft_with="none")), ours(pair, "speculative", params)]
    with pair.runner.threads():
        samples, _ = in_turns(both, story_prompts(pair, prompts), repeats)
    held = pair.bytes_held
    return QuantizedRow(
        quantize=kind,
        plain=speed(samples["plain"]),
        speculative=speed(samples["speculative"]),
        acceptance_rate=acceptance_rate(samples["speculative"]),
        bytes_held=held.target + (held.drafter or 0),
        notes=list(pair.notes),
    )
