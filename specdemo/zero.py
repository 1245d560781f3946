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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdemo import session
from specdemo.errors import PairError, failure, redacted, without_directories
from specdemo.events import Finish, Finished, Params, Prompt, Round, Started, Stats
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

    event: Started | Round | Finished
    stats: Stats
    unfinished: str
    finish: Finish | None


Task = Callable[[Started, bool], Iterator[News | Message]]  # a message: what went wrong, as the trace has it
_tasks: weakref.WeakKeyDictionary[Pair, Task] = weakref.WeakKeyDictionary()


def start_run(
    pair: AnyPair,
    prompt: Prompt,
    params: Params | None = None,
    *,
    measure: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> "session.Run | ForkedRun":
    """Starts a run as `session.stream` does; on ZeroGPU the run happens in a forked process, which cannot ask
    `is_over`."""
    if GPU is None or not pair.runs_here:
        return session.stream(pair, prompt, params, measure=measure, is_over=is_over)
    started = session.prepare(pair, prompt, params)
    if not pair.lock.acquire(blocking=False):
        raise PairError(session.BUSY)
    try:
        return ForkedRun(pair, started, measure)
    except BaseException:
        pair.lock.release()
        raise


def place(pair: Pair) -> Task:
    """Gives the function that runs this pair on ZeroGPU, one for each pair, since the package reuses a
    function's process, which knows only the pairs that were there when it was forked. The first one must be
    made before the server starts."""
    if pair not in _tasks:
        known = weakref.ref(pair)  # the package keeps the function for ever

        def run_on_gpu(started: Started, measure: bool) -> Iterator[News | Message]:
            held = known()
            assert held is not None, "the server holds the pair while it runs"
            yield from _in_fork(held, started, measure)

        assert GPU is not None
        _tasks[pair] = GPU(run_on_gpu, duration=lambda started, measure: seconds_for(started.params))
    return _tasks[pair]


def can_be_timed_in_turns(pair: AnyPair) -> bool:
    """Says whether the rounds of its runs can be made in turns with plain ones."""
    return GPU is None and isinstance(pair, Pair) and not keeps_state(pair.target)


def _in_fork(pair: Pair, started: Started, measure: bool) -> Iterator[News | Message]:
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


class ForkedRun(Iterator[Started | Round | Finished], AbstractContextManager):
    """A `session.Run` whose events come from a forked process. Any thread may close it; the pair is free as
    soon as the thread that iterates has had the next event."""

    def __init__(self, pair: Pair, started: Started, measure: bool):
        self.trace = Trace.begin(started)
        self._news = place(pair)(started, measure)
        self._computing = threading.Lock()  # held while an event is awaited
        self._telling = threading.Lock()  # held while the trace changes
        self._closing = threading.Event()
        self._free = weakref.finalize(self, pair.lock.release)

    def __next__(self) -> Started | Round | Finished:
        with self._computing:
            event = self._next_event()
            if event is None or isinstance(event, Finished):
                self._leave()
            if event is None:
                raise StopIteration
            return event

    def _next_event(self) -> Started | Round | Finished | None:
        """Waits for the next event; None when the run is over or has been closed."""
        if self._closing.is_set():
            return None
        try:
            news = self._next_news()
        except PairError as error:
            self._end("error", str(error))
            self._leave()
            raise
        with self._telling:
            if self._closing.is_set():
                return None
            if isinstance(news.event, Round):
                self.trace.add(news.event, news.unfinished)
            self.trace.stats = news.stats
            if news.finish and self.trace.finish is None:
                self.trace.end(news.finish)
        return news.event

    def _next_news(self) -> News:
        try:
            news = next(self._news, None)
        except Exception as error:  # the package's own: there is no GPU to be had, or no longer
            raise PairError(_in_a_sentence(error)) from None
        if news is None:
            raise PairError(TAKEN_BACK)
        if isinstance(news, Message):
            raise PairError(message("failed", why=news))
        return news

    def close(self) -> None:
        """Ends the run; its trace's `finish` is then "cancelled", unless it had ended before."""
        self._end("cancelled")
        if self._computing.acquire(blocking=False):  # else the thread that waits for an event does it
            try:
                self._leave()
            finally:
                self._computing.release()

    def _end(self, finish: Finish, error: str | None = None) -> None:
        with self._telling:
            self._closing.set()
            if self.trace.finish is None:
                self.trace.end(finish, error)

    def _leave(self) -> None:
        """Ends the other process's part of the run."""
        self._closing.set()
        try:
            self._news.close()
        finally:
            self._free()

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_a_sentence(error: Exception) -> Message:
    """Gives what the package says, without links: it raises Gradio's errors, which have HTML or Markdown."""
    words = str(getattr(error, "message", "") or error)
    if "aborted" in words:
        return TAKEN_BACK
    words = re.sub(r"<[^>]*>|\[([^]]*)\]\([^)]*\)", r"\1", words)
    words = redacted(without_directories(" ".join(words.split())))
    return message("no_gpu_lent", reason=words)
