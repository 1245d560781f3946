"""The contestants: transformers' ways to generate, and this engine's. All draft gamma tokens per round."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from specdemo.bench.measure import Contestant
from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.skinny_linear import as_loaded
from specdemo.session import generate


def bench_params(pair: Pair, params: Params) -> Params:
    """All do the same work: end-of-sequence tokens end nothing. A pair without a drafter drafts by lookup."""
    return replace(params, ignore_eos=True, draft_with="model" if pair.drafter is not None else "lookup")


def contestants(pair: Pair, params: Params, peers: bool) -> list[Contestant]:
    """transformers plain comes first: the others are compared with it. `peers` adds transformers compiled,
    and this engine with uncaptured (on CUDA also compiled) steps."""
    plain, lookup = replace(params, draft_with="none"), replace(params, draft_with="lookup")
    chosen = [theirs(pair, "transformers plain", params)]
    if peers:
        chosen.append(theirs(pair, "transformers compiled", params, compiled=True))
    # transformers cannot draft with a head. Where a drafter samples with another tokenizer, it replaces the
    # drafter's own embeddings and head.
    known = pair.other_tokenizer is None or params.temperature == 0
    if isinstance(pair.drafter, PreTrainedModel) and known:
        chosen.append(theirs(pair, "transformers assisted", params, pair.drafter))
    chosen.append(ours(pair, "specdemo plain", plain))
    if pair.drafter is not None:
        chosen.append(ours(pair, "specdemo speculative", params))
    chosen.append(ours(pair, "specdemo lookup", lookup))
    if peers:
        uncaptured, compiled = pair.with_capture("off"), pair.with_capture("compiled")
        chosen.append(ours(uncaptured, "specdemo plain, uncaptured", plain))
        if pair.drafter is not None:
            chosen.append(ours(uncaptured, "specdemo speculative, uncaptured", params))
        if pair.target.device.type == "cuda":
            chosen.append(ours(compiled, "specdemo plain, compiled", plain, may_fail=True))
            chosen.append(ours(compiled, "specdemo speculative, compiled", params, may_fail=True))
    return chosen


def ours(pair: Pair, name: str, params: Params, may_fail: bool = False) -> Contestant:
    def run(ids: list[int]) -> tuple[list[int], Trace]:
        trace = generate(pair, ids, params, measure=False)
        if may_fail and pair.runner.notes:
            raise RuntimeError(pair.runner.notes[0])
        return trace.output_ids, trace

    return Contestant(name, run, may_fail)


def theirs(
    pair: Pair,
    name: str,
    params: Params,
    assistant: PreTrainedModel | None = None,
    compiled: bool = False,
) -> Contestant:
    """transformers' own generation, set up to do the same work: gamma drafts per round, no early end."""
    options: dict[str, object] = {"do_sample": params.temperature > 0}
    if params.temperature:
        options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if params.min_p:
            options["min_p"] = params.min_p
    if compiled:
        compile_config = CompileConfig()
        compile_config._compile_all_devices = True  # by default transformers compiles on accelerators only
        options |= {"cache_implementation": "static", "compile_config": compile_config}
    config = GenerationConfig(
        max_new_tokens=params.max_new_tokens, eos_token_id=None, pad_token_id=0, **options
    )

    def run(ids: list[int]) -> tuple[list[int], None]:
        torch.manual_seed(params.seed)
        prompt = torch.tensor([ids], device=pair.target.device)
        inputs = {"attention_mask": torch.ones_like(prompt), "generation_config": config}
        if assistant is not None:
            inputs["assistant_model"] = assistant
        if assistant is not None and pair.other_tokenizer is not None:
            inputs |= {"tokenizer": pair.tokenizer, "assistant_tokenizer": pair.other_tokenizer.tokenizer}
        with (
            as_loaded(pair.target, assistant),
            _no_generation_config(pair.target),
            _assistant(assistant, params.gamma),
        ):
            output = pair.target.generate(prompt, **inputs)
        if compiled and not hasattr(pair.target, COMPILED):
            raise RuntimeError("transformers does not compile this model")
        return output[0, len(ids) :].tolist(), None

    return Contestant(name, run, may_fail=compiled)


COMPILED = "_compiled_call"  # the attribute in which transformers keeps a model's compiled forward


@contextmanager
def forgetting_compiled(pair: Pair) -> Iterator[None]:
    """Drops in the end what transformers compiled, so that others who use the model don't get it."""
    try:
        yield
    finally:
        vars(pair.target).pop(COMPILED, None)


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
