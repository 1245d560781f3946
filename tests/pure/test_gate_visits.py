"""Who waits for answers, over a stand-in for Gradio's queue and with a clock that the tests set."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo.ui.front import visits
from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.front.visits import Visits
from specdemo.ui.runs.limits import HOSTED
from tests.played import played

LIMITS = replace(HOSTED, uncollected=12, uncollected_of_address=8, events_of_session=3, listen_seconds=20)
FLOOD, MODEST = "8.8.8.8", "9.9.9.9"


class Queue:
    """Gradio's queue, as far as who waits is concerned."""

    def __init__(self):
        self.event_ids_to_events = {}
        self.stopped = False
        self.sleep_when_free = 0.001
        self._asyncio_tasks = set()
        self.cleaned = []

    async def clean_events(self, session_hash):
        self.cleaned.append(session_hash)

    def push(self, event, session, address):
        """In the order in which Gradio fills its tables."""
        self.pending_messages_per_session.setdefault(session, asyncio.Queue())
        self.pending_event_ids_session.setdefault(session, set()).add(event)
        request = SimpleNamespace(scope={"type": "http", "client": (address, 1), "headers": []})
        self.event_ids_to_events[event] = SimpleNamespace(session_hash=session, request=request)


class Site:
    """Visits over such a queue, and what visitors do there."""

    def __init__(self, monkeypatch):
        self.now, self.events = 1_000.0, 0
        self.queue = Queue()
        demo = SimpleNamespace(_queue=self.queue, app=SimpleNamespace(iterators_to_reset=set()))
        monkeypatch.setattr(visits, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.visits = Visits(demo, LIMITS, lambda: None)

    async def ask(self, address=FLOOD, session=None) -> str:
        """One request for an event; its session, which is the event's own unless it is given."""
        async with self.visits.admitted(session, address):
            self.events += 1
            event = f"event{self.events}"
            self.queue.push(event, session or event, address)
        return session or event

    async def ask_often(self, count, address=FLOOD, session=None) -> Counter:
        """Whether each of so many requests that nobody reads was let in."""
        let_in = Counter()
        for _ in range(count):
            try:
                await self.ask(address, session)
                let_in[True] += 1
            except NotLetIn as refused:
                assert refused.status == 429 and refused.retry_after
                let_in[False] += 1
        return let_in

    @property
    def unread(self) -> Counter:
        """Events that wait to be read, by address."""
        count = Counter()
        for session, events in self.queue.pending_event_ids_session.items():
            count[self.visits.visitors[session].address] += len(events)
        return count


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


@played
async def test_an_address_and_a_session_have_their_share_of_the_places_and_no_more(site):
    assert await site.ask_often(30) == {True: 8, False: 22}
    for let_in in (True, True, True, False):
        assert await site.ask_often(1, MODEST, "one") == {let_in: 1}
    assert await site.ask_often(1, MODEST) == {True: 1}


@played
async def test_the_oldest_of_the_address_with_most_loses_its_place(site):
    first = await site.ask(MODEST)
    site.now += 1
    await site.ask_often(8, FLOOD)
    await site.ask_often(3, "8.8.4.4")
    site.now += 1
    await site.ask("1.1.1.1")
    assert site.visits.queue.has_messages(first), "the oldest of all, but its address has asked only once"
    assert site.unread == {MODEST: 1, FLOOD: 7, "8.8.4.4": 3, "1.1.1.1": 1}


@played
async def test_what_is_not_read_in_time_is_dropped_though_its_session_asks_on(site):
    await site.ask(session="greedy")
    site.now += LIMITS.listen_seconds / 2
    await site.ask(session="greedy")
    await site.visits.look_round()
    assert site.unread == {FLOOD: 2}
    site.now += LIMITS.listen_seconds / 2
    await site.visits.look_round()
    assert not site.visits.queue.has_messages("greedy") and site.queue.cleaned == ["greedy"]
    site.now += LIMITS.listen_seconds
    await site.visits.look_round()
    assert not site.visits.visitors, "nothing is kept of one who has been silent"
