"""The contestants of a benchmark: the table of them, and how transformers and this engine generate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from specdemo.bench.llama_cpp import run_llama_cpp
from specdemo.bench.measure import Contestant, RunIds
from specdemo.bench.openvino import run_openvino
from specdemo.bench.peers import LLAMA_CPP, OPENVINO, Package, Work, takes_drafter, takes_target
from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.linear import as_loaded
from specdemo.session import generate


def contestants(pair: Pair, params: Params, peers: Path | None) -> list[Contestant]:
    """The contestants. transformers plain comes first: the others are compared with it.

    peers: a folder for models in other formats, if peers are to take part, too."""
    own_threads = torch.get_num_threads()
    with pair.runner.torch_settings():
        work = Work(pair, params, torch.get_num_threads(), own_threads, peers)
    return [entrant.contestant(work) for entrant in ENTRANTS if entrant.takes_part(work)]


@dataclass(frozen=True)
class Entrant:
    """A row of the table of contestants."""

    name: str
    start: Callable[[Work], RunIds]
    change: Callable[[Work], Work]  # what it does differently from the others
    conditions: tuple[Callable[[Work], bool], ...] = ()
    may_fail: bool = False  # needs something that a machine may lack, such as a compiler
    package: Package | None = None  # what must be installed
    precision: str | None = None  # None: the pair's

    @property
    def full_name(self) -> str:
        return self.name if self.precision is None else f"{self.name}, {self.precision}"

    def takes_part(self, work: Work) -> bool:
        is_here = self.package is None or self.package.is_here()
        return is_here and all(condition(work) for condition in self.conditions)

    def contestant(self, work: Work) -> Contestant:
        """The contestant of this row. What it needs is loaded when it first runs."""
        own = replace(self.change(work), precision=self.precision)
        started = cache(lambda: self.start(own))
        may_fail = self.may_fail or self.package is not None

        def run(ids: list[int]) -> tuple[list[int], Trace | None]:
            output, trace = started()(ids)
            if len(output) != own.params.max_new_tokens:
                raise RuntimeError(f"{len(output)} tokens instead of {own.params.max_new_tokens}")
            return output, trace

        return Contestant(self.full_name, run, may_fail, own.params.temperature)


def _same(work: Work) -> Work:
    return work


def _plain(work: Work) -> Work:
    return replace(work, params=replace(work.params, draft_with="none"))


def _lookup(work: Work) -> Work:
    return replace(work, params=replace(work.params, draft_with="lookup", tree=()))


def _sampled(work: Work) -> Work:
    return replace(work, params=replace(work.params, temperature=0.8))


def _own_threads(work: Work) -> Work:
    return replace(work, threads=work.own_threads)


def _peers(work: Work) -> bool:
    return work.folder is not None


def _greedy(work: Work) -> bool:
    return work.params.temperature == 0


def _more_threads(work: Work) -> bool:
    return work.own_threads != work.threads and not _on_cuda(work)


def _on_cuda(work: Work) -> bool:
    return work.pair.target.device.type == "cuda"


def _drafter(work: Work) -> bool:
    return work.pair.drafter is not None


def _assistant(work: Work) -> bool:
    """Whether transformers can draft with the pair's drafter. It cannot draft with a head. Where a drafter
    samples with another tokenizer, it replaces the drafter's own embeddings and head."""
    known = work.pair.other_tokenizer is None or work.params.temperature == 0
    return isinstance(work.pair.drafter, PreTrainedModel) and known


def _theirs(work: Work, assisted: bool = False, compiled: bool = False) -> RunIds:
    run = theirs(work.pair, work.params, work.pair.drafter if assisted else None, compiled)

    def run_with_threads(ids: list[int]) -> tuple[list[int], None]:
        before = torch.get_num_threads()
        torch.set_num_threads(work.threads)
        try:
            return run(ids)
        finally:
            torch.set_num_threads(before)

    return run_with_threads


def _ours(work: Work) -> RunIds:
    return ours(work.pair, work.params)


def _uncaptured(work: Work) -> RunIds:
    return ours(work.pair.with_capture("off"), work.params)


_ASSISTED = partial(_theirs, assisted=True)
_OPENVINO = {"package": OPENVINO, "precision": "float32"}
_LLAMA, _HALF_LLAMA = ({"package": LLAMA_CPP, "precision": one} for one in ("float32", "float16"))

ENTRANTS = (
    Entrant("transformers plain", _theirs, _same),
    Entrant("transformers compiled", partial(_theirs, compiled=True), _same, (_peers,), may_fail=True),
    Entrant("transformers assisted", _ASSISTED, _same, (_assistant,)),
    Entrant("specdemo plain", _ours, _plain),
    Entrant("specdemo speculative", _ours, _same, (_drafter,)),
    Entrant("specdemo lookup", _ours, _lookup),
    Entrant("specdemo plain, uncaptured", _uncaptured, _plain, (_peers,)),
    Entrant("specdemo speculative, uncaptured", _uncaptured, _same, (_peers, _drafter)),
    Entrant("OpenVINO GenAI plain", run_openvino, _plain, (_peers, takes_target), **_OPENVINO),
    Entrant("OpenVINO GenAI draft_model", run_openvino, _same, (_peers, takes_drafter), **_OPENVINO),
    Entrant("OpenVINO GenAI prompt lookup", run_openvino, _lookup, (_peers, takes_target), **_OPENVINO),
    Entrant("llama.cpp plain", run_llama_cpp, _plain, (_peers, takes_target), **_LLAMA),
    Entrant("llama.cpp with drafter", run_llama_cpp, _same, (_peers, takes_drafter), **_LLAMA),
    Entrant("llama.cpp plain", run_llama_cpp, _plain, (_peers, takes_target), **_HALF_LLAMA),
    Entrant("llama.cpp with drafter", run_llama_cpp, _same, (_peers, takes_drafter), **_HALF_LLAMA),
    Entrant(
        "transformers assisted, own threads", _ASSISTED, _own_threads, (_peers, _assistant, _more_threads)
    ),
    Entrant("transformers assisted, sampled", _ASSISTED, _sampled, (_peers, _assistant, _greedy)),
    Entrant("specdemo speculative, sampled", _ours, _sampled, (_peers, _drafter, _greedy)),
)


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


def plain_and_speculative(pair: Pair, params: Params) -> list[Contestant]:
    plain = replace(params, draft_with="none")
    return [Contestant("plain", ours(pair, plain)), Contestant("speculative", ours(pair, params))]


def theirs(
    pair: Pair, params: Params, assistant: PreTrainedModel | None = None, compiled: bool = False
) -> RunIds:
    """transformers' own generation, set up to do the same work: gamma drafts per round, no early end."""
    options = {"do_sample": params.temperature > 0, "max_new_tokens": params.max_new_tokens}
    if params.temperature:
        options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if params.min_p:
            options["min_p"] = params.min_p
    if compiled:
        compile_config = CompileConfig()
        compile_config._compile_all_devices = True  # by default transformers compiles on accelerators only
        options |= {"cache_implementation": "static", "compile_config": compile_config}
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
        if compiled and not hasattr(pair.target, COMPILED):
            raise RuntimeError("transformers does not compile this model")
        return output[0, len(ids) :].tolist(), None

    return run


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
