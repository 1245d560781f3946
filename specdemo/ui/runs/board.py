"""The runs and measurements that pages follow and show, by names that cannot be guessed; bounded in number
and bytes. Without Gradio.

A reader can begin at any round, since the trace holds them all. So a page whose connection was cut asks for
the rest, and nothing that was sent has to be kept for it.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.ui.runs.limits import Holdings, Limits
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import RunProgress, Waiting, message_about
from specdemo.ui.view.feed import RunFeed, nothing_yet, notice
from specdemo.ui.view.kept import KeptRun, kept_run, values_of_trace, with_update
from specdemo.ui.view.settings import AS_STARTED, WEIGHT_CHOICES, in_words
from specdemo.ui.view.texts import describe_pair
from specdemo.words.catalogue import LANGUAGES, say, speaking, spoken
from specdemo.words.message import message

QUIET_SECONDS = 15.0  # after which a comment shows that a connection still stands
STOPPED_EARLY = message("stopped_early")


class Followed:
    """Something that goes on in the server and is read by a page, or a run that has ended or was read from a
    file. session: the session of the page that asked for it. said: makes what a reader is shown of it besides
    a run's rounds, in the language that is spoken; another function whenever that is new. feed: the rounds of
    a run that goes on."""

    session = ""

    def __init__(
        self, limits: Limits, address: str = "", name: str = "", kept: KeptRun | None = None
    ) -> None:
        self.limits, self.address, self.name = limits, address, name or secrets.token_hex(16)
        self.kept, self.ended = kept, kept is not None
        self.ticket: Ticket | None = None
        self.task: asyncio.Task[None] | None = None
        self.readers = 0
        self.was_read = False
        self.heard = time.monotonic()  # when it was asked for, or its last reader has left
        self.used = self.heard  # when anybody has last asked for anything of it
        self.said: Callable[[], dict[str, Any]] | None = None
        self.feed: RunFeed | None = None
        self._changed = asyncio.Event()

    @property
    def size(self) -> int:
        return self.kept.size if self.kept else 0

    @property
    def seed(self) -> int | None:
        return self.kept.params.seed if self.kept else self.feed and self.feed.trace.params.seed

    def keep(self) -> KeptRun | None:
        """The run so far, compressed; None before it has begun, and of a measurement."""
        feed = self.feed  # first: when the run ends, it is kept before its feed goes
        return self.kept or (feed and kept_run(feed))

    def is_awaited(self) -> bool:
        """Whether somebody reads it or may still come back. Any thread may call it."""
        patience = self.limits.resume_seconds if self.was_read else self.limits.listen_seconds
        return self.readers > 0 or time.monotonic() - self.heard < patience

    def stop(self) -> None:
        """Stops what its page does not want any more. After its end, nothing happens."""
        if self.ticket and not self.ended:
            self.ticket.stop(STOPPED_EARLY)

    def begin(self, reports: AsyncIterator[Any]) -> asyncio.Task[None]:
        """Follows the reports from now on."""
        self.task = asyncio.create_task(self._follow(reports))
        return self.task

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.readers += 1
        self.was_read = True
        try:
            yield
        finally:
            self.readers -= 1
            self.heard = time.monotonic()

    async def news(self, since: int) -> AsyncIterator[tuple[int, str] | None]:
        """Yields what is new after the first `since` rounds, until it has ended: how many rounds the reader
        then knows, and a message as JSON, made where it keeps nobody waiting. None means that nothing is new
        for a while."""
        shown, feed, timed = None, None, None
        while True:
            changed, ended, feed, said = self._changed, self.ended, self.feed or feed, self.said
            message: dict[str, Any] = {"ended": True} if ended else {}
            if said is not shown and said:
                message, shown = {**said(), **message}, said
            settles = feed is not None and feed.ended and feed.trace.stats is not timed
            if feed and (ended or settles or since == 0 or feed.until > since):
                timed = feed.trace.stats if feed.ended else None
                update = await asyncio.to_thread(feed.update, since)
                since = update["until"]
                yield since, await asyncio.to_thread(with_update, message, update)
            elif message:
                if ended and self.kept:
                    message["stored"] = True
                yield since, await asyncio.to_thread(json.dumps, message)
            if ended:
                return
            if feed and feed.until > since:
                continue
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield None

    def _take(self, report: Any) -> None:
        """Shows it from now on."""
        raise NotImplementedError

    def _fail(self, error: Exception) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        self.ended = True
        self._wake()

    async def _follow(self, reports: AsyncIterator[Any]) -> None:
        try:
            async with aclosing(reports) as following:  # type: ignore[type-var]
                async for report in following:
                    self._take(report)
                    self._wake()
        except Exception as error:
            self._fail(error)
        finally:
            await self._end()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class FollowedRun(Followed):
    """A page's run: waited for, going on, or ended. link: from a pair's trace, the query of the address that
    asks for the run. remarks: remarks about how the run was asked for."""

    def __init__(
        self, limits: Limits, params: Params, link: Callable[[Trace], str], remarks: Sequence[str] = ()
    ) -> None:
        super().__init__(limits)
        self.params, self.link, self.remarks = params, link, remarks
        self.described: object = None

    def _take(self, report: Waiting | RunProgress) -> None:
        if isinstance(report, Waiting):
            self.said = lambda: {"notice": notice("wait", in_words(report.what), share=report.share)}
            return
        pair, trace = report.pair, report.run.trace
        if self.feed is None:
            self.feed = RunFeed(trace, pair.texts_of, link=self.link(trace))
        self.feed.ended = report.is_timed or report.ended
        self.feed.settles = not report.ended
        if (state := (pair.warming_up, pair.notes)) != self.described:
            self.described = state
            words = {}  # of each language, since it must keep no pair in memory
            for tag in LANGUAGES:
                with speaking(tag):
                    words[tag] = [*self.remarks, *describe_pair(pair, self.params)]
            self.said = lambda: {"notice": notice("note", *words[spoken()])}
        if note := report.note:
            self.said = lambda: {"notice": notice("note", in_words(note))}

    def _fail(self, error: Exception) -> None:
        if self.feed:
            self.feed.ended = True
        why = message_about(error)
        kind = "note" if why == STOPPED_EARLY else "error"
        self.said = lambda: {"notice": notice(kind, in_words(why))}

    async def _end(self) -> None:
        await super()._end()
        if self.feed:
            self.kept = await asyncio.to_thread(kept_run, self.feed)  # its rounds take much more memory
            self.feed = None


class FollowedMeasurement(Followed):
    """What an instrument measures. Every message has all that is measured so far. report: the latest page
    that tells of it, for those that have one."""

    def __init__(self, limits: Limits, wanted: object, report: Sequence[str] = ()) -> None:
        super().__init__(limits)
        self.report, self.stopped = report, False
        self._take(nothing_yet(wanted, self.name))

    @property
    def size(self) -> int:
        return sum(map(len, self.report))

    def stop(self) -> None:
        super().stop()
        if not self.ended:
            self._take(self.latest | {"state": "stopped", "text": say("run.stopped"), "share": None})
            self.stopped = True
            self._wake()

    def _take(self, report: dict[str, Any]) -> None:
        if not self.stopped:
            self.latest, self.said = report, partial(dict, measurement=report)

    def _fail(self, error: Exception) -> None:
        self._take(failed(self.latest, error))

    async def _end(self) -> None:
        self.said = partial(dict, measurement=self.latest)  # once more, with the end
        await super()._end()


def recorded_run(limits: Limits, trace: Trace, name: str, pairs: Collection[str] = ()) -> Followed:
    """A run that comes with the project. pairs: the names of the pairs that can be chosen here."""
    feed = RunFeed(trace, recorded=True, link=f"trace={name}")
    weights = dict.fromkeys(WEIGHT_CHOICES, AS_STARTED) if trace.pair.name in pairs else None
    return Followed(limits, name=name, kept=kept_run(feed, values=values_of_trace(trace, weights)))


def wrong(error: Exception) -> dict[str, Any]:
    return {"notice": notice("error", in_words(message_about(error)))}


def failed(latest: dict[str, Any], error: Exception) -> dict[str, Any]:
    return latest | {"state": "failed", "text": in_words(message_about(error)), "share": None}


UNUSED_SECONDS = 3_600  # for which a run that has ended is kept without being asked for
RECORDED_RUN = "first"  # the name of the recorded run that every page shows at first


class Board:
    """What pages have asked for and what they show. When there is too much, the address that has the most
    loses its longest unused entry first."""

    def __init__(self, limits: Limits, *recorded: Followed) -> None:
        """recorded: the runs that come with the project, which are always there."""
        self.limits, self.recorded = limits, {one.name: one for one in recorded}
        self.entries: dict[str, Followed] = {}  # the longest unused one first

    def put(self, one: Followed) -> None:
        self.entries[one.name], one.used = one, time.monotonic()
        self._make_room()

    def has_readers(self) -> bool:
        return any(one.readers for one in self.entries.values())

    def is_read_by(self, session: str) -> bool:
        """Whether a page has read anything on the board, and has not left."""
        own = (one for one in self.entries.values() if one.session == session)
        return any(one.was_read and one.is_awaited() for one in own)

    def begin(self, one: Followed, reports: AsyncIterator[Any]) -> None:
        one.begin(reports).add_done_callback(lambda _: self._has_ended(one))

    def get(self, name: str) -> Followed | None:
        if one := self.entries.pop(name, None):
            self.entries[name], one.used = one, time.monotonic()
        return one or self.recorded.get(name)

    def _has_ended(self, one: Followed) -> None:
        """Called when a run or measurement has ended. If a page shows it now, the runs that the page showed
        before are removed, so that nobody can ask for them."""
        if one.kept:
            for each in list(self.entries.values()):
                if each is not one and each.kept and each.session == one.session:
                    del self.entries[each.name]
        self._make_room()

    def make_room(self, address: str) -> None:
        """Makes room for one more request of this address among those that nobody has begun to read, or
        raises Refused."""
        unread = {each: each.address for each in self.entries.values() if not (each.ended or each.was_read)}
        if one := self.limits.make_room(address, unread, unread):
            one.stop()
            del self.entries[one.name]

    def _make_room(self) -> None:
        """Removes entries until there is room, but never the latest one, and nothing that goes on."""
        while ended := [each for each in list(self.entries.values())[:-1] if each.ended and not each.readers]:
            if time.monotonic() - ended[0].used > UNUSED_SECONDS:
                del self.entries[ended[0].name]
                continue
            sizes, counts = Holdings(), Holdings(each.address for each in self.entries.values())
            for each in self.entries.values():
                sizes[each.address] += each.size
            too_much = sizes.total() > self.limits.kept_bytes and sizes
            held = too_much or (counts.total() > self.limits.kept_runs and counts)
            if not held:
                return
            if one := held.to_go({each: each.address for each in ended}):
                del self.entries[one.name]
