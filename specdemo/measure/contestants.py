"""The contestants of a benchmark: how transformers and this engine generate."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import GenerationConfig, PreTrainedModel

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.measure.bench_numbers import RunIds
from specdemo.runtime.linear import as_loaded
from specdemo.session import generate


def contestants(pair: Pair, params: Params) -> dict[str, RunIds]:
    """The contestants by their names. transformers plain comes first: the others are compared with it."""
    ways = {"transformers plain": theirs(pair, params)}
    if _can_assist(pair, params):
        ways["transformers assisted"] = theirs(pair, params, pair.drafter)
    ways["specdemo plain"] = ours(pair, replace(params, draft_with="none"))
    if pair.drafter is not None:
        ways["specdemo speculative"] = ours(pair, params)
    ways["specdemo lookup"] = ours(pair, replace(params, draft_with="lookup", tree=()))
    return {name: _whole(run, params.max_new_tokens) for name, run in ways.items()}


def _can_assist(pair: Pair, params: Params) -> bool:
    """Whether transformers can draft with the pair's drafter. It cannot draft with a head. Where a drafter
    samples with another tokenizer, it replaces the drafter's own embeddings and head."""
    known = pair.other_tokenizer is None or params.temperature == 0
    return isinstance(pair.drafter, PreTrainedModel) and known


def _whole(run: RunIds, tokens: int) -> RunIds:
    """The same, which fails if it writes fewer tokens or more."""

    def checked(ids: list[int]) -> tuple[list[int], Trace | None]:
        output, trace = run(ids)
        if len(output) != tokens:
            raise RuntimeError(f"{len(output)} tokens instead of {tokens}")
        return output, trace

    return checked


def bench_params(pair: Pair, params: Params) -> Params:
    """The Params with which all contestants do the same work: end-of-sequence tokens end nothing, and nothing
    is penalised. A pair without a drafter drafts by lookup."""
    draft_with = "model" if pair.drafter is not None else "lookup"
    return replace(
        params,
        ignore_eos=True,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
        draft_with=draft_with,
    )


def ours(pair: Pair, params: Params) -> RunIds:
    def run(ids: list[int]) -> tuple[list[int], Trace]:
        trace = generate(pair, ids, params, measure=False)
        return trace.output_ids, trace

    return run


def theirs(pair: Pair, params: Params, assistant: PreTrainedModel | None = None) -> RunIds:
    """transformers' own generation, set up to do the same work: gamma drafts per round, no early end."""
    options = {"do_sample": params.temperature > 0, "max_new_tokens": params.max_new_tokens}
    if params.temperature:
        options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if params.min_p:
            options["min_p"] = params.min_p
    config = GenerationConfig(eos_token_id=None, pad_token_id=0, **options)
    given = {"generation_config": config} | ({} if assistant is None else {"assistant_model": assistant})
    if assistant is not None and pair.other_tokenizer is not None:
        given |= {"tokenizer": pair.tokenizer, "assistant_tokenizer": pair.other_tokenizer.tokenizer}

    def run(ids: list[int]) -> tuple[list[int], None]:
        torch.manual_seed(params.seed)
        prompt = torch.tensor([ids], device=pair.target.device)
        with (
            as_loaded(pair.target, assistant),
            _no_generation_config(pair.target),
            _assistant(assistant, params.gamma),
        ):
            output = pair.target.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
        return output[0, len(ids) :].tolist(), None

    return run


@contextmanager
def _no_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """Removes the model's generation config, from which `generate` would fill in eos and other settings."""
    before = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before


@contextmanager
def _assistant(model: PreTrainedModel | None, gamma: int) -> Iterator[None]:
    """Lets the assistant draft `gamma` tokens in every round, without a confidence threshold."""
    if model is None:
        yield
        return
    with _no_generation_config(model):
        model.generation_config.num_assistant_tokens = gamma
        model.generation_config.num_assistant_tokens_schedule = "constant"
        model.generation_config.assistant_confidence_threshold = 0.0
        yield
