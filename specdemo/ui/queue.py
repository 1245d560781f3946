"""A visitor's run, from its turn in the queue to its end. Without Gradio.

What a visitor waits for is awaited in coroutines, which take no thread while they sleep and can be cancelled
at any moment. The runs themselves happen in one thread, one after another.
"""

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, wait
from contextlib import aclosing
from typing import Any, NamedTuple

from specdemo.events import Params
from specdemo.loading.errors import PairError, redacted
from specdemo.loading.pair import Pair
from specdemo.session import Run, stream
from specdemo.ui.models import Choice, Models

REPORT_PERIOD = 0.1  # s, the least time between two reports of a run
# s between two looks at the queue. From the tenth visitor on it grows with the queue: each message costs a
# millisecond.
QUEUE_PERIOD = 1.0
LOADING_PERIOD = 0.3  # s between two looks at a load


class RunQueue:
    """Visitors who wait for the one engine; first come, first served. Its thread does their work, one after
    another."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []  # the first one has its turn
        self.changed = threading.Condition()
        threading.Thread(target=self._serve, name="engine", daemon=True).start()
        atexit.register(self._close)

    def join(self, work: Callable[["Ticket"], None]) -> "Ticket":
        """`work` is called with the ticket in the queue's thread. It must end soon after the ticket is
        cancelled."""
        ticket = Ticket(self, work)
        with self.changed:
            self.tickets.append(ticket)
            self.changed.notify()
        return ticket

    def _serve(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.tickets)
                ticket = self.tickets[0]
            _fulfil(ticket.done, ticket.work, ticket)
            with self.changed:
                self.tickets.remove(ticket)
            del ticket  # it keeps the pair that it ran in memory

    def _close(self) -> None:
        """When the program ends: a thread that is still inside torch then would crash the process."""
        tickets = list(self.tickets)
        for ticket in tickets:
            ticket.cancel()
        wait([ticket.done for ticket in tickets[:1]], timeout=10)


class Ticket:
    """One visitor's place in a queue."""

    def __init__(self, queue: RunQueue, work: Callable[["Ticket"], None]):
        self.queue, self.work = queue, work
        self.done: Future[None] = Future()
        self.cancelled = False

    @property
    def ahead(self) -> int:
        """How many turns come before its own; 0 when its turn has come or is over."""
        with self.queue.changed:
            return self.queue.tickets.index(self) if self in self.queue.tickets else 0

    def cancel(self) -> None:
        """Gives up the turn, or ends it within one round. May be called at any time."""
        self.cancelled = True
        with self.queue.changed:
            if self in self.queue.tickets[1:]:
                self.queue.tickets.remove(self)


class Waiting(NamedTuple):
    """What a visitor waits for, and the share of it that is finished, from 0 to 1 (None where it is not
    known)."""

    sentence: str
    share: float | None


class Progress(NamedTuple):
    """A run that goes on meanwhile: it had `until` rounds at this moment. `ended` is true in the last report
    only."""

    pair: Pair
    run: Run
    until: int
    ended: bool


async def follow(
    models: Models, queue: RunQueue, choice: Choice, prompt: Any, params: Params
) -> AsyncIterator[Waiting | Progress]:
    """Runs a visitor's prompt when its turn comes.

    Yields Waiting when something changes while the pair loads and while others have their turns. Then yields
    Progress when the run has begun, at most every REPORT_PERIOD when there are new rounds, and when it has
    ended. Errors are raised. Closing or cancelling this generator closes the run or leaves the queue.
    """
    async with aclosing(loaded(models, choice)) as loading:
        async for waiting in loading:
            yield waiting
    started: Future[tuple[Pair, Run]] = Future()

    def work(ticket: Ticket) -> None:
        pair = models.get(choice)  # again: the pool may have dropped it while its visitor waited
        with stream(pair, prompt, params) as run:
            started.set_result((pair, run))
            for _ in run:
                if ticket.cancelled:
                    break

    ticket = queue.join(work)
    begun, done = awaitable(started), awaitable(ticket.done)
    try:
        async with aclosing(turn_of(ticket, begun, done)) as in_line:
            async for waiting in in_line:
                yield waiting
        reported = None
        while not done.done():
            pair, run = begun.result()
            state = (len(run.trace.rounds), pair.runner.warming_up)
            if state != reported:
                reported = state
                yield Progress(pair, run, state[0], False)
            await asyncio.wait([done], timeout=REPORT_PERIOD)
        done.result()  # raises what went wrong
        pair, run = started.result()
        yield Progress(pair, run, len(run.trace.rounds), True)
    finally:
        ticket.cancel()


async def turn_of(ticket: Ticket, begun: asyncio.Future, done: asyncio.Future) -> AsyncIterator[Waiting]:
    """Waits until the ticket's work has begun (or is done), and tells the place in the line meanwhile."""
    shown = 0
    while not (begun.done() or done.done()):
        if (ahead := ticket.ahead) not in (0, shown):
            shown = ahead
            yield Waiting(f"You are number {ahead} in line …", None)
        period = QUEUE_PERIOD * max(1, shown / 10)
        await asyncio.wait([begun, done], timeout=period, return_when=asyncio.FIRST_COMPLETED)


async def loaded(models: Models, choice: Choice) -> AsyncIterator[Waiting]:
    """Waits until the pair is loaded. It loads in a thread of its own, so that a visitor can leave meanwhile.
    A load that has begun then goes on for the next visitor; one that has not begun never does."""
    if models.loaded(choice) is not None:
        return
    start, left = time.monotonic(), threading.Event()
    latest: deque[tuple[str, float | None]] = deque(maxlen=1)
    latest.append((f"Loading the pair {choice.pair or models.default}", None))

    def load() -> Pair:
        return models.get(choice, lambda *news: latest.append(news), lambda: not left.is_set())

    pair: Future[Pair] = Future()
    threading.Thread(target=_fulfil, args=(pair, load), daemon=True).start()
    loading, shown = awaitable(pair), None
    try:
        while not loading.done():
            doing, share = latest[0]
            waiting = Waiting(f"{doing} … {time.monotonic() - start:.0f} s", share)
            if waiting != shown:
                shown = waiting
                yield waiting
            await asyncio.wait([loading], timeout=LOADING_PERIOD)
        loading.result()
    finally:
        left.set()


def _fulfil(future: Future, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls the function for a future's result, unless the future has been cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*arguments))
    except BaseException as error:
        future.set_exception(error)


def awaitable(future: Future) -> asyncio.Future:
    """For asyncio.wait, which does not cancel what it waits for."""
    awaitable = asyncio.wrap_future(future)
    # Marks an exception as seen: nobody looks at it after the visitor has left.
    awaitable.add_done_callback(lambda done: done.cancelled() or done.exception())
    return awaitable


def sentence(error: Exception) -> str:
    """What a visitor reads about an error."""
    if isinstance(error, (PairError, ValueError)):
        return str(error)
    return redacted(f"The run failed: {type(error).__name__}: {' '.join(str(error).split())}")
