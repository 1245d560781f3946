"""The benchmark of one pair: transformers' ways to generate against this engine's, all with gamma drafts a
round; and sweeps (the same measurement for several values of gamma, of the prompt's length, of the weights'
quantisation)."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from statistics import median

import torch

from specdemo.bench.contestants import bench_params, contestants, ours, plain_and_speculative
from specdemo.bench.measure import (
    Contestant,
    Sample,
    acceptance_rate,
    differences,
    drafting,
    engine_stats,
    first_differences,
    in_turns,
    ms_per_token,
    processor_ms_per_token,
    round_ms,
    speed,
)
from specdemo.bench.prompts import story_prompts
from specdemo.bench.results import (
    ContextRow,
    EngineTimes,
    GammaRow,
    QuantizedRow,
    Ratio,
    Result,
    Row,
)
from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.runtime.cuda import free_cache
from specdemo.runtime.device import attention_backends


def bench(
    pair: Pair,
    params: Params,
    prompts: int,
    repeats: int,
    *,
    prompt_tokens: int | None = None,
    gammas: Sequence[int] = (),
    contexts: Sequence[int] = (),
) -> Result:
    """Times every contestant on every prompt `repeats` times, with as many threads as the engine uses. All
    contestants write `max_new_tokens` tokens, because end-of-sequence tokens end nothing here.

    prompt_tokens: in each prompt; None: as many as it has. gammas, contexts: values to sweep over.

    Raises ValueError if the texts do not fit the context."""
    params, prompt_ids = bench_params(pair, params), story_prompts(pair, prompts, prompt_tokens)
    gamma, greedy = params.gamma, params.temperature == 0
    _check_room(pair, params, max(map(len, prompt_ids)), contexts)
    own_threads = torch.get_num_threads()
    with pair.runner.torch_settings():
        samples = in_turns(contestants(pair, params), prompt_ids, repeats)
        plain = samples["specdemo plain"]
        drafted = samples["specdemo speculative" if pair.drafter is not None else "specdemo lookup"]
        info, told = pair.info, ("gamma", "temperature", "top_p", "max_new_tokens")
        return Result(
            pair=info.name,
            device=info.device,
            device_name=info.device_name,
            dtype=info.dtype.target,
            date=date.today().isoformat(),
            threads=torch.get_num_threads(),
            own_threads=own_threads,
            **{name: getattr(params, name) for name in told},
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            repeats=repeats,
            attention=attention_backends() if pair.target.device.type == "cuda" else None,
            rows=[row(name, samples, greedy) for name in samples],
            ratios=ratios(samples),
            **vars(drafting(plain, drafted, gamma)),
            differing_argmaxes=differences(drafted[:prompts], plain[:prompts]) if greedy else None,
            gammas=gamma_sweep(pair, params, prompt_ids, repeats, gammas) if gammas else [],
            contexts=context_sweep(pair, params, repeats, contexts),
            # Last, because they include what could not be captured.
            notes=list(map(str, pair.notes)),
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
    """The contestant's row. `samples` must include those of transformers plain."""
    own, plain = samples[name], samples["transformers plain"]
    assisted = samples.get("transformers assisted")
    ms, first_at = ms_per_token(own), first_differences(own, plain)
    return Row(
        name=name,
        **vars(speed(own)),
        x_plain=ms_per_token(plain) / ms,
        x_assisted=ms_per_token(assisted) / ms if assisted else None,
        equal_to_plain=f"{first_at.count(None)} of {len(first_at)}" if greedy else None,
        differs_at=min((at for at in first_at if at is not None), default=None) if greedy else None,
    )


RATIOS = (
    ("specdemo speculative", "transformers plain"),
    ("specdemo speculative", "transformers assisted"),
    ("specdemo speculative", "specdemo plain"),
)


def ratios(samples: dict[str, list[Sample]]) -> list[Ratio]:
    """The ratios of which both sides have been measured."""
    return [
        Ratio(
            name,
            other,
            ms_per_token(samples[other]) / ms_per_token(samples[name]),
            processor_ms_per_token(samples[other]) / processor_ms_per_token(samples[name]),
        )
        for name, other in RATIOS
        if name in samples and other in samples
    ]


def gamma_sweep(
    pair: Pair, params: Params, prompts: list[list[int]], repeats: int, gammas: Sequence[int]
) -> list[GammaRow]:
    plain = Contestant("plain", ours(pair, replace(params, draft_with="none")))
    by_gamma = {
        gamma: Contestant(f"gamma {gamma}", ours(pair, replace(params, gamma=gamma))) for gamma in gammas
    }
    samples = in_turns([plain, *by_gamma.values()], prompts, repeats)
    return [gamma_row(gamma, samples["plain"], samples[one.name]) for gamma, one in by_gamma.items()]


def gamma_row(gamma: int, plain: list[Sample], drafted: list[Sample]) -> GammaRow:
    x_plain, made = ms_per_token(plain) / ms_per_token(drafted), drafting(plain, drafted, gamma)
    return GammaRow(gamma=gamma, **vars(speed(drafted)), **vars(made), x_plain=x_plain)


def context_sweep(pair: Pair, params: Params, repeats: int, contexts: Sequence[int]) -> list[ContextRow]:
    """Measures one prompt for each length in `contexts`."""
    rows = []
    for length in contexts:
        samples = in_turns(plain_and_speculative(pair, params), story_prompts(pair, 1, length), repeats)
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
    both = plain_and_speculative(pair, bench_params(pair, params))
    with pair.runner.torch_settings():
        samples = in_turns(both, story_prompts(pair, prompts), repeats)
    held = pair.bytes_held
    return QuantizedRow(
        quantize=kind,
        plain=speed(samples["plain"]),
        speculative=speed(samples["speculative"]),
        acceptance_rate=acceptance_rate(samples["speculative"]),
        bytes_held=held.target + (held.drafter or 0),
        notes=list(map(str, pair.notes)),
    )
