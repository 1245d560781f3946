"""The composition root: a pair, a prompt and Params become one running, closable stream of events."""

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import takewhile
from random import SystemRandom

import torch

from specdemo import __version__
from specdemo.engine.detokenize import Pieces
from specdemo.engine.drafters import Drafter, NoDrafter
from specdemo.engine.drafters.eagle3 import Eagle3Drafter
from specdemo.engine.drafters.lookup import LookupDrafter
from specdemo.engine.drafters.model import ModelDrafter
from specdemo.engine.drafters.ngram import NgramDrafter
from specdemo.engine.drafters.other_tokenizer import OtherTokenizerDrafter, SharedTokensDrafter
from specdemo.engine.emit import Emitter
from specdemo.engine.length import DraftLength
from specdemo.engine.loop import Decoder, Prefilled
from specdemo.engine.plain import plain_rounds
from specdemo.engine.rules import rule_of
from specdemo.engine.sampling import Sampler
from specdemo.engine.step import Verifier
from specdemo.engine.stopping import StopCriteria
from specdemo.errors import PairError, failure, no_mistakes
from specdemo.events import Finished, Params, Round, Started, is_lossy, metrics
from specdemo.events.trace import Trace
from specdemo.loading.load import load_pair
from specdemo.loading.pair import AnyPair, Pair
from specdemo.loading.prompt import encode
from specdemo.runtime import cuda, gpu_check
from specdemo.runtime.cached_head import CachedHead
from specdemo.runtime.early_exit import exit_layer
from specdemo.runtime.runner import RunSetup
from specdemo.vllm.pair import ServedPair
from specdemo.vllm.run import served_events

Event = Started | Round | Finished
IsOver = Callable[[], bool]


def stream(
    pair: AnyPair,
    prompt: str | list[int],
    params: Params | None = None,
    *,
    measure: bool = True,
    is_over: IsOver = lambda: False,
) -> "Run":
    """Starts a run: an iterator of Started, one Round per target forward after the prefill, and Finished.

    measure: plain rounds are timed before Finished, in at most a tenth of the run's time, for
    `stats.speedup`; not of a server. is_over: asked during the prefill; once true, the run is closed. Raises
    ValueError for a prompt or Params that this pair cannot take, PairError while it is busy with another
    run."""
    started = prepare(pair, prompt, params)
    if isinstance(pair, Pair) and cuda.is_cuda(pair.target.device) and not cuda.lost():
        pair.runner.gpu_note = gpu_check.difference(pair.target.device, _embedded_text)
    if not pair.lock.acquire(blocking=False):
        raise PairError("this pair is busy: finish, close or drop its other run first")
    try:
        return Run(pair, started, measure, is_over)
    except BaseException:
        pair.lock.release()
        raise


def prepare(pair: AnyPair, prompt: str | list[int], params: Params | None = None) -> Started:
    """A run's first event: its prompt as token ids, its Params with a seed. Raises ValueError as `stream`
    does, and touches no device."""
    params = Params() if params is None else params
    if not isinstance(params, Params):
        raise ValueError(f"params must be a Params, not {type(params).__name__}")
    if params.system is not None and not params.chat:
        raise ValueError("system is part of the chat template, so it needs chat to be true")
    prompt_ids = encode(pair, prompt, params)
    text = prompt if isinstance(prompt, str) else ""
    if isinstance(pair, ServedPair):
        params = _seeded(pair.check(params))
        return Started(pair.info, {"specdemo": __version__, **pair.versions}, params, text, tuple(prompt_ids))
    if params.draft_with == "model" and pair.drafter is None:
        raise ValueError('draft_with must not be "model" for this pair: it has no drafter model')
    if params.draft_with == "early-exit":
        params = replace(params, exit_layer=exit_layer(pair.target, params.exit_layer))
    if params.stop and pair.tokenizer is None:
        raise ValueError(
            "stop must be empty for this pair: without a tokenizer there is no text to find a string in"
        )
    versions = {
        "specdemo": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
    return Started(pair.info, versions, _seeded(params), text, tuple(prompt_ids))


def _seeded(params: Params) -> Params:
    return params if params.seed is not None else replace(params, seed=SystemRandom().randrange(2**32))


def generate(
    pair: AnyPair, prompt: str | list[int], params: Params | None = None, *, measure: bool = True
) -> Trace:
    """The whole run at once: its trace. Raises as `stream` does, and what fails while it runs."""
    run = stream(pair, prompt, params, measure=measure)
    for _ in run:
        pass
    return run.trace


def _embedded_text(device: str) -> list[int]:
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # loading a pair sets it
    pair = load_pair(device=device, dtype="float32", cudnn_attention=cudnn)
    params = Params(temperature=0, max_new_tokens=60, ignore_eos=True)
    return generate(pair, "Once upon a time there was a little fox who", params, measure=False).output_ids


class Run:
    """One run of a pair. Iterate over it for the events; `trace` is the trace so far; `close()` ends it
    early.

    Any thread may close it: the pair is free when `close` returns, at the latest one round or one part of the
    prefill later. A run that is dropped closes itself."""

    def __init__(self, pair: AnyPair, started: Started, measure: bool, is_over: IsOver = lambda: False):
        self.trace = Trace.begin(started)
        self._computing = threading.Lock()  # held while an event is computed
        closing = self._closing = threading.Event()

        def is_closing() -> bool:
            if is_over():
                closing.set()
            return closing.is_set()

        self._free = weakref.finalize(self, _free, pair, self.trace)
        if isinstance(pair, ServedPair):
            self._events = served_events(pair, started, self.trace, is_closing)
        else:
            self._events = _events(pair, started, self.trace, is_closing, measure)

    def __iter__(self) -> "Run":
        return self

    def __next__(self) -> Event:
        with self._computing:
            if self._closing.is_set():
                raise StopIteration
            try:
                with no_mistakes():
                    event = next(self._events)
            except BaseException:
                self._free()
                raise
            if isinstance(event, Finished):
                self._end()
            return event

    def close(self) -> None:
        """Ends the run after the round that is being computed; the trace's `finish` is then "cancelled",
        unless the run had ended before."""
        self._closing.set()
        with self._computing:
            self._end()

    def _end(self) -> None:
        self._events.close()
        self._free()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free(pair: AnyPair, trace: Trace) -> None:
    """At the end of every run, once, whether it finished, failed, was closed or was dropped."""
    try:
        if trace.finish is None:
            trace.end("cancelled")
    finally:
        pair.lock.release()


def _events(
    pair: Pair, started: Started, trace: Trace, is_closing: IsOver, measure: bool
) -> Generator[Event, None, None]:
    """is_closing: whether the run is to end early; once true, always true. measure: see `stream`."""
    yield started
    try:
        decoder = _decoder(pair, started, is_closing)
        rounds = decoder.decode(list(started.prompt_ids))
        while trace.finish is None:
            with pair.runner.active():
                event = next(rounds)
            if isinstance(event, Prefilled):
                trace.stats = metrics.after_prefill(trace.stats, event.forwards, event.ms)
                if is_closing():  # the caches can lack a part of the prompt
                    return
                continue
            trace.add(event, decoder.emitter.pieces.flush())
            if decoder.finish:  # before the yield, so that whoever sees the last round sees a whole text
                trace.end(decoder.finish)
            yield event
    except Exception as error:
        trace.end("error", failure(error))
        raise
    if measure:
        times = plain_rounds(
            decoder, Pieces(pair.tokenizer), list(started.prompt_ids) + trace.output_ids, trace.stats
        )
        # The text is complete, so an error here (too little memory) only leaves the speed-up unknown.
        with suppress(RuntimeError), pair.runner.active():
            times_ms = list(takewhile(lambda _: not is_closing(), times))
            if not is_closing():
                trace.stats = metrics.after_plain_rounds(trace.stats, times_ms)
    assert trace.finished is not None
    yield trace.finished


def _decoder(pair: Pair, started: Started, is_over: IsOver) -> Decoder:
    params = started.params
    setup = pair.runner.begin_run(params.exit_layer if params.draft_with == "early-exit" else None)
    sampler = Sampler(params)
    longest = int(min(len(started.prompt_ids) + params.max_new_tokens, pair.context))
    eos = frozenset() if params.ignore_eos else pair.eos
    stop = StopCriteria(eos, params.stop, room=longest - len(started.prompt_ids))
    drafter = _drafter(pair, params, sampler, setup, is_over)
    verifier = Verifier(
        setup.target,
        sampler,
        rule_of(params),
        setup.run_step,
        params.gamma,
        params.alternatives,
        drafter.wants_top,
        tuple(sorted(eos)),
        params.confidence,
    )
    cost = _cost(pair, params) if params.gamma == "auto" else 0.0
    length = DraftLength(0 if params.draft_with == "none" else params.gamma, cost)
    emitter = Emitter(Pieces(pair.tokenizer), pair.token_text, stop, params.rule, is_lossy(params))
    assert params.seed is not None, "stream has drawn one"
    return Decoder(drafter, verifier, emitter, length, longest, params.seed, pair.runner.clock, is_over)


def _cost(pair: Pair, params: Params) -> float:
    """Of drafting a token, in parts of the target's forward."""
    if params.draft_with == "early-exit":
        return pair.exit_cost(params.exit_layer)
    return pair.drafting_cost if params.draft_with == "model" else 0.0


def _drafter(pair: Pair, params: Params, sampler: Sampler, setup: RunSetup, is_over: IsOver) -> Drafter:
    vocab_size, device = setup.target.vocab_size, setup.target.device
    match params.draft_with:
        case "model" | "early-exit":
            return _model_drafter(pair, params, sampler, setup, is_over)
        case "lookup":
            return LookupDrafter(params.ngram, vocab_size, device)
        case "ngram":
            return NgramDrafter(params.ngram, True, vocab_size, device)
        case "ngram-one-level":
            return NgramDrafter(params.ngram, False, vocab_size, device)
        case "none":
            return NoDrafter(vocab_size, device)
    raise AssertionError(f"no drafter for {params.draft_with}")


def _model_drafter(pair: Pair, params: Params, sampler: Sampler, setup: RunSetup, is_over: IsOver) -> Drafter:
    """The pair's drafter, or the target's own first layers."""
    lm, vocab_size, device = setup.drafter, setup.target.vocab_size, setup.target.device
    assert lm is not None, "stream has refused a pair without a drafter"
    how = (setup.run_drafting, params.gamma, is_over, params.confidence)
    if isinstance(lm, CachedHead):
        return Eagle3Drafter(lm, setup.target, sampler, *how)
    if params.draft_with == "early-exit":
        return ModelDrafter(lm, pair.context, sampler, vocab_size, device, *how, exit_layer=params.exit_layer)
    context, other = pair.drafter_context, pair.other_tokenizer
    if other is None:
        return ModelDrafter(lm, context, sampler, vocab_size, device, *how)
    assert pair.tokenizer is not None
    if sampler.greedy:
        drafter = ModelDrafter(lm, context, sampler, lm.vocab_size, lm.device, *how)
    else:
        drafter = SharedTokensDrafter(pair.own_ids(lm.device), lm, context, sampler, vocab_size, device, *how)
    tokenizers, own_ids = (pair.tokenizer, other.tokenizer), dict(other.shared)
    return OtherTokenizerDrafter(drafter, *tokenizers, own_ids, vocab_size, device, sampler.greedy)
