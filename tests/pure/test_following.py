"""What a page follows: read from any round on, stopped, left, kept and bounded; over runs that tests tell."""

import asyncio
import gzip
import json
import re
import time
from base64 import b64decode
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from specdemo.events import Params
from specdemo.ui.page.alone import one_file
from specdemo.ui.runs import board as board_module
from specdemo.ui.runs.board import (
    RECORDED_RUN,
    STOPPED_EARLY,
    Board,
    Followed,
    FollowedMeasurement,
    FollowedRun,
    recorded_run,
)
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.queue import Refused, RunQueue
from specdemo.ui.runs.routes import RUNS, following_routes, health_route
from specdemo.ui.runs.run import RunProgress, Waiting, measure
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.kept import kept_run
from specdemo.words.catalogue import say
from specdemo.words.message import message, refusal
from tests.played import played
from tests.pure.test_browser_types import check_message
from tests.pure.test_feed import ROUNDS, output, trace
from tests.sentences import refused

PAIR = SimpleNamespace(
    notes=(),
    runs_here=True,
    warming_up=None,
    texts_of=None,
    info=trace().pair,
    bytes_held=SimpleNamespace(target=1e6, drafter=0),
)


class Told:
    """A run whose reports come when the test says so."""

    def __init__(self, limits=LOCAL):
        self.run = FollowedRun(limits, Params(), lambda trace: "gamma=4")
        self.trace, self.reports = trace(), asyncio.Queue()
        self.run.begin(self._reports())

    async def _reports(self):
        while (report := await self.reports.get()) is not None:
            if isinstance(report, Exception):
                raise report
            yield report

    async def says(self, *reports) -> None:
        for report in reports:
            await self.reports.put(report)
        await asyncio.sleep(0.01)

    async def goes_on(self, *rounds) -> None:
        for one in rounds:
            self.trace.add(one)
        await self.says(self.progress(False))

    async def ends(self) -> None:
        self.trace.end("length")
        await self.says(self.progress(True), None)
        await self.run.task

    def progress(self, ended: bool) -> RunProgress:
        run = SimpleNamespace(trace=self.trace)
        return RunProgress(PAIR, run, len(self.trace.rounds), ended, ended)


async def messages(run, since: int = 0) -> list[dict]:
    """All that a reader is told, until the end."""
    with run.reading():
        return [json.loads(news[1]) async for news in run.news(since) if news]


def measured(models, queue, request, is_enough=lambda message, ticket: False) -> list[dict]:
    """All messages of a measurement, or those up to the first one that is enough."""

    async def follow() -> list[dict]:
        told, ticket = [], queue.join(Visitor("page", "10.0.0.1"), "measurement")
        async with aclosing(measure(models, ticket, request, "name")) as reports:
            async for message in reports:
                told.append(json.loads(json.dumps(message, allow_nan=False)))
                check_message({"measurement": told[-1]}, "PageMessage")
                if is_enough(told[-1], ticket):
                    break
        return told

    return asyncio.run(follow())


@played
async def test_a_reader_is_told_what_is_waited_for_then_the_rounds_and_the_end():
    told, heard = Told(), []

    async def read() -> None:
        async for news in told.run.news(0):
            heard.append(json.loads(news[1]))

    async def hears(count: int) -> None:
        while len(heard) < count:
            await asyncio.sleep(0.001)

    reader = asyncio.create_task(read())
    await told.says(Waiting(message("line", ahead=2), None))
    await hears(1)
    await told.goes_on(*ROUNDS[:2])
    await hears(2)
    await told.goes_on(*ROUNDS[2:])
    await hears(3)
    await told.ends()
    await reader
    first, begun, more, end = heard
    assert first == {"notice": {"kind": "wait", "text": "You are number 2 in line …", "share": None}}
    assert begun["update"]["link"] == "gamma=4" and begun["notice"]["kind"] == "note"
    assert (more["update"]["since"], more["update"]["until"]) == (2, 4) and "ended" not in more
    assert end["ended"] and end["update"]["finish"] == "length" and end["update"]["rounds"] == []


@played
async def test_what_goes_wrong_is_told_with_what_was_there_before():
    early, late = Told(), Told()
    await early.says(ValueError(refusal("gamma", "whole", 99, low=1, high=16)))
    assert await messages(early.run) == [early.run.said() | {"ended": True}]
    assert "99" in early.run.said()["notice"]["text"] and early.run.kept is None
    await late.goes_on(*ROUNDS[:1])
    late.trace.end("error")
    await late.says(RuntimeError("no"))
    await late.run.task
    assert (told := late.run.said()["notice"])["kind"] == "error" and "RuntimeError" in told["text"]
    assert json.loads(gzip.decompress(late.run.kept.message()))["update"]["finish"] == "error"


@played
async def test_a_run_is_left_when_nobody_reads_it_for_a_while(monkeypatch):
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    run = Told(replace(LOCAL, listen_seconds=20, resume_seconds=30)).run
    assert run.is_awaited() and not run.was_read
    clock.now += 21
    assert not run.is_awaited(), "nobody has come"
    with run.reading():
        clock.now += 1_000
        assert run.is_awaited() and run.was_read
    clock.now += 29
    assert run.is_awaited(), "its page may come back"
    clock.now += 2
    assert not run.is_awaited()
    run.task.cancel()


@played
async def test_a_run_that_is_stopped_in_line_says_so_and_leaves_it():
    async def waits(ticket):
        while not ticket.done.done():
            yield Waiting(message("line", ahead=1), None)
            await asyncio.sleep(0.01)
        ticket.done.result()

    queue, run = RunQueue(), FollowedRun(LOCAL, Params(), lambda trace: "")
    run.ticket = queue.join(Visitor("page", "a"), "run")
    run.begin(waits(run.ticket))
    reader = asyncio.create_task(messages(run))
    while not run.said:
        await asyncio.sleep(0.01)
    run.stop()
    *_, last = await reader
    assert last == {"notice": {"kind": "note", "text": str(STOPPED_EARLY), "share": None}, "ended": True}
    assert queue.waiting == 0
    run.stop()


@played
async def test_a_measurement_that_is_stopped_keeps_what_it_has_measured():
    queue, one = RunQueue(), FollowedMeasurement(LOCAL, {"kind": "gamma"})
    one.ticket = queue.join(Visitor("page", "a"), "measurement")
    told = asyncio.Queue()

    async def measures():
        while (report := await told.get()) is not None:
            yield report

    one.begin(measures())
    reader = asyncio.create_task(messages(one))
    await told.put(one.latest | {"state": "running", "gammas": [1]})
    while "gammas" not in one.latest:
        await asyncio.sleep(0.01)
    one.stop()
    await told.put(one.latest | {"state": "ended"})
    await told.put(None)
    *_, last = await reader
    assert last["ended"] and last["measurement"]["state"] == "stopped"
    assert last["measurement"]["gammas"] == [1] and last["measurement"]["id"] == one.name


# What is kept


def bounded(**limits) -> Board:
    limits = replace(LOCAL, **limits)
    return Board(limits, recorded_run(limits, trace(*ROUNDS, finish="length"), RECORDED_RUN))


def test_what_is_kept_of_a_run_that_goes_on_fits_together():
    going_on = trace(*ROUNDS[:2])
    going_on.rounds.append(ROUNDS[2])  # another thread is about to count it
    going_on.output_ids += ROUNDS[2].emitted
    update = kept_run(RunFeed(going_on)).snapshot(recorded=False)
    assert update["until"] == 2 and update["finish"] is None
    assert len(going_on.rounds) == 3, "the run itself is as it was"


def put(board: Board, size: int, address: str):
    kept = replace(kept_run(RunFeed(trace())), trace=b"t" * size, prompt=b"")
    one = Followed(board.limits, address, kept=kept)
    board.put(one)
    return one


def there(board: Board, ones) -> list:
    return [one for one in ones if one.name in board.entries]


def test_the_longest_unused_run_of_the_address_with_most_is_dropped_first():
    board = bounded(kept_bytes=25)
    first, second = put(board, 10, "a"), put(board, 10, "a")
    assert board.get(first.name) is first
    third = put(board, 10, "a")
    assert there(board, (first, second, third)) == [first, third] and board.get(second.name) is None
    board = bounded(kept_bytes=100)
    modest = put(board, 20, "modest")
    greedy = [put(board, 10, "greedy") for _ in range(60)]
    assert there(board, [modest]) and there(board, greedy) == greedy[-8:]
    others = [put(board, 20, f"other {number}") for number in range(3)]
    assert there(board, (modest, *others)) == [modest, *others] and there(board, greedy) == greedy[-2:]


def test_runs_are_bounded_in_number_and_time(monkeypatch):
    board = bounded(kept_runs=4)
    modest = put(board, 100, "modest")
    greedy = [put(board, 1, "greedy") for _ in range(9)]
    assert there(board, [modest]) and there(board, greedy) == greedy[-3:]
    later = time.monotonic() + board_module.UNUSED_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    last = put(board, 1, "other")
    assert list(board.entries.values()) == [last] and [*board.recorded] == [RECORDED_RUN]


def test_what_nobody_reads_takes_no_more_than_its_share():
    def asks(address: str) -> Followed:
        board.make_room(address)
        one = Followed(board.limits, address)
        board.put(one)
        return one

    board = bounded(uncollected=6, uncollected_of_address=4)
    flood = [asks("flood") for _ in range(4)]
    with refused("unread", kind=Refused):
        asks("flood")
    more = [asks("more") for _ in range(2)]
    modest = asks("modest")
    assert there(board, (*flood, *more, modest)) == [*flood[1:], *more, modest]
    with flood[1].reading():
        asks("flood")


# The routes


def asking(*routes: Route) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(Starlette(routes=routes)), base_url="http://x")


class Site:
    """The routes, asked as a browser does."""

    def __init__(self, board: Board):
        self.queue = RunQueue()
        self.client = asking(*following_routes(board, self.queue, one_file))

    async def get(self, name: str, part: str = "", known: str = "") -> httpx.Response:
        headers = {b"Last-Event-ID": known.encode("latin-1")}
        return await self.client.get(f"{RUNS}/{name}{part}", headers=headers)


@played
async def test_a_run_is_streamed_from_the_last_event_and_then_there_as_a_whole_and_as_a_file():
    board, told = bounded(), Told()
    board.put(told.run)
    site, name = Site(board), told.run.name
    await told.goes_on(*ROUNDS[:3])
    reading = asyncio.create_task(site.get(name, known="2"))
    while not told.run.readers:
        await asyncio.sleep(0.001)
    early = await site.get(name, "/html")
    assert (early.status_code, early.text) == (409, say("keep.goes_on"))
    await told.goes_on(ROUNDS[3])
    await told.ends()
    answer = await reading
    assert answer.headers["content-type"].startswith("text/event-stream")
    retry, *blocks = (block.split("\n") for block in answer.text.strip().split("\n\n"))
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert retry[0].startswith("retry: ") and blocks[-1][0] == "id: 4" and events[-1]["ended"]
    assert events[0]["update"]["since"] == 2
    assert [one["index"] for event in events for one in event["update"]["rounds"]] == [2, 3]
    whole, file, html = [await site.get(name, part) for part in ("/whole", "/trace", "/html")]
    assert output(whole.json()["update"]) == told.trace.text and file.json()["text"] == told.trace.text
    for kind, answer in {"json": file, "html": html}.items():
        assert answer.headers["content-disposition"] == f'attachment; filename="specdemo-seed-7.{kind}"'
    kept = re.search(r'id="kept-run">([\w+/=]*)</script>', html.text)
    of_file, of_page = json.loads(gzip.decompress(b64decode(kept[1]))), whole.json()
    of_page["update"] |= {"whose": f"Recorded run: {of_page['update']['whose']}", "recorded": True}
    assert of_file == of_page, "on another machine and day it is a recorded run"
    assert whole.headers["content-encoding"] == "gzip" and not told.run.readers


@played
async def test_what_is_not_there_is_answered_with_a_sentence():
    site = Site(bounded())
    for part in ("", "/whole", "/trace", "/html"):
        answer = await site.get("f" * 32, part)
        assert (answer.status_code, answer.text) == (404, say("run.gone"))
    assert (await site.client.post(f"{RUNS}/{'f' * 32}/stop")).status_code == 204
    recorded = await site.get(RECORDED_RUN, "/whole")
    assert recorded.json()["notice"]["kind"] == "recorded"
    for place in ("-1", "9" * 5_000, "1.5", "²", "first"):
        answer = await site.get(RECORDED_RUN, known=place)
        assert answer.text.endswith('data: {"ended": true, "stored": true}\n\n'), place


@pytest.mark.parametrize("works", [True, False])
@played
async def test_health(works):
    runs = SimpleNamespace(running="a ticket", waiting=2, thread=SimpleNamespace(is_alive=lambda: works))
    said = await asking(health_route(runs)).get("/health")
    status = "ok" if works else "stopped"
    assert said.json() == {"status": status, "busy": True, "waiting": 2}
    assert said.status_code == (200 if status == "ok" else 503)
