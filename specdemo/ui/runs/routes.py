"""The page's own routes: those by which it follows what it has asked for and opens trace files, and the one
that says whether the server works. Without Gradio.

A run is read from any round on, as server-sent events whose ids are numbers of rounds. So a browser whose
connection was cut goes on by itself, with the header Last-Event-ID.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from hashlib import sha256
from http import HTTPStatus
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specdemo.ui.runs.board import Board, Followed, FollowedMeasurement, FollowedRun, opened_run
from specdemo.ui.runs.guess import Halls
from specdemo.ui.runs.limits import Limits, request_address
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.view.feed import notice
from specdemo.ui.view.kept import COMPRESSED, KeptRun, as_recorded, kept_trace, read_file
from specdemo.ui.view.settings import weights_of
from specdemo.ui.view.texts import unfinished
from specdemo.ui.view.wire import PageMessage
from specdemo.words.catalogue import say, spoken

RUNS = "/specdemo/runs"
HALLS = "/specdemo/halls"
JSON = COMPRESSED | {"Content-Type": "application/json"}
NOT_STORED = {"Cache-Control": "no-store"}
RETRY_MS = 500  # until a browser asks again after its connection was cut


def following_routes(board: Board, queue: RunQueue, one_file: Callable[[bytes, str], str]) -> list[Route]:
    """one_file: makes one HTML file of a run's compressed message and its language."""

    def asked_for(request: Request) -> Followed | None:
        return board.get(request.path_params["name"])

    async def follow(request: Request) -> Response:
        """Answers with server-sent events: messages as JSON, from the round in Last-Event-ID on."""
        one = asked_for(request)
        if one is None:
            return PlainTextResponse(say("run.gone"), HTTPStatus.NOT_FOUND)
        known = request.headers.get("last-event-id", "")
        since = int(known) if known.isdecimal() and len(known) < 10 else 0
        return StreamingResponse(
            _events(one, since, queue), media_type="text/event-stream", headers=NOT_STORED
        )

    async def whole(request: Request) -> Response:
        tag = spoken()
        return await _kept(asked_for(request), lambda kept: Response(kept.messages[tag], headers=JSON))

    async def trace(request: Request) -> Response:
        def file(kept: KeptRun) -> Response:
            return Response(kept.trace, headers=JSON | _saved_as(kept.file_name))

        return await _kept(asked_for(request), file)

    async def html(request: Request) -> Response:
        """A run as one HTML file, when it has ended."""
        one, tag = asked_for(request), spoken()
        if isinstance(one, FollowedRun) and one.feed and not one.feed.ended:
            return PlainTextResponse(say("keep.goes_on"), HTTPStatus.CONFLICT)

        def file(kept: KeptRun) -> Response:
            saved = _saved_as(kept.file_name.replace(".json", ".html"))
            return HTMLResponse(one_file(as_recorded(kept, tag), tag), headers=NOT_STORED | saved)

        return await _kept(one, file)

    async def report(request: Request) -> Response:
        """The page that tells of a measurement."""
        one = asked_for(request)
        if not isinstance(one, FollowedMeasurement) or not one.report:
            return PlainTextResponse(say("run.gone"), HTTPStatus.NOT_FOUND)
        return HTMLResponse(one.report[-1], headers=NOT_STORED | _saved_as("specdemo-advice.html"))

    async def stop(request: Request) -> Response:
        if one := asked_for(request):
            one.stop()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    read = {"": follow, "/whole": whole, "/trace": trace, "/html": html, "/report": report}
    return [
        *(Route(f"{RUNS}/{{name}}{part}", answer, methods=["GET"]) for part, answer in read.items()),
        Route(f"{RUNS}/{{name}}/stop", stop, methods=["POST"]),
    ]


def hall_routes(halls: Halls) -> list[Route]:
    """Opens a hall for a game, and tells its counts to whoever knows its code."""

    async def open_hall(request: Request) -> Response:
        code = halls.open(request.path_params["name"], request_address(request.scope, halls.limits))
        if code is None:
            return JSONResponse({"wrong": say("guess.hall.many")})
        return JSONResponse({"code": code})

    async def counts(request: Request) -> Response:
        # Browsers would log any other status as an error.
        found = halls.counts(request.path_params["name"])
        return JSONResponse(found or {"wrong": say("guess.hall.forgotten")})

    return [
        Route(f"{HALLS}/{{name}}", open_hall, methods=["POST"]),
        Route(f"{HALLS}/{{name}}", counts, methods=["GET"]),
    ]


def health_route(runs: RunQueue) -> Route:
    async def health(request: Request) -> JSONResponse:
        status = "ok" if runs.thread.is_alive() else "stopped"
        answer = {"status": status, "busy": runs.running is not None, "waiting": runs.waiting}
        return JSONResponse(answer, status_code=200 if status == "ok" else 503)

    return Route("/health", health)


def _saved_as(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


async def _kept(one: Followed | None, answer: Callable[[KeptRun], Response]) -> Response:
    kept = await asyncio.to_thread(one.keep) if isinstance(one, FollowedRun) else None
    if kept is None:
        return PlainTextResponse(say("run.gone"), HTTPStatus.NOT_FOUND)
    return await asyncio.to_thread(answer, kept)


async def _events(one: Followed, since: int, queue: RunQueue) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    with one.reading():
        queue.look()  # its turn can come, now that somebody reads it
        async with aclosing(one.news(since)) as told:
            async for news in told:
                yield "id: {}\ndata: {}\n\n".format(*news) if news else ": still here\n\n"


TRACES = "/specdemo/traces"
READERS = 2  # traces that are read at once
OPEN_AGAIN_SECONDS = 2  # s until the page tries again when too much is opened at once


class TraceUploads:
    """Takes the traces that visitors open. The same file, opened by several at once, is read once.

    Nothing that arrives touches the disk or is ever sent out again: what is sent has been read and written
    anew."""

    def __init__(self, models: Models, board: Board, limits: Limits) -> None:
        self.models, self.board, self.limits = models, board, limits
        self.salt = secrets.token_bytes(16)
        self.reading: dict[str, asyncio.Task[dict[str, str]]] = {}  # by the name that the trace will have
        self.readers = asyncio.Semaphore(READERS)
        # A lock for each address, so that one address keeps others waiting for one file at most.
        self.of_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def route(self) -> Route:
        return Route(TRACES, self.answer, methods=["POST"])

    async def answer(self, request: Request) -> Response:
        """Answers when a file has come, within the gate's bounds, with the message that shows it, or with
        what is wrong with it."""
        body, owner = await request.body(), request_address(request.scope, self.limits)
        name = sha256(self.salt + body).hexdigest()
        if not (opened := self.board.get(name)):
            if name not in self.reading:
                self.reading[name] = asyncio.create_task(self._read(name, body, owner))
            if wrong := await asyncio.shield(self.reading[name]):  # others may wait for it, too
                # Browsers would log any other status as an error.
                return JSONResponse({"wrong": wrong[spoken()]})
            opened = self.board.get(name)
        if not (opened and opened.kept):
            again = {"Retry-After": str(OPEN_AGAIN_SECONDS)}
            return PlainTextResponse(say("run.too_many_opened"), 429, again)
        return Response(opened.kept.messages[spoken()], headers=JSON)

    async def _read(self, name: str, body: bytes, owner: str) -> dict[str, str]:
        """Puts the trace in the file on the board. Returns, by language, what is wrong with the file."""
        try:
            async with self.of_address.setdefault(owner, asyncio.Semaphore(READERS)), self.readers:
                one = await read_file(body)
            if one.head is None:
                return one.wrong
            trace, known = one.head, one.head.pair.name in self.models.names
            usual = self.models.loaded(Choice(trace.pair.name)) if known else None

            def rest() -> PageMessage:
                return {"name": name, "notice": notice("recorded", unfinished(trace))}

            weights = weights_of(trace.pair, usual and usual.info) if known else None
            tokenizer = getattr(usual, "tokenizer", None)
            kept = await asyncio.to_thread(kept_trace, one, rest, tokenizer, weights)
            self.board.put(opened_run(self.limits, kept, name, owner))
            return {}
        finally:
            del self.reading[name]
