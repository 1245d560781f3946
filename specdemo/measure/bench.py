"""The benchmark of one pair: transformers' ways to generate against this engine's, all with gamma drafts a
round."""

from datetime import date

import torch

from specdemo.events import Params
from specdemo.loading.pair import Pair
from specdemo.measure.bench_numbers import (
    Sample,
    differences,
    drafting,
    first_differences,
    in_turns,
    ms_per_token,
    processor_ms_per_token,
    spread,
)
from specdemo.measure.bench_results import Ratio, Result, Row
from specdemo.measure.contestants import bench_params, contestants
from specdemo.measure.prompts import story_prompts


def bench(
    pair: Pair, params: Params, prompts: int, repeats: int, *, prompt_tokens: int | None = None
) -> Result:
    """Times every contestant on every prompt `repeats` times, with as many threads as the engine uses. All
    contestants write `max_new_tokens` tokens, because end-of-sequence tokens end nothing here.

    prompt_tokens: in each prompt; None: as many as it has.
    Raises ValueError if the texts do not fit the context."""
    params, prompt_ids = bench_params(pair, params), story_prompts(pair, prompts, prompt_tokens)
    gamma, greedy = params.gamma, params.temperature == 0
    if max(map(len, prompt_ids)) + params.max_new_tokens > pair.context:
        room = f"in the context of {pair.context:,.0f} tokens"
        raise ValueError(f"max_new_tokens must leave the prompts room {room}")
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
            **{name: getattr(params, name) for name in told},
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            repeats=repeats,
            rows=[row(name, samples, greedy) for name in samples],
            ratios=ratios(samples),
            **vars(drafting(plain, drafted, gamma)),
            differing_argmaxes=differences(drafted[:prompts], plain[:prompts]) if greedy else None,
            # Last, because they include what could not be captured.
            notes=list(map(str, pair.notes)),
        )


def row(name: str, samples: dict[str, list[Sample]], greedy: bool) -> Row:
    """The contestant's row. `samples` must include those of transformers plain."""
    own, plain = samples[name], samples["transformers plain"]
    assisted = samples.get("transformers assisted")
    low, ms, high = spread(sample.ms_per_token for sample in own)
    first_at = first_differences(own, plain)
    return Row(
        name=name,
        ms_per_token=ms,
        ms_per_token_10_90=(low, high),
        tokens_per_second=1000 / ms,
        tokens_per_processor_second=1000 / processor_ms_per_token(own),
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
