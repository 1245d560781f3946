"""Who waits for Gradio's answers: how many may, and for how long what Gradio keeps for them stays."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from specdemo.ui.checks import NotLetIn
from specdemo.ui.fair import of_the_most
from specdemo.ui.gradio_tables import drop_state, replace_tables, silence
from specdemo.ui.limits import Limits
from specdemo.ui.visitor import address_of

if TYPE_CHECKING:
    from gradio import Blocks

LOG = logging.getLogger(__name__)
SWEEP_PERIOD = 1.0  # s between two looks at who has left
# s that a request keeps its place for, unless its address has more places than the one that asks for it.
# A client listens at once.
GRACE = 2.0
REPLACE_PERIOD = 0.1  # s between two that lose their places so; one by one, a flood would cost too much


def address_in(scope: Scope, limits: Limits) -> str:
    """The address that a request came from."""
    client = scope.get("client")
    return address_of(client[0] if client else "", Headers(scope=scope), limits.behind_proxy)


@dataclass
class Presence:
    """A session: an open page, or a caller of the API. heard: when it last asked or stopped listening.
    asked: when the oldest request came whose answer it has not begun to read. address: where that came from.
    is_page: it has used what only the page uses, last from `page_address`. stayed: it has had a heartbeat."""

    heard: float
    asked: float
    address: str = ""
    listening: int = 0
    beating: int = 0
    is_page: bool = False
    page_address: str = ""
    stayed: bool = False

    @property
    def is_here(self) -> bool:
        return self.listening > 0 or self.beating > 0


class Visits:
    """Who waits for answers, and what Gradio keeps for them until they have gone. on_listen: is called when
    somebody begins to read."""

    def __init__(self, demo: "Blocks", limits: Limits, on_listen: Callable[[], None]) -> None:
        self.demo, self.limits, self.on_listen = demo, limits, on_listen
        self.visitors: dict[str, Presence] = {}
        self.joining: list[str] = []  # addresses of requests that are on their way into Gradio's queue
        self.sweep_task: asyncio.Task[None] | None = None
        self.replaced = -math.inf  # when one has lost its place
        replace_tables(demo, self._come)

    @property
    def stopped(self) -> bool:
        """Whether a task has ended without which the server does not work."""
        return self.demo._queue.stopped or (self.sweep_task is not None and self.sweep_task.done())

    def hear(self, session: str) -> Presence:
        """A session that asks for something."""
        now = time.monotonic()
        visitor = self._known(session, now)
        visitor.heard = now
        return visitor

    async def admit_page(self, session: str, address: str) -> None:
        """Room for one more page of this address, which gets the place of another one if need be."""
        visitor = self.visitors.get(session)
        if visitor is None or not visitor.is_page:
            pages = {name: one for name, one in self.visitors.items() if one.is_page}
            if len(pages) >= self.limits.sessions:
                stayed = visitor is not None and visitor.stayed
                await self._give_up(self._page_to_go(pages, address, stayed))
        visitor = self.hear(session)
        visitor.is_page, visitor.page_address = True, address

    def _page_to_go(self, pages: dict[str, Presence], address: str, stayed: bool) -> str:
        """The page that makes room for one of this address. stayed: that one has had a heartbeat.

        One that has left; but one that has had a heartbeat makes no room for one that has had none. If there
        is none, one of an address that has more pages. Of all these one of the address with the most.
        """
        held = Counter(one.page_address for one in pages.values())
        gone = [name for name, one in pages.items() if not one.is_here and (stayed or not one.stayed)]
        crowd = [name for name, one in pages.items() if held[one.page_address] > held[address] + 1]
        candidates = gone or crowd
        if not candidates:
            raise NotLetIn(429, "Too many pages are open here: busy. Reload this one in about 60 s.", 60)

        def use(name: str) -> tuple[bool, bool, bool, float]:
            one = pages[name]
            return one.is_here, one.listening > 0, one.stayed, one.heard

        return of_the_most({name: pages[name].page_address for name in sorted(candidates, key=use)}, held)

    async def _give_up(self, session: str) -> None:
        """A page loses its place. What it reads now, it reads to its end; then its state is freed."""
        visitor = self.visitors[session]
        if not visitor.is_here:
            await self._forget(session)
            return
        visitor.is_page = False
        if not visitor.listening:
            await silence(self.demo, session)
        if not (visitor.listening or self._waits(session)):
            drop_state(self.demo, session)

    @asynccontextmanager
    async def admitted(self, session: str | None, address: str) -> AsyncIterator[None]:
        """Room for one more event in Gradio's queue, while its request is on the way there."""
        waiting = self.demo._queue.pending_event_ids_session[session] if session is not None else ()
        if len(waiting) >= self.limits.events_of_session:
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
        pending, unread = self.demo._queue.pending_event_ids_session, self._unread()
        taken = Counter()
        for name, visitor in unread.items():
            taken[visitor.address] += len(pending[name])
        own, most = taken[address] + self.joining.count(address), max(taken.values(), default=0)
        if own > self.limits.uncollected_of_address:
            crowded, at_once = {address}, False
        elif taken.total() + len(self.joining) > self.limits.uncollected:
            crowded, at_once = {name for name, count in taken.items() if count == most}, own < most
        else:
            return
        ages = {name: visitor.asked for name, visitor in unread.items() if visitor.address in crowded}
        oldest, now = min(ages, key=lambda name: ages[name], default=None), time.monotonic()
        waited = oldest and now - ages[oldest] > GRACE and now - self.replaced > REPLACE_PERIOD
        if oldest is None or not (at_once or waited):
            seconds = math.ceil(GRACE)
            sentence = f"Too many requests wait here: busy, try again in about {seconds} s."
            raise NotLetIn(429, sentence, seconds)
        if not at_once:
            self.replaced = now
        await silence(self.demo, oldest)

    def _come(self, event: Any) -> None:
        """An event has come into Gradio's queue."""
        visitor = self.hear(event.session_hash)
        if len(self.demo._queue.pending_event_ids_session[event.session_hash]) == 1:
            visitor.asked, visitor.address = visitor.heard, address_in(event.request.scope, self.limits)

    def session_of(self, event: str) -> str | None:
        """The session that an event belongs to, while its answer can be read."""
        queue = self.demo._queue
        if event in queue.pending_messages_per_session:
            return event
        if known := queue.event_ids_to_events.get(event):
            return known.session_hash
        owners = (name for name, events in queue.pending_event_ids_session.items() if event in events)
        return next(owners, None)

    def can_listen(self, session: str) -> bool:
        return session in self.demo._queue.pending_messages_per_session

    def listen(self, session: str) -> None:
        """Somebody begins to read a session's messages."""
        self.hear(session).listening += 1
        self.on_listen()

    def is_read(self, session: str) -> bool:
        """Whether somebody has begun to read what this session has asked for. Tools' calls, which do not go
        through the queue, have their readers from the beginning. Any thread may call it."""
        visitor = self.visitors.get(session)
        return bool(visitor and visitor.listening) or not self.demo._queue.pending_event_ids_session.get(
            session
        )

    async def leave(self, session: str, to_the_end: bool) -> None:
        """Somebody has read a session's messages, or has gone before their end. What nobody reads then is
        freed: of a page its events, of a caller of the API all that is kept."""
        visitor = self.hear(session)
        visitor.listening -= 1
        if visitor.listening:
            return
        if to_the_end and self._waits(session):  # for what came at the end
            visitor.asked = visitor.heard
            return
        await silence(self.demo, session)
        if not (visitor.is_page or self._waits(session)):
            drop_state(self.demo, session)
            if not visitor.is_here:
                self.visitors.pop(session, None)

    @contextmanager
    def beating(self, session: str) -> Iterator[None]:
        """While a page or a client is open."""
        visitor = self.hear(session)
        visitor.beating += 1
        visitor.stayed = True
        if session in (states := self.demo.app.state_holder.session_data):
            states[session].is_closed = False  # it has come back
        try:
            yield
        finally:
            visitor.beating -= 1
            visitor.heard = time.monotonic()

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
        app, queue = self.demo.app, self.demo._queue
        tables = (
            queue.pending_messages_per_session,
            queue.pending_event_ids_session,
            app.state_holder.session_data,
            self.visitors,
        )
        for session in {name for table in tables for name in list(table)}:
            try:
                await self._look_after(session, time.monotonic())
            except Exception:  # the others' turn comes, and this one's again
                LOG.exception("What a visitor left could not be freed.")
        app.iterators_to_reset &= queue.event_ids_to_events.keys()

    async def _look_after(self, session: str, now: float) -> None:
        visitor, longest = self._known(session, now), self.limits.listen_seconds
        if visitor.listening:
            return
        if self._waits(session) and now - visitor.asked >= longest:
            await silence(self.demo, session)
        silent = now - visitor.heard
        stays = visitor.is_page and visitor.stayed and silent < self.limits.page_seconds
        if silent >= longest and not (stays or visitor.beating):
            await self._forget(session)

    def _unread(self) -> dict[str, Presence]:
        """Sessions with events whose answers nobody has begun to read."""
        now, pending = time.monotonic(), self.demo._queue.pending_event_ids_session
        known = {name: self._known(name, now) for name, events in pending.items() if events}
        return {name: visitor for name, visitor in known.items() if not visitor.listening}

    def _waits(self, session: str) -> bool:
        """Whether there are events whose answers it has not read to their end."""
        return bool(self.demo._queue.pending_event_ids_session[session])

    def _known(self, session: str, now: float) -> Presence:
        return self.visitors.setdefault(session, Presence(now, now))

    async def _forget(self, session: str) -> None:
        await silence(self.demo, session)
        visitor = self.visitors.get(session)
        if self._waits(session) or (visitor and visitor.is_here):  # it has come back meanwhile
            return
        drop_state(self.demo, session)
        self.visitors.pop(session, None)
