"""Who waits for answers, over a stand-in for Gradio's queue and with a clock that the tests set."""

import asyncio
from collections import Counter, OrderedDict
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo.ui import gradio_queue
from specdemo.ui.checks import NotLetIn
from specdemo.ui.gradio_queue import GRACE, Visits
from specdemo.ui.limits import HOSTED

LIMITS = replace(HOSTED, uncollected=12, uncollected_of_address=8, events_of_session=3, listen_seconds=20)
FLOOD, MODEST = "8.8.8.8", "9.9.9.9"


class Queue:
    """Gradio's queue, as far as who waits is concerned."""

    def __init__(self):
        self.event_ids_to_events = {}
        self.stopped = False
        self._asyncio_tasks = set()
        self.cleaned = []
        self.meanwhile = lambda: None

    async def clean_events(self, session_hash):
        self.cleaned.append(session_hash)
        self.meanwhile()

    def push(self, event, session, address):
        """In the order in which Gradio fills its tables."""
        self.pending_messages_per_session.setdefault(session, asyncio.Queue())
        self.pending_event_ids_session.setdefault(session, set()).add(event)
        scope = {"type": "http", "client": (address, 1), "headers": []}
        self.event_ids_to_events[event] = SimpleNamespace(
            session_hash=session, request=SimpleNamespace(scope=scope)
        )


class State:
    """What Gradio keeps for a page. forgotten: gets its value when Gradio's component is told to."""

    def __init__(self, value, forgotten):
        component = SimpleNamespace(delete_callback=forgotten.append)
        self.blocks_config = SimpleNamespace(blocks={5: component})
        self.state_data = {5: value}
        self.is_closed = False


class Site:
    """Visits over such a queue, and what visitors do there."""

    def __init__(self, monkeypatch, limits=LIMITS):
        self.now, self.events = 1_000.0, 0
        self.queue = Queue()
        holder = SimpleNamespace(session_data=OrderedDict(), time_last_used={})
        app = SimpleNamespace(state_holder=holder, iterators_to_reset=set())
        demo = SimpleNamespace(_queue=self.queue, app=app, pending_streams={}, pending_diff_streams={})
        monkeypatch.setattr(gradio_queue, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.visits = Visits(demo, limits, lambda: None)
        self.states = holder.session_data

    async def ask(self, address=FLOOD, session=None) -> str:
        """One request for an event; its session, which is the event's own unless it is given."""
        async with self.visits.admitted(session, address):
            self.events += 1
            event = f"event{self.events}"
            self.queue.push(event, session or event, address)
        return session or event

    async def ask_often(self, count, address=FLOOD) -> Counter:
        """Whether each of so many requests that nobody reads was let in."""
        let_in = Counter()
        for _ in range(count):
            try:
                await self.ask(address)
                let_in[True] += 1
            except NotLetIn as refused:
                assert refused.status == 429 and refused.retry_after
                let_in[False] += 1
        return let_in

    async def open_page(self, session, stays=True, forgotten=None, address=FLOOD):
        """A page has been here, and has left. stays: it had a heartbeat."""
        self.now += 1
        if stays:
            with self.visits.beating(session):
                pass
        await self.visits.admit_page(session, address)
        self.states[session] = State(session, [] if forgotten is None else forgotten)

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


def test_one_address_has_its_share_of_the_places_and_no_more(site):
    assert asyncio.run(site.ask_often(30)) == {True: 8, False: 22}
    assert asyncio.run(site.ask_often(3, MODEST)) == {True: 3}


def test_a_modest_visitor_gets_in_at_once_though_floods_have_taken_all_places(site):
    async def play():
        await site.ask_often(8, FLOOD)
        await site.ask_often(8, "8.8.4.4")
        assert sum(site.unread.values()) == 12
        for number in range(20):
            session = await site.ask(MODEST)
            assert site.visits.can_listen(session), number
            await site.ask_often(8, FLOOD)
            await read(session)
            assert sum(site.unread.values()) >= 11, "the floods have all the others"

    async def read(session):
        site.visits.listen(session)
        site.queue.pending_event_ids_session[session].clear()
        await site.visits.leave(session, True)

    asyncio.run(play())


def test_the_oldest_of_the_address_with_most_loses_its_place(site):
    async def play():
        first = await site.ask(MODEST)
        site.now += 1
        await site.ask_often(8, FLOOD)
        await site.ask_often(3, "8.8.4.4")
        site.now += 1
        await site.ask("1.1.1.1")
        assert site.visits.can_listen(first), "the oldest of all, but its address has asked only once"
        assert site.unread == {MODEST: 1, FLOOD: 7, "8.8.4.4": 3, "1.1.1.1": 1}

    asyncio.run(play())


def test_among_equals_a_place_is_free_after_a_while_and_not_before(site):
    async def play():
        for number in range(12):
            assert await site.ask_often(1, f"10.0.0.{number}") == {True: 1}
        assert await site.ask_often(1, "10.0.0.99") == {False: 1}
        site.now += GRACE + 0.1
        assert await site.ask_often(2, "10.0.0.99") == {True: 1, False: 1}

    asyncio.run(play())


def test_asking_again_and_again_keeps_no_place(site):
    """Three sessions that ask on, and never read what they asked for."""

    async def ask_on() -> Counter:
        let_in = Counter()
        for number in range(3):
            try:
                await site.ask(session=f"greedy{number}")
                let_in[True] += 1
            except NotLetIn:
                let_in[False] += 1
        return let_in

    async def play():
        assert sum([await ask_on() for _ in range(4)], Counter()) == {True: 8, False: 4}
        site.now += GRACE / 2
        await ask_on()
        site.now += GRACE / 2 + 0.1
        assert await site.ask_often(1) == {True: 1}, "the oldest had their time, though they asked on"

    asyncio.run(play())


def test_what_is_not_read_in_time_is_dropped_though_its_session_asks_on(site):
    async def play():
        for _ in range(3):
            await site.ask(session="greedy")
        for _ in range(14):
            site.now += 1.5
            with pytest.raises(NotLetIn):
                await site.ask(session="greedy")
            await site.visits.look_round()
        assert not site.visits.can_listen("greedy") and site.queue.cleaned == ["greedy"]

    asyncio.run(play())


def test_a_session_has_so_many_events_at_most(site):
    async def play():
        for _ in range(3):
            await site.ask(session="one")
        with pytest.raises(NotLetIn, match="Too many requests wait here"):
            await site.ask(session="one")
        assert not site.visits.joining

    asyncio.run(play())


PAGES = replace(LIMITS, sessions=3)


def test_a_new_page_takes_the_place_of_the_one_that_left_first(monkeypatch):
    async def play():
        forgotten = []
        for name in ("a", "b", "c"):
            await site.open_page(name, forgotten=forgotten)
        await site.open_page("b")
        await site.open_page("d")
        assert forgotten == ["a"] and site.states.keys() == {"b", "c", "d"}

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_a_page_that_had_a_heartbeat_makes_no_room_for_one_that_has_none(monkeypatch):
    async def play():
        for name in ("a", "b"):
            await site.open_page(name)
        await site.open_page("brief", stays=False)
        await site.open_page("brief too", stays=False)
        assert site.states.keys() == {"a", "b", "brief too"}
        await site.open_page("c")
        assert site.states.keys() == {"a", "b", "c"}, "those without one go first"
        with pytest.raises(NotLetIn, match="Too many pages"):
            await site.visits.admit_page("brief", FLOOD)
        assert site.visits.visitors.keys() == {"a", "b", "c"}

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_pages_of_one_address_that_stay_keep_nobody_else_out(monkeypatch):
    async def play():
        forgotten, here = [], ExitStack()
        for name in ("a", "b", "c"):
            here.enter_context(site.visits.beating(name))
            await site.open_page(name, forgotten=forgotten)
        await site.open_page("modest", stays=False, address=MODEST)
        assert forgotten == ["a"] and site.states.keys() == {"b", "c", "modest"}
        here.enter_context(site.visits.beating("modest"))
        for session, address in (("a", FLOOD), ("d", FLOOD), ("modest too", MODEST)):
            with pytest.raises(NotLetIn, match="Too many pages .* Reload this one in about 60 s"):
                await site.visits.admit_page(session, address)
        await site.visits.look_round()
        assert site.states.keys() == {"b", "c", "modest"}
        here.close()
        site.now += LIMITS.page_seconds + 1
        await site.visits.look_round()
        assert not site.states and not site.visits.visitors

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_the_page_of_the_address_with_most_goes_first_also_among_those_that_have_left(monkeypatch):
    async def play():
        await site.open_page("modest", address=MODEST)
        for name in ("a", "b", "c"):
            await site.open_page(name)
        assert site.states.keys() == {"modest", "b", "c"}

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_a_page_that_gives_way_reads_to_the_end_what_it_has_begun_to_read(monkeypatch):
    async def play():
        forgotten, here = [], ExitStack()
        for name in ("a", "b", "c"):
            here.enter_context(site.visits.beating(name))
            await site.open_page(name, forgotten=forgotten)
            await site.ask(session=name)
            site.visits.listen(name)
        here.enter_context(site.visits.beating("modest"))
        await site.open_page("modest", address=MODEST)
        assert site.visits.can_listen("a") and not forgotten
        with pytest.raises(NotLetIn, match="Too many pages"):
            await site.visits.admit_page("a", FLOOD)
        site.queue.pending_event_ids_session["a"].clear()
        await site.visits.leave("a", to_the_end=True)
        assert forgotten == ["a"] and not site.visits.can_listen("a")
        here.close()

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_what_a_page_kept_is_told_to_be_forgotten_when_it_has_gone(site):
    """By itself Gradio does so an hour later, and for a state that no event returns never."""

    async def play():
        forgotten = []
        await site.open_page("page", forgotten=forgotten)
        site.now += LIMITS.page_seconds - 1
        await site.visits.look_round()
        assert forgotten == [] and site.states
        site.now += 2
        await site.visits.look_round()
        assert forgotten == ["page"] and not site.states and not site.visits.visitors

    asyncio.run(play())


def test_a_page_that_comes_back_while_it_is_to_make_room_stays(monkeypatch):
    async def play():
        for name in ("a", "b", "c"):
            await site.open_page(name)
        await site.ask(session="a")
        site.visits.visitors["a"].heard = 0
        site.queue.meanwhile = lambda: site.visits.listen("a")
        await site.open_page("d")
        assert site.visits.visitors["a"].listening == 1 and "a" in site.states
        await site.visits.leave("a", to_the_end=False)
        assert site.visits.visitors["a"].listening == 0

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_who_reads_stays_counted_though_it_is_refused_as_a_page(monkeypatch):
    async def play():
        for name in ("a", "b", "c"):
            await site.open_page(name)
        await site.ask(session="caller")
        site.visits.listen("caller")
        with pytest.raises(NotLetIn):
            await site.visits.admit_page("caller", FLOOD)
        await site.visits.leave("caller", to_the_end=False)
        assert site.visits.visitors.keys() == {"a", "b", "c"}

    site = Site(monkeypatch, PAGES)
    asyncio.run(play())


def test_what_cannot_be_freed_is_told_and_keeps_nothing_else(site, monkeypatch, caplog):
    def refuse(value):
        raise OSError("no space left")

    async def play():
        async with site.visits.sweeping():
            await site.open_page("bad")
            site.states["bad"].blocks_config.blocks[5].delete_callback = refuse
            await site.open_page("good")
            site.now += LIMITS.page_seconds + 1
            await asyncio.wait_for(all_gone(), 30)
            assert not site.visits.stopped

    async def all_gone():
        while site.visits.visitors:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(gradio_queue, "SWEEP_PERIOD", 0.01)
    asyncio.run(play())
    assert [record.exc_text.splitlines()[-1] for record in caplog.records] == ["OSError: no space left"]


@pytest.mark.parametrize("ended", ["queue", "sweep"])
def test_the_server_is_stopped_when_a_task_of_it_has_ended(site, monkeypatch, ended):
    async def end():
        raise OSError("gone")

    async def play():
        async with site.visits.sweeping():
            await asyncio.sleep(0)
            assert not site.visits.stopped
            if ended == "queue":
                site.queue.stopped = True
            else:
                monkeypatch.setattr(site.visits, "look_round", end)
                await asyncio.wait([site.visits.sweep_task], timeout=30)
            assert site.visits.stopped

    assert not site.visits.stopped, "before it has begun"
    monkeypatch.setattr(gradio_queue, "SWEEP_PERIOD", 0.01)
    asyncio.run(play())


@pytest.mark.parametrize("is_page", [True, False])
def test_what_is_asked_for_while_the_rest_is_freed_stays(site, is_page):
    async def play():
        if is_page:
            await site.open_page("one")
        await site.ask(MODEST, session="one")
        if is_page:
            site.now += LIMITS.page_seconds + 1
        else:
            site.visits.listen("one")
        site.queue.meanwhile = lambda: site.queue.push("later", "one", MODEST)
        await (site.visits.look_round() if is_page else site.visits.leave("one", to_the_end=False))
        assert site.unread == {MODEST: 1} and site.states.keys() == ({"one"} if is_page else set())
        site.queue.meanwhile = lambda: None
        site.now += LIMITS.page_seconds + 1
        await site.visits.look_round()
        assert not site.unread and not site.states and not site.visits.visitors

    asyncio.run(play())
