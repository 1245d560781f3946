"""The line of visitors for the one engine, and the engine's thread. Without torch and without Gradio."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from contextvars import copy_context
from itertools import zip_longest
from math import ceil
from statistics import mean
from typing import Any, Literal

from specdemo.ui.runs.limits import LOCAL, Holdings, Limits, Refused, Visitor
from specdemo.words.catalogue import numeral
from specdemo.words.message import Message, message

Asked = Literal["run", "measurement"]
Needed = Callable[[], Sequence[Any] | None]
REMEMBERED = 20  # turns, for the time that the next ones will take
USUAL_TURN = 10.0  # s, while none has been measured
TURN_PIECE = 2.0  # s of a turn, after which work that can be cut gives way to those who wait
GIVEN_UP_EARLY = message("given_up")
CLOSING = message("closing")


class RunQueue:
    """Visitors who wait for the one engine. Its thread does their work, one turn after another.

    Each network address gets a turn before any gets a second one; requests from one address have their turns
    in order of arrival. Work that can be cut gives its turn back where others wait, and goes on in another
    one. A session waits with one request at a time, besides one that waits for the rest of its turn. So an
    address with many requests delays another one by a single turn. A turn comes only when somebody has begun
    to read the answer. When too many wait, the last one of the address with the most gives up its place.
    """

    def __init__(self, limits: Limits = LOCAL) -> None:
        self.limits = limits
        self.lines: dict[str, list[Ticket]] = {}  # by address, in the order of their turns; none is empty
        self.running: Ticket | None = None
        self.changed = threading.Condition()
        self.latest: deque[float] = deque(maxlen=REMEMBERED)  # seconds that turns took
        self.is_closed = False
        self.thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self.thread.start()
        atexit.register(self.close)

    @property
    def waiting(self) -> int:
        """How many requests wait, including those whose pair is still loading."""
        with self.changed:
            return sum(map(len, self.lines.values()))

    @property
    def tickets(self) -> list["Ticket"]:
        """The ticket of the turn that goes on, if one does, and those in line, in the order of their
        turns."""
        with self.changed:
            return ([self.running] if self.running else []) + self._in_order()

    def join(self, visitor: Visitor, asked: Asked, replaces: bool = False) -> "Ticket":
        """Takes a place among those who wait. Its turn can come once `Ticket.enter` has been called. Raises
        Refused with one sentence.

        replaces: the session's own earlier request of the same kind ends, and this one takes its place.
        """
        ticket = Ticket(self, visitor, asked)
        with self.changed:
            if self.is_closed:
                raise Refused(CLOSING)
            line = self.lines.get(visitor.address, [])
            waits = (
                each for each in line if each.visitor == visitor and not (each.had and each.asked != asked)
            )
            before = next(waits, None)
            if before and not (replaces and before.asked == asked):
                raise Refused(message(f"{before.asked}_waits"))
            if replaces and self.running and (self.running.visitor, self.running.asked) == (visitor, asked):
                self.running.cancelled = True
            if before:
                line[line.index(before)] = ticket
                before.send_away(message("place_taken"))
            else:
                self.lines.setdefault(visitor.address, []).append(ticket)
        return ticket

    def close(self, patience: float = 10) -> None:
        """Ends the run that goes on, and refuses those that wait and those that come. Returns when the run
        has ended, at the latest after `patience` seconds."""
        with self.changed:
            self.is_closed = True
            running = self.running
            waiting = [ticket for line in self.lines.values() for ticket in line]
            self.lines.clear()
        for ticket in waiting:
            ticket.send_away(CLOSING)
        if running:
            running.cancel()
            wait([running.done], patience)

    def leave(self, ticket: "Ticket") -> None:
        with self.changed:
            line = self.lines.get(ticket.visitor.address, [])
            if ticket in line:
                line.remove(ticket)
                if not line:
                    del self.lines[ticket.visitor.address]

    def look(self) -> None:
        """Tells the queue's thread that somebody has begun to read an answer, or that one more request can
        have its turn."""
        with self.changed:
            self._bound(Ticket.can_run, self.limits.waiting, self.limits.waiting_of_address)
            self._bound(lambda ticket: ticket.is_loading, self.limits.loading)
            self.changed.notify()

    def _waiting(self, counts: Callable[["Ticket"], bool]) -> dict[str, list["Ticket"]]:
        """The tickets of each address that count, where there are any."""
        lines = {address: list(filter(counts, line)) for address, line in self.lines.items()}
        return {address: line for address, line in lines.items() if line}

    def _bound(self, counts: Callable[["Ticket"], bool], most: int, of_one: int | None = None) -> None:
        """Sends away the last ticket of the address with the most, while too many tickets count."""
        while True:
            latest_first = sorted(self._waiting(counts).values(), key=lambda line: -line[-1].joined)
            last_first = {
                ticket: ticket.visitor.address for line in latest_first for ticket in reversed(line)
            }
            held = Holdings(last_first.values())
            last = held.to_go(last_first)
            if last is None or (held.total() <= most and max(held.values()) <= (of_one or most)):
                return
            self.leave(last)
            last.send_away(message("gave_up", seconds=self._seconds()))

    def _seconds(self) -> int:
        """How long a turn takes, after which a place is free."""
        return max(1, ceil(mean(self.latest) if self.latest else self.limits.run_seconds or USUAL_TURN))

    def _in_order(self) -> list["Ticket"]:
        """The tickets that wait, in the order of their turns: first those whose turn came too early, then one
        of each address in turn, that of the address that has a turn now last."""
        now = self.running and self.running.visitor.address
        lines = self._waiting(Ticket.can_run)
        rows = [lines[address] for address in sorted(lines, key=lambda address: address == now)]
        tickets = (ticket for one_round in zip_longest(*rows) for ticket in one_round if ticket)
        return sorted(tickets, key=lambda ticket: not ticket.is_next)

    def _serve(self) -> None:
        while True:
            with self.changed:
                ticket = self.changed.wait_for(self._in_order)[0]
                if (needs := ticket.needed()) is None:
                    ticket.work, ticket.is_next = None, True
                    continue
                self.running = ticket
                self.leave(ticket)
            self._have_turn(ticket, needs)
            del ticket, needs  # they keep the pair that was run in memory

    def _have_turn(self, ticket: "Ticket", needs: Sequence[Any]) -> None:
        turn: Future[None] = Future()
        ticket.began = start = time.monotonic()
        if ticket.is_over or ticket.done.done():
            turn.set_exception(Refused(GIVEN_UP_EARLY))
        else:
            fulfil(turn, ticket.context.run, ticket.work, *needs)
            self.latest.append((ticket.answered or time.monotonic()) - start)
        address = ticket.visitor.address
        with self.changed:
            self.running = None
            if address in self.lines:
                self.lines[address] = self.lines.pop(address)  # to the end
            if ticket.gave_way and not (ticket.is_over or self.is_closed or turn.exception()):
                ticket.had, ticket.began, ticket.joined = ticket.seconds, None, time.monotonic()
                ticket.gave_way = ticket.is_next = False
                self.lines.setdefault(address, []).append(ticket)
                return
        ticket.end(turn.exception())


class Ticket:
    """One request's place in line."""

    def __init__(self, queue: RunQueue, visitor: Visitor, asked: Asked) -> None:
        self.queue, self.visitor, self.asked = queue, visitor, asked
        self.work: Callable[..., None] | None = None
        self.needed: Needed = tuple
        self.is_next = False  # its turn came before it could be used
        self.is_loading = False  # its pair
        self.joined = time.monotonic()
        self.began: float | None = None  # its turn, by the monotonic clock
        self.had = 0.0  # s of turns that it gave back
        self.gave_way = False  # in this turn
        self.done: Future[None] = Future()
        self.cancelled = False
        self.answered: float | None = None  # when all was there that its reader waits for
        self.context = copy_context()  # the visitor's, in which ZeroGPU's package finds whose quota counts

    def enter(self, work: Callable[..., None], needed: Needed = tuple) -> None:
        """Lets the ticket's turn come from now on: `work` is then called in the engine's thread, with what
        `needed` returns. It must end soon after `is_over` has become true. needed: returns at once; None
        means that what is needed is not there, so others have their turns until `enter` is called again, and
        `work` is None until then."""
        self.needed, self.work, self.is_loading = needed, work, False
        self.queue.look()

    def can_run(self) -> bool:
        return self.work is not None and self.visitor.is_read()

    def give_way(self) -> bool:
        """Whether the turn has lasted for a TURN_PIECE and others wait. Work that can be cut then returns. It
        is called again in another turn, at the end of its address's; `is_late` is about all together."""
        if self.seconds - self.had >= TURN_PIECE:
            self.gave_way = self.others_wait
        return self.gave_way

    @property
    def others_wait(self) -> bool:
        """Whether a turn can come after this one, which goes on."""
        return len(self.queue.tickets) > 1

    def load(self) -> None:
        """Makes the ticket wait for its pair to be loaded, among a bounded number of such requests."""
        self.is_loading = True
        self.queue.look()

    def check(self) -> None:
        """Raises Refused if the ticket has been sent away before its turn, or if nobody listens any more.
        What goes wrong in its turn is told by `done` alone."""
        if self.done.done() and self.began is None:
            self.done.result()
        elif not self.visitor.listens():
            raise Refused("Nobody waits for this any more.")

    @property
    def ahead(self) -> int:
        """How many turns come before the ticket's own; 0 when its turn has come or is over."""
        tickets = self.queue.tickets
        return tickets.index(self) if self in tickets else 0

    @property
    def is_late(self) -> bool:
        longest = self.queue.limits.run_seconds
        return longest is not None and self.seconds >= longest

    @property
    def seconds(self) -> float:
        """How long the turn has taken so far, with what it had before."""
        return self.had + (0.0 if self.began is None else time.monotonic() - self.began)

    @property
    def is_over(self) -> bool:
        return self.cancelled or self.is_late or not self.visitor.listens()

    @property
    def ending(self) -> Message:
        """Why a turn that was late has ended, in words for its reader."""
        return message(f"{self.asked}_late", seconds=numeral(self.queue.limits.run_seconds or 0, "g"))

    def cancel(self) -> None:
        """Gives up the turn, or ends it within one round. May be called at any time."""
        self.cancelled = True
        self.queue.leave(self)

    def stop(self, why: Message) -> None:
        """Gives up the turn: one that waits is told why, and one that goes on ends within one round."""
        self.cancel()
        if self.began is None:
            self.end(Refused(why))

    def send_away(self, why: Message) -> None:
        self.cancelled = True
        self.end(Refused(why))

    def end(self, error: BaseException | None = None) -> None:
        with suppress(InvalidStateError):  # it has its result already, or its reader has gone
            self.done.set_exception(error) if error else self.done.set_result(None)


def fulfil(future: Future, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls the function for a future's result, unless the future has been cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    except BaseException as error:  # would end whoever waits for the result, the server's loop for example
        future.set_exception(RuntimeError(f"{type(error).__name__} ended it. Ask for it again."))
