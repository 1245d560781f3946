"""Who takes part: transformers' own ways to generate, and this engine's. All draft gamma tokens a round, none ends early."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.skinny_linear import as_loaded
from specdemo.session import stream


@dataclass(frozen=True)
class Contestant:
    """One way to generate: run(prompt ids) -> (output ids, the trace where there is one)."""

    name: str
    run: Callable[[list[int]], tuple[list[int], Trace | None]]
    may_fail: bool = False  # it needs what a machine may lack; its row then says what


def endless(pair: Pair, params: Params) -> Params:
    """For a benchmark: an end-of-sequence token ends nothing, and a pair without a drafter drafts by lookup."""
    return replace(params, ignore_eos=True, draft_with="model" if pair.drafter is not None else "lookup")


def contestants(pair: Pair, params: Params, peers: bool) -> list[Contestant]:
    """transformers plain comes first: the others are compared with it. `peers`: also transformers compiled, and this
    engine without its recorded forwards."""
    plain, lookup = replace(params, draft_with="none"), replace(params, draft_with="lookup")
    all = [Contestant("transformers plain", lambda ids: (_generate(pair, ids, params), None))]
    if peers:
        all.append(
            Contestant(
                "transformers compiled",
                lambda ids: (_generate(pair, ids, params, compiled=True), None),
                may_fail=True,
            )
        )
    if pair.drafter is not None:
        all.append(
            Contestant(
                "transformers assisted", lambda ids: (_generate(pair, ids, params, pair.drafter), None)
            )
        )
    all.append(ours(pair, "specdemo plain", plain))
    if pair.drafter is not None:
        all.append(ours(pair, "specdemo speculative", params))
    all.append(ours(pair, "specdemo lookup", lookup))
    if peers:
        all.append(ours(pair, "specdemo plain, unrecorded", plain, recorded=False))
        if pair.drafter is not None:
            all.append(ours(pair, "specdemo speculative, unrecorded", params, recorded=False))
        if pair.target.device.type == "cuda":
            all.append(ours(pair, "specdemo plain, compiled", plain, compiled=True))
            all.append(ours(pair, "specdemo speculative, compiled", params, compiled=True))
    return all


def ours(pair: Pair, name: str, params: Params, recorded: bool = True, compiled: bool = False) -> Contestant:
    def run(ids: list[int]) -> tuple[list[int], Trace]:
        with changed(pair, record=recorded and pair.record, compile=compiled):
            trace = traced(pair, ids, params)
        return trace.output_ids, trace

    return Contestant(name, run, may_fail=compiled)


@contextmanager
def changed(pair: Pair, **settings):
    """The pair's settings for a while: `record=False`, and forwards run through transformers' modules one by one."""
    before = {name: getattr(pair, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(pair, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(pair, name, value)


def traced(pair: Pair, ids: list[int], params: Params) -> Trace:
    run = stream(pair, ids, params)
    for _ in run:
        pass
    return run.trace


def _generate(
    pair: Pair,
    ids: list[int],
    params: Params,
    assistant: PreTrainedModel | None = None,
    compiled: bool = False,
) -> list[int]:
    """transformers' own generation, set up to do the same: gamma drafts in every round, nothing that ends it early."""
    options = (
        {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if params.temperature
        else {}
    )
    if params.min_p and params.temperature:
        options["min_p"] = params.min_p
    if compiled:
        everywhere = CompileConfig()
        everywhere._compile_all_devices = (
            True  # transformers' own switch: it compiles on accelerators only, unless asked
        )
        options |= {"cache_implementation": "static", "compile_config": everywhere}
    config = GenerationConfig(
        do_sample=params.temperature > 0,
        max_new_tokens=params.max_new_tokens,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    torch.manual_seed(params.seed)
    prompt = torch.tensor([ids], device=pair.target.device)
    with as_loaded(pair.target, assistant), _plain_config(pair.target), _assisting(assistant, params.gamma):
        extra = {} if assistant is None else {"assistant_model": assistant}
        output = pair.target.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=config, **extra
        )
    if compiled and not hasattr(pair.target, COMPILED):
        raise RuntimeError("transformers does not compile this model")
    return output[0, len(ids) :].tolist()


COMPILED = "_compiled_call"  # where transformers keeps a model's compiled forward


def forget_compiled(pair: Pair) -> None:
    vars(pair.target).pop(COMPILED, None)


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
