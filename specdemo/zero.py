"""Runs on ZeroGPU, where Hugging Face lends a GPU to one call at a time.

Its package `spaces` runs each call of a decorated function in a forked process, which alone has the GPU.
That process has the models as they were when it was forked; its arguments and what it yields are pickled.
Locks that other threads held then stay locked in it, and captured steps would not outlive it. So a run there
has locks of its own and is not captured, and its trace is kept in the server. Elsewhere `start_run` is the
session's.
"""

import math
import os
import re
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdemo import session
from specdemo.errors import PairError, failure, redacted, without_directories
from specdemo.events import Finish, Params, Prompt, Round, Started, Stats
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair, Pair
from specdemo.runtime import attention, cuda, shared
from specdemo.runtime.lm import keeps_state
from specdemo.words.message import Message, message

# Seconds for which the GPU is asked for. A visitor's quota must have room for them; only what is used counts.
PREPARE_SECONDS = 5.0  # until the first round: for the models to reach the GPU, and for the prompt
TOKEN_SECONDS = 0.1  # for a token; a pair of 8 billion parameters needs about a quarter of it
MOST_SECONDS = 60
TAKEN_BACK = message("taken_back")


def _decorator() -> Callable[..., Any] | None:
    """Gives the package's own decorator, if this is ZeroGPU. It must be imported before CUDA is used, and by
    the thread that loads models: only there can they be moved to a GPU that is not there yet."""
    if os.environ.get("SPACES_ZERO_GPU", "").lower() not in ("1", "t", "true"):
        return None
    try:
        import spaces
    except ImportError:
        return None
    return spaces.GPU


GPU = _decorator()


def seconds_for(params: Params) -> int:
    """Says how many to ask for."""
    return min(MOST_SECONDS, math.ceil(PREPARE_SECONDS + TOKEN_SECONDS * params.max_new_tokens))


@dataclass(frozen=True)
class News:
    """What the forked process tells: an event, and what the trace has after it."""

    event: session.Event
    stats: Stats
    unfinished: str
    finish: Finish | None


Told = Generator[News | Message, None, None]  # a message: what went wrong, as the trace has it
Task = Callable[[Started, bool], Told]
_tasks: weakref.WeakKeyDictionary[Pair, Task] = weakref.WeakKeyDictionary()


def start_run(
    pair: AnyPair,
    prompt: Prompt,
    params: Params | None = None,
    *,
    measure: bool = True,
    is_over: session.IsOver = lambda: False,
) -> session.Run:
    """Starts a run as `session.stream` does; on ZeroGPU it happens in a forked process, which does not ask
    `is_over` before its first event."""
    if GPU is None or not pair.runs_here:
        return session.stream(pair, prompt, params, measure=measure, is_over=is_over)
    started = session.prepare(pair, prompt, params)
    if not pair.lock.acquire(blocking=False):
        raise PairError(session.BUSY)
    try:
        return session.Run(pair, started, measure, is_over, events=_forked)
    except BaseException:
        pair.lock.release()
        raise


def place(pair: Pair) -> Task:
    """Gives the function that runs this pair on ZeroGPU, one for each pair, since the package reuses a
    function's process, which knows only the pairs that were there when it was forked. The first one must be
    made before the server starts."""
    if pair not in _tasks:
        known = weakref.ref(pair)  # the package keeps the function for ever

        def run_on_gpu(started: Started, measure: bool) -> Told:
            held = known()
            assert held is not None, "the server holds the pair while it runs"
            yield from _in_fork(held, started, measure)

        assert GPU is not None
        _tasks[pair] = GPU(run_on_gpu, duration=lambda started, measure: seconds_for(started.params))
    return _tasks[pair]


def can_be_timed_in_turns(pair: AnyPair) -> bool:
    """Says whether the rounds of its runs can be made in turns with plain ones."""
    return GPU is None and isinstance(pair, Pair) and not keeps_state(pair.target)


def _in_fork(pair: Pair, started: Started, measure: bool) -> Told:
    cuda.ALONE, attention.LOCK, shared.SHARED_LOCK = threading.RLock(), threading.RLock(), threading.Lock()
    torch.set_num_threads(1)  # OpenMP's threads are gone after a fork, and more than one would wait for them
    pair = replace(pair.with_capture("off"), lock=threading.Lock())
    pair.lock.acquire()  # a Run gives it back
    try:
        with session.Run(pair, started, measure) as run:
            for event in run:
                trace = run.trace
                yield News(event, trace.stats, trace.unfinished, trace.finish)
    except Exception as error:
        yield failure(error)


def _forked(
    pair: Pair, started: Started, trace: Trace, is_closing: session.IsOver, measure: bool
) -> Generator[session.Event, None, None]:
    """The events of a run in a forked process. is_closing: whether the run is to end early; once true, always
    true. trace: filled meanwhile."""
    with closing(place(pair)(started, measure)) as task:
        try:
            while not is_closing():
                news = _next_news(task)
                if isinstance(news.event, Round):
                    trace.add(news.event, news.unfinished)
                trace.stats = news.stats
                if news.finish and trace.finish is None:
                    trace.end(news.finish)
                yield news.event
        except PairError as error:
            if trace.finish is None:
                trace.end("error", str(error))
            raise


def _next_news(task: Told) -> News:
    try:
        news = next(task, None)
    except Exception as error:  # the package's own: there is no GPU to be had, or no longer
        raise PairError(_in_a_sentence(error)) from None
    if news is None:
        raise PairError(TAKEN_BACK)
    if isinstance(news, Message):
        raise PairError(message("failed", why=news))
    return news


def _in_a_sentence(error: Exception) -> Message:
    """Gives what the package says, without links: it raises Gradio's errors, which have HTML or Markdown."""
    words = str(getattr(error, "message", "") or error)
    if "aborted" in words:
        return TAKEN_BACK
    words = re.sub(r"<[^>]*>|\[([^]]*)\]\([^)]*\)", r"\1", words)
    words = redacted(without_directories(" ".join(words.split())))
    return message("no_gpu_lent", reason=words)
