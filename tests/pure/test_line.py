"""The line of visitors: whose turn is next, who may wait, and what ends a turn. Without models."""

import ctypes
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from starlette.datastructures import Headers

from specdemo.events import Params
from specdemo.ui.runs.limits import HOSTED, LOCAL, Limits, Visitor, request_address, visitor_address
from specdemo.ui.runs.queue import Refused, RunQueue, Ticket

PATIENCE = 30
TIGHT = replace(LOCAL, waiting=6, waiting_of_address=4)


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


# Whose turn is next


def test_addresses_take_turns_and_each_place_that_was_told_is_the_one_that_comes():
    engine = Engine()
    first = engine.hold()
    names = ["first/other", "a/1", "a/2", "a/3", "b/1", "b/2", "c/1"]
    tickets = {name: engine.ask(name) for name in names}
    told = sorted(names, key=lambda name: tickets[name].ahead)
    assert told == ["a/1", "b/1", "c/1", "first/other", "a/2", "b/2", "a/3"], "whose turn it is comes last"
    assert [tickets[name].ahead for name in told] == [1, 2, 3, 4, 5, 6, 7]
    assert engine.serve(first, *tickets.values()) == told


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


def test_a_turn_that_cannot_be_used_is_others_until_its_owner_enters_again():
    engine = Engine()
    first = engine.hold()
    early = engine.queue.join(Visitor("page", "a"), "run")
    early.enter(partial(engine._work, "a/page"), lambda: None)
    others = [engine.ask(f"{name}/page") for name in "bcd"]
    assert early.ahead == 1
    engine.gate.release()
    wait_until(lambda: engine.served[1:] == ["b/page"])
    assert early.work is None and not early.done.done() and engine.queue.waiting == 3
    early.enter(engine._work, lambda: ["a/page"])
    assert [ticket.ahead for ticket in (early, *others[1:])] == [1, 2, 3]
    assert engine.serve(first, early, *others) == ["b/page", "a/page", "c/page", "d/page"]


# Who may wait


def test_a_session_waits_with_one_request_beside_the_one_that_runs():
    engine = Engine()
    first, second = engine.hold(), engine.ask("first/page")
    with pytest.raises(Refused, match="^A run of yours waits already: "):
        engine.ask("first/page")
    with pytest.raises(Refused, match="^A run of yours waits already: "):
        engine.ask("first/page", asked="measurement", replaces=True)
    assert engine.queue.waiting == 1 and engine.queue.busy
    engine.ask("other/page")  # the same session at another address is somebody else
    engine.serve(first, second)


def test_another_request_of_a_page_replaces_the_one_that_waits_and_ends_the_one_that_runs():
    engine = Engine()
    first, waits = engine.hold(), engine.ask("page/1")
    engine.ask("behind/1")
    instead = engine.ask("page/1", replaces=True)
    with pytest.raises(Refused, match="took its place"):
        waits.done.result(PATIENCE)
    assert instead.ahead == 1, "it is in the same place"
    assert not first.is_over
    again = engine.ask("first/page", replaces=True)
    assert first.is_over and again.ahead == 3
    assert engine.serve(first, instead, again) == ["page/1", "behind/1", "first/page"]


def test_the_line_is_bounded_and_says_when_to_ask_again():
    engine = Engine(TIGHT)
    engine.queue.latest.extend([2.2, 4.4])
    first = engine.hold()
    crowd = [engine.ask(f"school/{number}") for number in range(4)]
    with pytest.raises(Refused) as of_address:
        engine.ask("school/5")
    assert str(of_address.value) == (
        "The server is busy: 4 requests of your network address wait already. Try again in about 4 s."
    )
    engine.ask("other/page")
    with pytest.raises(Refused, match="7 s"):  # two addresses have turns before there is room again
        engine.ask("school/5")
    assert engine.queue.waiting == 5
    engine.serve(first, *crowd)
    wait_until(lambda: not engine.queue.busy)
    assert engine.queue.lines == {}, "nothing is kept of those who have been served"
    assert engine.queue.waiting == 0


def test_in_a_full_line_the_last_of_the_longest_line_gives_way_to_another_address():
    engine = Engine(TIGHT)
    engine.queue.latest.append(2.2)
    first = engine.hold()
    crowd = [engine.ask(f"school/{number}") for number in range(4)]
    others = [engine.ask(f"other {number}/page") for number in range(2)]
    late = engine.ask("late/page")
    with pytest.raises(Refused) as told:
        crowd[-1].done.result(PATIENCE)
    assert str(told.value) == ("Too many requests wait, so yours gave up its place. Try again in about 3 s.")
    more = [engine.ask(f"{name}/page") for name in ("later", "latest")]
    with pytest.raises(Refused, match="^The server is busy: 6 requests wait already. Try again in about 3 s"):
        engine.ask("too late/page")  # each address has one by now
    served = engine.serve(first, crowd[0], *others, late, *more)
    assert len(served) == 6 and "school/1" not in served


def test_what_nobody_reads_holds_nobody_up_and_locks_nobody_out():
    engine, read = Engine(TIGHT), {"page"}
    engine.is_read = lambda session: session in read
    unread = [engine.ask(f"school/{number}") for number in range(9)]
    modest = engine.ask("school/page")
    assert engine.serve(modest) == [] and engine.served == ["school/page"]
    read |= {"3", "7"}
    engine.queue.look()
    for ticket in (unread[3], unread[7]):
        assert ticket.done.result(PATIENCE) is None
    assert engine.served == ["school/page", "school/3", "school/7"] and engine.queue.waiting == 7


def test_those_who_begin_to_read_at_once_do_not_make_the_line_longer_than_it_may_be():
    engine, read = Engine(TIGHT), {"page"}
    engine.is_read = lambda session: session in read
    first = engine.hold()
    crowd = [engine.ask(f"school/{number}") for number in range(9)]
    read |= {str(number) for number in range(9)}
    engine.queue.look()
    assert engine.queue.waiting == TIGHT.waiting_of_address
    for ticket in crowd[4:]:
        with pytest.raises(Refused, match="gave up its place"):
            ticket.done.result(PATIENCE)
    engine.serve(first, *crowd[:4])


def test_what_is_stopped_is_told_why_while_it_waits_and_ends_by_itself_when_it_goes_on():
    engine = Engine()
    first, second = engine.hold(), engine.ask("second/page")
    second.stop("Stopped.")
    with pytest.raises(Refused, match="^Stopped.$"):
        second.done.result(PATIENCE)
    assert engine.queue.waiting == 0
    first.stop("Stopped.")
    assert first.is_over and not first.done.done()
    assert engine.serve(first) == [] and first.done.result(PATIENCE) is None
    first.stop("Stopped.")


def test_what_is_loading_takes_no_place_in_the_line_and_has_a_bound_of_its_own():
    engine = Engine(replace(TIGHT, loading=4))
    loading = [engine.queue.join(Visitor(f"{number}", "school"), "run") for number in range(5)]
    for ticket in loading:
        ticket.load()
    assert engine.queue.waiting == 4 and not engine.queue.busy
    with pytest.raises(Refused, match="gave up its place"):
        loading[4].check()
    engine.serve(engine.ask("school/page"), engine.ask("other/page"))
    other = engine.queue.join(Visitor("1", "other"), "run")
    other.load()
    with pytest.raises(Refused):
        loading[3].check()
    for ticket in (*loading[:3], other):
        ticket.check()
        ticket.enter(lambda: None)
        assert ticket.done.result(PATIENCE) is None
    assert engine.queue.waiting == 0


# What ends a turn


def test_a_turn_is_over_when_its_time_is_up_it_is_cancelled_or_nobody_listens():
    queue = RunQueue(replace(LOCAL, run_seconds=0.05))
    patience = threading.Event()

    def work(ticket: Ticket) -> None:
        while not ticket.is_over:
            patience.wait(0.001)

    late = queue.join(Visitor("1", "a"), "run")
    late.enter(partial(work, late))
    late.done.result(PATIENCE)
    assert late.is_late and "was ended after 0.05 s" in str(late.ending)
    listens = True
    left = queue.join(Visitor("2", "a", lambda: listens), "run")
    queue.limits = LOCAL
    left.enter(partial(work, left))
    wait_until(lambda: left.began)
    assert not left.is_over
    listens = False
    left.done.result(PATIENCE)
    assert not left.is_late


def test_a_request_never_starts_when_its_listener_has_left():
    engine = Engine()
    first = engine.hold()
    listens = True
    left = engine.queue.join(Visitor("left", "b", lambda: listens), "run")
    left.enter(lambda: engine.served.append("left"))
    after = engine.ask("c/page")
    listens = False
    assert engine.serve(first, after) == ["c/page"]
    with pytest.raises(Refused):
        left.done.result(PATIENCE)


def test_what_would_end_the_thread_ends_one_run_with_a_sentence():
    queue = RunQueue()

    def work() -> None:
        raise SystemExit

    first, second = queue.join(Visitor("1", "a"), "run"), queue.join(Visitor("2", "a"), "run")
    first.enter(work)
    second.enter(lambda: None)
    with pytest.raises(RuntimeError, match="^SystemExit ended it.*Ask for it again"):
        first.done.result(PATIENCE)
    assert second.done.result(PATIENCE) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_killed_while_it_waits_is_replaced():
    queue = RunQueue()
    before = queue.thread
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(before.ident), ctypes.py_object(SystemExit))
    after = queue.join(Visitor("1", "a"), "run")
    after.enter(lambda: None)  # wakes it, so that it sees its end
    assert after.done.result(PATIENCE) is None
    before.join(PATIENCE)  # so that its end is told here
    assert queue.thread is not before and queue.thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_outside_the_work_answers_the_run_that_it_had(monkeypatch):
    queue = RunQueue()

    def fail(*_):
        raise SystemExit

    thread = queue.thread
    with monkeypatch.context() as patch:
        patch.setattr("specdemo.ui.runs.queue.fulfil", fail)
        first = queue.join(Visitor("1", "a"), "run")
        first.enter(lambda: None)
        with pytest.raises(Refused, match="engine stopped during it"):
            first.done.result(PATIENCE)
        thread.join(PATIENCE)  # so that its end is told here
    second = queue.join(Visitor("1", "a"), "run")
    second.enter(lambda: None)
    assert second.done.result(PATIENCE) is None


def test_closing_answers_those_who_wait_and_takes_nobody_more():
    engine = Engine()
    first, second = engine.hold(), engine.ask("b/page")
    threading.Timer(0.05, engine.gate.release).start()
    engine.queue.close()
    assert first.done.done() and first.is_over
    for ask in (lambda: second.done.result(PATIENCE), lambda: engine.ask("c/page")):
        with pytest.raises(Refused, match="being closed"):
            ask()


# Where a request comes from, and what it may ask for


NETWORK = "2a00:1450:4001:81b::/64"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("", "10.0.0.7"),
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


def test_one_visitor_is_one_address_without_a_proxy_too():
    addresses = {
        "2a00:1450:4001:81b:1:2:3:4": NETWORK,
        "::ffff:8.8.4.4": "8.8.4.4",  # of a socket that serves both kinds
        "": "",
        "a name": "a name",
    }
    for behind_proxy in (False, True):
        for client, address in addresses.items():
            assert visitor_address(client, Headers(), behind_proxy) == address


@pytest.mark.parametrize(
    ("prompt", "params", "sentence"),
    [
        ("a", {"max_new_tokens": 1_001}, "max_new_tokens must be a whole number from 1 to 1,000, not 1001"),
        ("a", {"alternatives": 11}, "alternatives must be a whole number from 0 to 10, not 11"),
        ("a" * 20_001, {}, "prompt must have at most 20,000 characters, not 20,001"),
        ([5] * 20_001, {}, "prompt must have at most 20,000 token ids, not 20,001"),
        ("a", {"system": "a" * 20_001}, "system must have at most 20,000 characters, not 20,001"),
    ],
)
def test_a_hosted_page_allows_less_and_says_so_as_params_does(prompt, params, sentence):
    with pytest.raises(ValueError) as error:
        HOSTED.check(prompt, Params(**params))
    assert str(error.value) == sentence
    LOCAL.check(prompt, Params(**params))
    HOSTED.check("a" * 20_000, Params(max_new_tokens=1_000, alternatives=10))
