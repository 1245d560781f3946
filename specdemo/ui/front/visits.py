"""The visitors who wait for the API's answers: how many may wait, and for how long what Gradio keeps for them
stays."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.front.gradio import GradioQueue
from specdemo.ui.runs.limits import Holdings, Limits, request_address

_LOG = logging.getLogger(__name__)
SWEEP_PERIOD = 1.0  # s between two looks at who has left
# Seconds that a request keeps its place for, unless its address has more places than the one that asks for
# it. A client listens at once.
PLACE_SECONDS = 2.0
REPLACE_PERIOD = 0.1  # s between two that lose their places so; one by one, a flood would cost too much


@dataclass
class Presence:
    """A session of a caller of the API. since: when the oldest request came whose answer the session has not
    begun to read, or when it stopped listening. address: where that request came from."""

    since: float
    address: str = ""
    listening: int = 0


class Visits:
    """The visitors who wait for answers, and what Gradio keeps for them until they have gone. on_listen: is
    called when somebody begins to read."""

    def __init__(self, demo: Any, limits: Limits, on_listen: Callable[[], None]) -> None:
        self.limits, self.on_listen = limits, on_listen
        self.queue = GradioQueue(demo, self._come)
        self.visitors: dict[str, Presence] = {}
        self.joining: list[str] = []  # addresses of requests that are on their way into Gradio's queue
        self.sweep_task: asyncio.Task[None] | None = None
        self.replaced = -math.inf  # when one has lost its place

    @property
    def stopped(self) -> bool:
        """Whether a task has ended without which the server does not work."""
        return self.queue.stopped or (self.sweep_task is not None and self.sweep_task.done())

    @asynccontextmanager
    async def admitted(self, session: str | None, address: str) -> AsyncIterator[None]:
        """Holds room for one more event in Gradio's queue, while its request is on the way there."""
        if len(self.queue.events_of(session)) >= self.limits.events_of_session:
            raise NotLetIn(429, "Too many requests wait here: busy, try again in about 5 s.", 5)
        self.joining.append(address)
        try:
            await self._make_room(address)
            yield
        finally:
            self.joining.remove(address)

    async def _make_room(self, address: str) -> None:
        """Sees to it that there is a place for one more event of this address; if not, it is refused.

        When all places are taken, the address that has most loses the place of its oldest event: at once to
        an address that has fewer, after a while to one that has as many. An address that has its share of the
        places can only have those of its own events, after a while.
        """
        unread, taken = self._unread(), Holdings()
        for name, visitor in unread.items():
            taken[visitor.address] += len(self.queue.events_of(name))
        oldest_first = {
            name: unread[name].address for name in sorted(unread, key=lambda name: unread[name].since)
        }
        own, at_once = taken[address] + self.joining.count(address), False
        if own > self.limits.uncollected_of_address:
            oldest = taken.to_go({name: other for name, other in oldest_first.items() if other == address})
        elif taken.total() + len(self.joining) > self.limits.uncollected:
            oldest = taken.to_go(oldest_first)
            at_once = oldest is not None and own < taken[oldest_first[oldest]]
        else:
            return
        now = time.monotonic()
        waited = (
            oldest and now - unread[oldest].since > PLACE_SECONDS and now - self.replaced > REPLACE_PERIOD
        )
        if oldest is None or not (at_once or waited):
            seconds = math.ceil(PLACE_SECONDS)
            sentence = f"Too many requests wait here: busy, try again in about {seconds} s."
            raise NotLetIn(429, sentence, seconds)
        if not at_once:
            self.replaced = now
        await self.queue.silence(oldest)

    def _come(self, session: str, scope: Scope) -> None:
        """Notes that an event has come into Gradio's queue."""
        visitor = self._known(session)
        if len(self.queue.events_of(session)) == 1:
            visitor.since, visitor.address = time.monotonic(), request_address(scope, self.limits)

    def listen(self, session: str) -> None:
        """Notes that somebody begins to read a session's messages."""
        self._known(session).listening += 1
        self.on_listen()

    def has_reader(self, session: str) -> bool:
        """Whether somebody reads this session's messages now."""
        visitor = self.visitors.get(session)
        return bool(visitor and visitor.listening)

    def is_read(self, session: str) -> bool:
        """Whether somebody has begun to read what this session has asked for. Tools' calls, which do not go
        through the queue, have their readers from the beginning. Any thread may call it."""
        return self.has_reader(session) or not self.queue.events_of(session)

    async def leave(self, session: str, to_the_end: bool) -> None:
        """Notes that somebody has read a session's messages, or has gone before their end. What nobody reads
        then is freed."""
        visitor = self._known(session)
        visitor.listening, visitor.since = visitor.listening - 1, time.monotonic()
        waits = to_the_end and self.queue.events_of(session)  # for what came at the end
        if not (visitor.listening or waits):
            await self.queue.silence(session)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Frees again and again what belongs to those who have left."""
        self.sweep_task = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            self.sweep_task.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD)
            await self.look_round()

    async def look_round(self) -> None:
        """Frees what belongs to those who have left."""
        for session in self.queue.sessions | self.visitors.keys():
            try:
                visitor = self._known(session)
                if not visitor.listening and time.monotonic() - visitor.since >= self.limits.listen_seconds:
                    await self._forget(session)
            except Exception:  # the others' turn comes, and this one's again
                _LOG.exception("What a visitor left could not be freed.")
        self.queue.forget_ended_iterators()

    def _unread(self) -> dict[str, Presence]:
        """Sessions with events whose answers nobody has begun to read."""
        known = {name: self._known(name) for name in self.queue.unread}
        return {name: visitor for name, visitor in known.items() if not visitor.listening}

    def _known(self, session: str) -> Presence:
        return self.visitors.setdefault(session, Presence(time.monotonic()))

    async def _forget(self, session: str) -> None:
        await self.queue.silence(session)
        if not (self.queue.events_of(session) or self.has_reader(session)):  # it has not come back meanwhile
            self.visitors.pop(session, None)
