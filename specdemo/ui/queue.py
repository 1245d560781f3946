"""A visitor's run, from the place in the line to the last step. Knows nothing of Gradio.

What a visitor waits for is waited for in coroutines, which cost nothing while they sleep and can be cancelled at any moment; the
runs themselves go on in one thread, one after the other.
"""

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, wait
from contextlib import aclosing
from typing import NamedTuple

from specdemo.events import Params
from specdemo.loading.errors import PairError, redacted
from specdemo.loading.pair import Pair
from specdemo.session import Run, stream
from specdemo.ui.models import Choice, Models

PERIOD = 0.1  # seconds between two steps of a run, at least
LOOK = 1.0  # seconds between two looks at a place in the line; longer from the tenth on, since a message costs a millisecond


class Line:
    """Who waits for the one engine: first come, first served. Its thread does what they came for, one after the other."""

    def __init__(self):
        self.places: list[Place] = []  # the first one has its turn
        self.changed = threading.Condition()
        threading.Thread(target=self._serve, name="engine", daemon=True).start()
        atexit.register(self._close)

    def join(self, work: Callable[["Place"], None]) -> "Place":
        """work: called in the line's thread with the place when its turn has come; it ends soon after the place is `left`."""
        place = Place(self, work)
        with self.changed:
            self.places.append(place)
            self.changed.notify()
        return place

    def _serve(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.places)
                place = self.places[0]
            try:
                place.done.set_result(place.work(place))
            except BaseException as error:
                place.done.set_exception(error)
            with self.changed:
                self.places.remove(place)
            del place  # and with it what it has run

    def _close(self) -> None:
        """When the program ends: a thread that is inside of torch then would take it down with a crash."""
        places = list(self.places)
        for place in places:
            place.leave()
        wait([place.done for place in places[:1]], timeout=10)


class Place:
    """One visitor's place in a line."""

    def __init__(self, line: Line, work: Callable[["Place"], None]):
        self.line, self.work = line, work
        self.done: Future[None] = Future()
        self.left = False

    @property
    def number(self) -> int:
        """How many turns until its own; 0 when that has come."""
        with self.line.changed:
            return self.line.places.index(self) if self in self.line.places else 0

    def leave(self) -> None:
        """Gives the place up, at any time: the turn of the next comes within one round."""
        self.left = True
        with self.line.changed:
            if self in self.line.places[1:]:
                self.line.places.remove(self)


class Wait(NamedTuple):
    """What a visitor waits for, and the share of it that is done where that is known."""

    sentence: str
    share: float | None


class Step(NamedTuple):
    """A look at a run, which goes on meanwhile: it had `until` rounds. `ended` is true in the last step alone."""

    pair: Pair
    run: Run
    until: int
    ended: bool


async def running(
    models: Models, line: Line, choice: Choice, prompt, params: Params
) -> AsyncIterator[Wait | Step]:
    """Yields a Wait whenever there is news while the pair is loading and others have their turns; then a Step as soon as the run
    has begun, one every PERIOD while it goes on, and one when it has ended. What goes wrong is raised. Closing or cancelling this
    generator closes the run, or gives up the place in the line."""
    if models.resident(choice) is None:
        async with aclosing(_loading(models, choice)) as loading:
            async for news in loading:
                yield news
    started = Future()

    def work(place: Place) -> None:
        pair = models.get(choice)  # again: it may have been sent away while its visitor stood in line
        with stream(pair, prompt, params) as run:
            started.set_result((pair, run))
            for _ in run:
                if place.left:
                    break

    place = line.join(work)
    begun, done, number = _watched(started), _watched(place.done), 0
    try:
        while not (begun.done() or done.done()):
            if (now := place.number) not in (0, number):
                number = now
                yield Wait(f"You are number {number} in line …", None)
            await asyncio.wait(
                [begun, done], timeout=LOOK * max(1, number / 10), return_when=asyncio.FIRST_COMPLETED
            )
        told = None
        while not done.done():
            pair, run = begun.result()
            if (news := (len(run.trace.rounds), pair.runner.warming_up)) != told:
                told = news
                yield Step(pair, run, news[0], False)
            await asyncio.wait([done], timeout=PERIOD)
        done.result()  # raises what has gone wrong
        pair, run = started.result()
        yield Step(pair, run, len(run.trace.rounds), True)
    finally:
        place.leave()


async def _loading(models: Models, choice: Choice) -> AsyncIterator[Wait]:
    """In a thread that nobody has to wait for: a visitor can leave while a model downloads, which goes on for the next one. A load that
    has not begun when its visitor leaves never does."""
    start, latest = (
        time.monotonic(),
        deque([(f"Loading the pair {choice.pair or models.default}", None)], maxlen=1),
    )
    left = threading.Event()
    loading = _watched(
        _in_background(models.get, choice, lambda *step: latest.append(step), lambda: not left.is_set())
    )
    told = None
    try:
        while not loading.done():
            sentence, share = latest[0]
            news = Wait(f"{sentence} … {time.monotonic() - start:.0f} s", share)
            if news != told:
                told = news
                yield news
            await asyncio.wait([loading], timeout=0.3)
        loading.result()
    finally:
        left.set()


def _watched(future: Future) -> asyncio.Future:
    """For coroutines to wait for, with asyncio.wait alone: that does not cancel it."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # its visitor may have left, and that is all right
    return watched


def _in_background(function, *arguments) -> Future:
    future = Future()

    def work():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def sentence(error: Exception) -> str:
    if isinstance(error, (PairError, ValueError)):
        return str(error)
    return redacted(f"The run failed: {type(error).__name__}: {' '.join(str(error).split())}")
