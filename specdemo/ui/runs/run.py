"""A visitor's run or measurement, from its place in line to its end. Without Gradio.

What a visitor waits for is awaited in coroutines, which take no thread while they sleep and can be cancelled
at any moment. The runs themselves happen in one thread, one after another.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from specdemo import zero
from specdemo.errors import LoadError, PairError, failure
from specdemo.events import Params
from specdemo.loading.pair import AnyPair, Pair
from specdemo.measure.turns import settle
from specdemo.session import Run
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Refused, Ticket, fulfil
from specdemo.ui.view.feed import nothing_yet
from specdemo.ui.view.settings import in_words
from specdemo.words.catalogue import say
from specdemo.words.message import Message, message, message_of
from specdemo.zero import start_run

T = TypeVar("T")
REPORT_PERIOD = 0.1  # s, the least time between two reports of a run
# Seconds between two looks at the line. From the tenth visitor on they grow with the line: each message costs
# a millisecond.
QUEUE_PERIOD = 1.0
LOADING_PERIOD = 0.3  # s between two looks at a load
ATTEMPTS = 5  # turns for which a pair is loaded that the pool drops again and again
SHOWN_PROMPT = 40  # characters of a prompt, to tell it from others
PERIOD = 0.3  # s between two looks at a measurement
TELLING = 1.0  # s, from which on what was measured tells what is left
Link = Callable[[str, Params], str]  # from a pair's name and Params, the query of the address of a new game
Wanted = dict[str, Any]  # what the page's script sends to ask for a measurement


class Waiting(NamedTuple):
    """What a visitor waits for, and the share of it that is finished, from 0 to 1 (None where it is not
    known)."""

    what: Message
    share: float | None


class RunProgress(NamedTuple):
    """A run that goes on meanwhile: it had `until` rounds at this moment. is_timed: whether it has ended and
    has its speed-up, which may still settle. `ended` is true in the last report only. note: why the run was
    ended early by the server, if it was."""

    pair: AnyPair
    run: Run
    until: int
    is_timed: bool
    ended: bool
    note: Message | None = None


async def follow(
    models: Models, ticket: Ticket, choice: Choice, prompt: Any, params: Params
) -> AsyncIterator[Waiting | RunProgress]:
    """Runs a visitor's prompt when the ticket's turn comes.

    Yields Waiting when something changes while the pair loads and while others have their turns. Then yields
    RunProgress when the run has begun, at most every REPORT_PERIOD when there are new rounds or its speed-up
    settles, which nobody waits for, and when it has ended or failed. Errors are raised. Closing or cancelling
    this generator closes the run or leaves the line.
    """

    def work(pair: AnyPair) -> Iterator[tuple[AnyPair, Run, bool]]:
        with start_run(pair, prompt, params, is_over=lambda: ticket.is_over) as run:
            yield pair, run, False
            for _ in run:
                if ticket.is_over:
                    return
            ticket.answered = time.monotonic()
            yield pair, run, True
            for _ in settle(run, lambda: ticket.is_over or ticket.others_wait):
                pass

    reported = None
    async with aclosing(in_turn(models, ticket, [choice], work, REPORT_PERIOD)) as reports:
        async for report in reports:
            if isinstance(report, Waiting):
                yield report
                continue
            (pair, run, is_timed), ended = report
            state = (len(run.trace.rounds), pair.warming_up, is_timed and run.trace.stats, ended)
            if state != reported:
                reported = state
                is_cut = ended and run.trace.finish == "cancelled" and ticket.is_late
                note = ticket.ending if is_cut else None
                yield RunProgress(pair, run, state[0], is_timed, ended, note)


async def in_turn(
    models: Models,
    ticket: Ticket,
    choices: Sequence[Choice],
    work: Callable[..., Iterator[T]],
    period: float | None,
) -> AsyncIterator[Waiting | tuple[T, bool]]:
    """Has the ticket's turn, in which `work` is called with the pairs of the choices and iterated, in the
    engine's thread. It must end soon after the ticket is over; if it gives way, it is called again in another
    turn. The pairs are loaded before; one that the pool has dropped when the turn comes is loaded again while
    others have their turns.

    Yields Waiting while pairs load and others have their turns. Once `work` has yielded what is known of it,
    yields the latest of that every `period` seconds of a turn (None: not before the end), and once more at
    the end or before an error is raised, each time with whether the work has come to its end. Closing or
    cancelling this generator ends it or leaves the line. Refused when nobody listens any more.
    """
    latest: deque[T] = deque(maxlen=1)
    started: Future[None] = Future()

    def turn(*pairs: AnyPair) -> None:
        for news in work(*pairs):
            latest.append(news)
            if not started.done():
                started.set_result(None)

    def needed() -> list[AnyPair] | None:
        with suppress(PairError):  # `loaded` raises it again, to the visitor
            pairs = [pair for choice in choices if (pair := models.loaded(choice))]
            return pairs if len(pairs) == len(choices) else None

    begun, done = awaitable(started), awaitable(ticket.done)
    attempts = shown = 0
    try:
        while not done.done():
            if ticket.work is None:
                if (attempts := attempts + 1) > ATTEMPTS:
                    raise LoadError(message("memory_taken"))
                for choice in choices:
                    async with aclosing(loaded(models, ticket, choice)) as loading:
                        async for waiting in loading:
                            yield waiting
                ticket.enter(turn, needed)
                shown = 0
            if latest and ticket.began:
                attempts = 0
                if period:
                    yield latest[0], False
                await asyncio.wait([done], timeout=period)
                continue
            ticket.check()
            if (ahead := ticket.ahead) not in (0, shown):
                shown = ahead
                yield Waiting(message("line", ahead=ahead), None)
            news = [done] if latest else [begun, done]
            pause = QUEUE_PERIOD * max(1, shown / 10)
            await asyncio.wait(news, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if latest:
            yield latest[0], done.exception() is None
        done.result()
    finally:
        ticket.cancel()


async def loaded(models: Models, ticket: Ticket, choice: Choice) -> AsyncIterator[Waiting]:
    """Waits until the pair is loaded. It loads in a thread of its own, so that a visitor can leave meanwhile,
    and only when somebody reads the answer. A load that has begun then goes on for the next visitor; one that
    has not begun never does. Refused when too many wait so."""
    if models.loaded(choice) is not None:
        return
    while not ticket.visitor.is_read():
        await asyncio.sleep(LOADING_PERIOD)
        ticket.check()
    ticket.load()
    ticket.check()
    start, left = time.monotonic(), threading.Event()
    latest: deque[tuple[Message | None, float | None]] = deque([(None, None)], maxlen=1)  # the loader's news
    name, shown = choice.pair or models.default, None
    loading = in_thread(models.get, choice, lambda *news: latest.append(news), lambda: not left.is_set())
    try:
        while not loading.done():
            doing, share = latest[0]
            seconds = f"{time.monotonic() - start:.0f}"
            loads = message("pair_loads", name=name, seconds=seconds)
            waiting = Waiting(message("loads", doing=doing, seconds=seconds) if doing else loads, share)
            if waiting != shown:
                shown = waiting
                yield waiting
            await asyncio.wait([loading], timeout=LOADING_PERIOD)
            ticket.check()
        loading.result()
    finally:
        left.set()


def in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future:
    """Calls the function in a thread of its own, for what can take long or never ends."""
    future: Future[Any] = Future()
    threading.Thread(target=fulfil, args=(future, function, *arguments), daemon=True).start()
    return awaitable(future)


def awaitable(future: Future) -> asyncio.Future:
    """The future for asyncio.wait, which does not cancel what it waits for."""
    awaitable = asyncio.wrap_future(future)
    # The callback marks an exception as seen: nobody looks at it after the visitor has left.
    awaitable.add_done_callback(lambda done: done.cancelled() or done.exception())
    return awaitable


@dataclass(eq=False)
class MeasurementRequest:
    """What a visitor wants to be measured, and how that is done. wanted: what the page's script sends."""

    wanted: Wanted
    choice: Choice
    prompt: str
    params: Params
    link: Link
    report: deque[str] = field(default_factory=lambda: deque(maxlen=1), init=False)  # a page to save, if any
    period: ClassVar[float | None] = PERIOD  # s between two looks; None: it is shown at its end only

    def __post_init__(self) -> None:
        """Reads what only this kind is asked with. Raises ValueError with one sentence."""

    @property
    def kind(self) -> str:
        return self.wanted["kind"]

    async def choices(self, models: Models) -> list[Choice]:
        return [self.choice]

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        """What happens in the ticket's turn, as `in_turn` takes it. It yields all that is known so far, as
        parts of a Measurement (static/view/messages.d.ts). `share` is 1 when nothing is left to measure."""
        raise NotImplementedError


async def measure(
    models: Models, ticket: Ticket, request: MeasurementRequest, name: str = ""
) -> AsyncIterator[dict[str, Any]]:
    """Measures when the ticket's turn comes. Yields all that is measured so far, whenever there is more.
    Errors are raised. Closing or cancelling this generator stops the measurement. name: the name that the
    measurement is followed by."""
    told = nothing_yet({"kind": request.kind}, name)
    ends: float | None = None  # seconds that it takes in all, by what its parts took so far
    try:
        choices = await request.choices(models)
        turns = in_turn(models, ticket, choices, partial(request.work, ticket), request.period)
        async with aclosing(turns) as reports:
            async for report in reports:
                if isinstance(report, Waiting):
                    yield told | {"text": in_words(report.what), "share": told["share"] or report.share}
                    continue
                (latest, ended), before = report, told
                told = told | {"state": "running", **latest}
                spent, share = ticket.seconds, told["share"]
                if share and share != before["share"] and spent >= TELLING:
                    ends = spent / share
                told["left"] = ends and max(0, round(ends - spent))  # so that it is sent once a second
                if told != before and not ended:
                    yield told
    finally:
        ticket.cancel()
    if told["share"] == 1:
        yield told | {"state": "ended", "text": "", "share": None}
    else:
        text = in_words(ticket.ending) if ticket.is_late else say("run.stopped")
        yield told | {"state": "stopped", "text": text, "share": None}


def pair_here(pair: AnyPair, kind: str) -> Pair:
    """The pair, of which an instrument of this kind needs single rounds or many runs. Raises PairError where
    they are made on a server or on ZeroGPU."""
    if not isinstance(pair, Pair):
        raise PairError(message(f"{kind}_on_server"))
    if zero.GPU is not None:
        raise PairError(message(f"{kind}_zero"))
    return pair


def prompt_in_words(prompt: str) -> str:
    """The prompt's first words, to tell it from others."""
    start = " ".join(prompt.split())
    start = start if len(start) <= SHOWN_PROMPT else f"{start[:SHOWN_PROMPT]}…"
    return say("run.this_prompt", start=start)


def message_about(error: Exception) -> Message | str:
    return message_of(error) if is_for_visitor(error) else message("failed", why=failure(error))


def is_for_visitor(error: Exception) -> bool:
    """Whether the error's own words are a sentence for the visitor. The words of subclasses of ValueError are
    a library's."""
    return isinstance(error, (PairError, Refused)) or type(error) is ValueError
