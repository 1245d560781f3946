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
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

import torch

from specdemo import session
from specdemo.errors import PairError, failure, redacted, without_directories
from specdemo.events import Finish, Finished, Params, Prompt, Round, Started, Stats
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair, Pair
from specdemo.runtime import attention, cuda, shared
from specdemo.runtime.lm import keeps_state
from specdemo.words.message import Message, message, message_of

# Seconds for which the GPU is asked for. The first two are for what no run has shown yet.
PREPARE_SECONDS = 5.0  # until the first round: for the models to reach the GPU, and for the prompt
TOKEN_SECONDS = 0.05  # for a token; a pair of 8 billion parameters needs about half of it
LEAST_SECONDS, MOST_SECONDS = 3, 60
MARGIN = 1.25  # for a slower host; a round is asked for each token, as if no draft were accepted
ENOUGH_ROUNDS = 8  # from which on a run tells what a round takes
KEPT = 8  # runs that are remembered, the slowest of which counts
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


@dataclass
class Spent:
    """The GPU's time that the last runs of a pair took, in seconds, and how much the next one asks for.

    prepared: until the first round was there, in new processes alone: nobody knows whether the next one is.
    by_way: of a round after that one, by what its time depends on most: how it is drafted, and whether
    greedily. How many tokens a round brings depends on the text, so a run asks for one round a token."""

    prepared: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    by_way: dict[Hashable, deque[float]] = field(default_factory=dict)

    def seconds_for(self, params: Params) -> int:
        """Says how many to ask for. A visitor's quota must have room for them; only what is used counts."""
        prepare = MARGIN * max(self.prepared) if self.prepared else PREPARE_SECONDS
        taken = self.by_way.get(_way(params))
        a_round = MARGIN * max(taken) if taken else TOKEN_SECONDS
        needed = math.ceil(prepare + a_round * params.max_new_tokens)
        return min(MOST_SECONDS, max(LEAST_SECONDS, needed))

    def add(self, params: Params, is_new: bool, prepared: float, later: float, rounds: int) -> None:
        """Adds a run that took `later` seconds for `rounds` rounds after the first one. Of one that was cut
        short they go on to the cut, so the next one asks for more than it had."""
        if is_new:
            self.prepared.append(prepared)
        if rounds:
            self.by_way.setdefault(_way(params), deque(maxlen=KEPT)).append(later / rounds)


def _way(params: Params) -> Hashable:
    drafts = (params.tree or params.gamma) if params.draft_with != "none" else 0
    return params.draft_with, drafts, params.temperature == 0


@dataclass(frozen=True)
class News:
    """What the forked process tells: an event, and what the trace has after it. seconds: since the GPU was
    lent for this run. is_new: whether the process was made for it, and so had the models to move."""

    event: Started | Round | Finished
    stats: Stats
    unfinished: str
    finish: Finish | None
    seconds: float
    is_new: bool


Task = Callable[[Started, bool], Iterator[News | Message]]  # a message: what went wrong, as the trace has it


class Place(NamedTuple):
    """Where a pair runs, and what its runs took there."""

    task: Task
    spent: Spent


_places: weakref.WeakKeyDictionary[Pair, Place] = weakref.WeakKeyDictionary()
_forked_at: float | None = None  # by perf_counter; None in the server, and once a run has begun in a fork


def _note_fork() -> None:
    global _forked_at
    _forked_at = perf_counter()


os.register_at_fork(after_in_child=_note_fork)


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


def place(pair: Pair) -> Place:
    """Gives the function that runs this pair on ZeroGPU, one for each pair, since the package reuses a
    function's process, which knows only the pairs that were there when it was forked. The first one must be
    made before the server starts."""
    if pair not in _places:
        known, spent = weakref.ref(pair), Spent()  # the package keeps the function for ever

        def run_on_gpu(started: Started, measure: bool) -> Iterator[News | Message]:
            held = known()
            assert held is not None, "the server holds the pair while it runs"
            yield from _in_fork(held, started, measure)

        assert GPU is not None
        task = GPU(run_on_gpu, duration=lambda started, measure: spent.seconds_for(started.params))
        _places[pair] = Place(task, spent)
    return _places[pair]


def can_be_timed_in_turns(pair: AnyPair) -> bool:
    """Says whether the rounds of its runs can be made in turns with plain ones."""
    return GPU is None and isinstance(pair, Pair) and not keeps_state(pair.target)


def _in_fork(pair: Pair, started: Started, measure: bool) -> Iterator[News | Message]:
    global _forked_at
    begun, is_new, _forked_at = _forked_at or perf_counter(), _forked_at is not None, None
    cuda.ALONE, attention.LOCK, shared.SHARED_LOCK = threading.RLock(), threading.RLock(), threading.Lock()
    torch.set_num_threads(1)  # OpenMP's threads are gone after a fork, and more than one would wait for them
    pair = replace(pair.with_capture("off"), lock=threading.Lock())
    pair.lock.acquire()  # a Run gives it back
    try:
        with session.Run(pair, started, measure) as run:
            for event in run:
                trace = run.trace
                seconds = perf_counter() - begun
                yield News(event, trace.stats, trace.unfinished, trace.finish, seconds, is_new)
    except Exception as error:
        yield failure(error)


class ForkedRun(Iterator[Started | Round | Finished], AbstractContextManager):
    """A `session.Run` whose events come from a forked process. Any thread may close it; the pair is free as
    soon as the thread that iterates has had the next event."""

    def __init__(self, pair: Pair, started: Started, measure: bool):
        self.trace = Trace.begin(started)
        task, self._spent = place(pair)
        self._news, self._params = task(started, measure), started.params
        self._begun: float | None = None  # when the GPU was lent
        self._first: News | None = None  # with a round
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
            if message_of(error) == TAKEN_BACK:
                self._learn_of_cut()
            self._end("error", str(error))
            self._leave()
            raise
        self._begun = perf_counter() - news.seconds
        if isinstance(news.event, Round):
            self._first = self._first or news
        elif isinstance(news.event, Finished):
            later = news.stats.rounds - (self._first or news).stats.rounds
            if later >= ENOUGH_ROUNDS:
                self._learn(news.seconds, later)
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

    def _learn(self, seconds: float, rounds: int) -> None:
        first = self._first
        assert first is not None, "it has rounds"
        self._spent.add(self._params, first.is_new, first.seconds, seconds - first.seconds, rounds)

    def _learn_of_cut(self) -> None:
        """Learns from a run that has lost the GPU, if its time was over: it would have taken longer."""
        if self._begun is None:  # nobody knows how long it waited for the GPU
            return
        reserved, seconds = self._spent.seconds_for(self._params), perf_counter() - self._begun
        if seconds < 0.9 * reserved:  # the process has died before
            return
        seconds = max(seconds, reserved)
        if self._first is None:
            self._spent.add(self._params, True, seconds, 0.0, 0)
        else:
            self._learn(seconds, max(1, self.trace.stats.rounds - self._first.stats.rounds))

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
