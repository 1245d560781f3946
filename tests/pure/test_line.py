"""The line of visitors: whose turn is next, who may wait, and what ends a turn. Without models."""

import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from specdemo.events import Params
from specdemo.ui.runs.limits import HOSTED, LOCAL, Limits, Visitor, request_address
from specdemo.ui.runs.queue import Refused, RunQueue, Ticket
from specdemo.words.message import message
from tests.sentences import refused

PATIENCE = 30
TIGHT = replace(LOCAL, waiting=6, waiting_of_address=4)
STOPPED = message("stopped_early")


class Engine:
    """A queue whose turns end when the test lets them. served: who has had a turn."""

    def __init__(self, limits: Limits = LOCAL):
        self.queue, self.served = RunQueue(limits), []
        self.is_read = lambda session: True
        self.gate = threading.Semaphore(0)

    def ask(self, name: str, session: str = "", **how) -> Ticket:
        """name: the address and, after a slash, the session."""
        address, _, session = name.partition("/")
        visitor = Visitor(session, address, is_read=lambda: self.is_read(session))
        ticket = self.queue.join(visitor, how.pop("asked", "run"), **how)
        ticket.enter(partial(self._work, name))
        return ticket

    def hold(self) -> Ticket:
        """Somebody else's turn, which has begun."""
        ticket = self.ask("first/page")
        wait_until(lambda: self.served == ["first/page"])
        return ticket

    def serve(self, *tickets: Ticket) -> list[str]:
        """Lets all turns end; who had one."""
        self.gate.release(1_000)
        for ticket in tickets:
            ticket.done.result(PATIENCE)
        return self.served[1:]

    def _work(self, name: str) -> None:
        self.served.append(name)
        assert self.gate.acquire(timeout=PATIENCE)


def wait_until(holds) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def sent_away(*tickets: Ticket, key: str) -> None:
    for ticket in tickets:
        with refused(key, kind=Refused):
            ticket.done.result(PATIENCE)


# Whose turn is next


def test_addresses_take_turns_and_each_place_that_was_told_is_the_one_that_comes():
    engine = Engine()
    first = engine.hold()
    names = ["first/other", "a/1", "a/2", "a/3", "b/1", "b/2", "c/1"]
    tickets = {name: engine.ask(name) for name in names}
    told = sorted(names, key=lambda name: tickets[name].ahead)
    assert told == ["a/1", "b/1", "c/1", "first/other", "a/2", "b/2", "a/3"], "whose turn it is comes last"
    assert [tickets[name].ahead for name in told] == [1, 2, 3, 4, 5, 6, 7]
    tickets["a/1"].cancel()
    assert tickets["c/1"].done.cancel(), "its reader has gone"
    told = ["a/2", "b/1", "c/1", "first/other", "a/3", "b/2"]
    assert [tickets[name].ahead for name in told] == [1, 2, 3, 4, 5, 6]
    told.remove("c/1")
    assert engine.serve(first, *(tickets[name] for name in told)) == told


def test_nobody_is_overtaken_for_ever_by_new_addresses():
    engine = Engine()
    engine.hold()
    late = [engine.ask(f"crowd/{number}") for number in range(3)][-1]
    for number in range(9):  # somebody new comes in each turn
        engine.ask(f"new {number}/page")
        engine.gate.release()
        wait_until(lambda turns=number + 2: len(engine.served) == turns)
    engine.serve(late)
    assert engine.served.index("crowd/2") < 9


# Who may wait


def test_a_session_waits_with_one_request_beside_the_one_that_runs_unless_it_replaces_it():
    engine = Engine()
    first, waits = engine.hold(), engine.ask("page/1")
    engine.ask("behind/1")
    for other in ({}, {"asked": "measurement", "replaces": True}):
        with refused("run_waits", kind=Refused):
            engine.ask("page/1", **other)
    engine.ask("measures/1", asked="measurement")
    with refused("measurement_waits", kind=Refused):
        engine.ask("measures/1")
    engine.ask("elsewhere/1")  # the same session at another address is somebody else
    instead = engine.ask("page/1", replaces=True)
    sent_away(waits, key="place_taken")
    assert instead.ahead == 1 and not first.is_over, "it is in the same place"
    again = engine.ask("first/page", replaces=True)
    assert first.is_over and again.ahead == 5
    served = engine.serve(first, instead, again)
    assert served == ["page/1", "behind/1", "measures/1", "elsewhere/1", "first/page"]


def test_the_line_of_an_address_is_bounded_and_says_when_to_ask_again():
    engine = Engine(TIGHT)
    engine.queue.latest.extend([2.2, 4.4])
    first = engine.hold()
    crowd = [engine.ask(f"school/{number}") for number in range(4)]
    more = engine.ask("school/5")
    with refused("gave_up", kind=Refused, seconds=4):
        more.done.result(0)
    assert engine.queue.waiting == 4
    engine.serve(first, *crowd)
    wait_until(lambda: engine.queue.running is None)
    assert engine.queue.lines == {}, "nothing is kept of those who have been served"


def test_in_a_full_line_the_last_of_the_longest_line_gives_way_to_another_address():
    engine = Engine(TIGHT)
    first = engine.hold()
    crowd = [engine.ask(f"school/{number}") for number in range(4)]
    others = [engine.ask(f"other {number}/page") for number in range(2)]
    late = engine.ask("late/page")
    sent_away(crowd[-1], key="gave_up")
    more = [engine.ask(f"{name}/page") for name in ("later", "latest")]
    sent_away(engine.ask("too late/page"), key="gave_up")  # each address has one by now
    served = engine.serve(first, crowd[0], *others, late, *more)
    assert len(served) == 6 and "school/1" not in served


def test_what_nobody_reads_holds_nobody_up_and_makes_the_line_no_longer_when_it_is_read():
    engine, read = Engine(TIGHT), {"page"}
    engine.is_read = lambda session: session in read
    unread = [engine.ask(f"school/{number}") for number in range(9)]
    modest = engine.ask("school/page")
    assert engine.serve(modest) == [] and engine.served == ["school/page"]
    engine = Engine(TIGHT)
    engine.is_read = lambda session: session in read
    first = engine.hold()
    unread = [engine.ask(f"school/{number}") for number in range(9)]
    read |= {str(number) for number in range(9)}
    engine.queue.look()
    assert engine.queue.waiting == TIGHT.waiting_of_address
    sent_away(*unread[4:], key="gave_up")
    engine.serve(first, *unread[:4])


def test_what_is_stopped_is_told_why_while_it_waits_and_ends_by_itself_when_it_goes_on():
    engine = Engine()
    first, second = engine.hold(), engine.ask("second/page")
    second.stop(STOPPED)
    sent_away(second, key="stopped_early")
    assert engine.queue.waiting == 0
    first.stop(STOPPED)
    assert first.is_over and not first.done.done()
    assert engine.serve(first) == [] and first.done.result(PATIENCE) is None
    first.stop(STOPPED)


def test_what_is_loading_takes_no_place_in_the_line_and_has_a_bound_of_its_own():
    engine = Engine(replace(TIGHT, loading=4))
    loading = [engine.queue.join(Visitor(f"{number}", "school"), "run") for number in range(5)]
    for ticket in loading:
        ticket.load()
    assert engine.queue.waiting == 4 and engine.queue.running is None
    sent_away(loading[4], key="gave_up")
    engine.serve(engine.ask("school/page"), engine.ask("other/page"))
    other = engine.queue.join(Visitor("1", "other"), "run")
    other.load()
    sent_away(loading[3], key="gave_up")
    for ticket in (*loading[:3], other):
        ticket.check()
        ticket.enter(lambda: None)
        assert ticket.done.result(PATIENCE) is None
    assert engine.queue.waiting == 0


# What ends a turn


def test_a_turn_is_over_when_its_time_is_up_or_nobody_listens_and_never_begins_then():
    queue = RunQueue(replace(LOCAL, run_seconds=0.05))
    patience, listens, served = threading.Event(), {"left", "never"}, []

    def work(ticket: Ticket) -> None:
        served.append(ticket.visitor.session)
        while not ticket.is_over:
            patience.wait(0.001)

    def ask(session: str) -> Ticket:
        ticket = queue.join(Visitor(session, session, lambda: session in listens), "run")
        ticket.enter(partial(work, ticket))
        return ticket

    late = queue.join(Visitor("late", "a"), "run")
    late.enter(partial(work, late))
    late.done.result(PATIENCE)
    assert late.is_late and (late.ending.key, late.ending.values["seconds"]) == ("run_late", "0.05")
    assert queue.join(Visitor("other", "b"), "measurement").ending.key == "measurement_late"
    queue.limits = LOCAL
    left = ask("left")
    wait_until(lambda: left.began)
    never = ask("never")
    assert not left.is_over
    listens.clear()
    left.done.result(PATIENCE)
    assert not left.is_late
    sent_away(never, key="given_up")
    assert served == ["late", "left"]


def test_what_would_end_the_thread_ends_one_run_with_a_sentence():
    queue = RunQueue()

    def work() -> None:
        raise SystemExit

    first, second = queue.join(Visitor("1", "a"), "run"), queue.join(Visitor("2", "a"), "run")
    first.enter(work)
    second.enter(lambda: None)
    with pytest.raises(RuntimeError, match="SystemExit"):
        first.done.result(PATIENCE)
    assert second.done.result(PATIENCE) is None


def test_closing_answers_those_who_wait_and_takes_nobody_more():
    engine = Engine()
    first, second = engine.hold(), engine.ask("b/page")
    threading.Timer(0.05, engine.gate.release).start()
    engine.queue.close()
    assert first.done.done() and first.is_over
    sent_away(second, key="closing")
    with refused("closing", kind=Refused):
        engine.ask("c/page")


# Where a request comes from, and what it may ask for


NETWORK = "2a00:1450:4001:81b::/64"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("", "10.0.0.7"),
        ("::ffff:8.8.4.4", "8.8.4.4"),  # of a socket that serves both kinds
        ("1.1.1.1, 8.8.4.4", "8.8.4.4"),  # the visitor wrote the first
        ("1.1.1.1\n8.8.4.4", "8.8.4.4"),  # a proxy may write a line of its own
        ("8.8.4.4, 10.1.2.3, 192.168.0.1", "8.8.4.4"),  # proxies within the host
        ("1.1.1.1, unknown,8.8.4.4 ,, <script>", "8.8.4.4"),
        ("127.0.0.1, ::1", "10.0.0.7"),
        ("8.8.8.8, 8.8.4.4:80, 10.0.0.1:5", "8.8.4.4"),
        ("2a00:1450:4001:81b::200e", NETWORK),
        ('"[2a00:1450:4001:81b::200e]:443"', NETWORK),
        ("8.8.4.4:port", "10.0.0.7"),
    ],
)
def test_the_address_is_the_one_that_a_visitor_cannot_forge(forwarded, address):
    headers = [(b"x-forwarded-for", line.encode()) for line in forwarded.split("\n")]
    scope = {"type": "http", "client": ("10.0.0.7", 1), "headers": headers}
    assert request_address(scope, replace(LOCAL, behind_proxy=True)) == address
    assert request_address(scope, LOCAL) == "10.0.0.7", "anyone may have written it there"
    assert request_address({**scope, "client": ("2a00:1450:4001:81b::9", 1)}, LOCAL) == NETWORK


@pytest.mark.parametrize(
    ("prompt", "params", "field", "key"),
    [
        ("a", {"max_new_tokens": 1_001}, "max_new_tokens", "whole"),
        ("a", {"alternatives": 11}, "alternatives", "whole"),
        ("a" * 20_001, {}, "prompt", "characters"),
        ([5] * 20_001, {}, "prompt", "token_ids"),
        ("a", {"system": "a" * 20_001}, "system", "characters"),
    ],
)
def test_a_hosted_page_allows_less_and_says_so_as_params_does(prompt, params, field, key):
    with refused(key, field=field):
        HOSTED.check(prompt, Params(**params))
    LOCAL.check(prompt, Params(**params))
    HOSTED.check("a" * 20_000, Params(max_new_tokens=1_000, alternatives=10))
