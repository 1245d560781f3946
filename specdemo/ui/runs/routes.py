"""The page's own routes: those by which it follows what it has asked for and opens trace files, and the one
that says whether the server works. Without Gradio.

A run is read from any round on, as server-sent events whose ids are numbers of rounds. So a browser whose
connection was cut goes on by itself, with the header Last-Event-ID.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from hashlib import sha256
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import segno
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specdemo.events.trace import Trace
from specdemo.ui.runs.board import Board, Followed, FollowedMeasurement
from specdemo.ui.runs.guess import Halls
from specdemo.ui.runs.limits import LOOPBACK, Limits, request_address
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.view.kept import COMPRESSED, KeptRun, opened, values_of_trace
from specdemo.ui.view.settings import Values, weights_of
from specdemo.words.catalogue import say, spoken

RUNS = "/specdemo/runs"
HALLS = "/specdemo/halls"
JSON = COMPRESSED | {"Content-Type": "application/json"}
NOT_STORED = {"Cache-Control": "no-store"}
RETRY_MS = 500  # until a browser asks again after its connection was cut


class Desk:
    """Where files of runs are read, which takes time and memory: one at a time. Each address waits there with
    one, so that it keeps others waiting for one at most."""

    def __init__(self) -> None:
        self.reading = asyncio.Lock()
        self.of_address: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        async with self.of_address.setdefault(address, asyncio.Lock()), self.reading:
            yield


def following_routes(board: Board, queue: RunQueue, one_file: Callable[[bytes, str], str]) -> list[Route]:
    """one_file: makes one HTML file of a run's compressed message and its language."""
    desk = Desk()

    def asked_for(request: Request) -> Followed | None:
        return board.get(request.path_params["name"])

    async def kept_of(request: Request, answer: Callable[[KeptRun], Response]) -> Response:
        one = asked_for(request)
        async with desk.turn(request_address(request.scope, board.limits)):
            kept = await asyncio.to_thread(one.keep) if one else None
            if kept is None:
                return PlainTextResponse(say("run.gone"), HTTPStatus.NOT_FOUND)
            return await asyncio.to_thread(answer, kept)

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
        return await kept_of(request, lambda kept: Response(kept.message(), headers=JSON))

    async def trace(request: Request) -> Response:
        def file(kept: KeptRun) -> Response:
            return Response(kept.trace, headers=JSON | _saved_as(kept.file_name))

        return await kept_of(request, file)

    async def html(request: Request) -> Response:
        """A run as one HTML file, when it has ended."""
        one = asked_for(request)
        if one and one.feed and not one.feed.ended:
            return PlainTextResponse(say("keep.goes_on"), HTTPStatus.CONFLICT)

        def file(kept: KeptRun) -> Response:
            saved = _saved_as(kept.file_name.replace(".json", ".html"))
            return HTMLResponse(one_file(kept.as_recorded(), spoken()), headers=NOT_STORED | saved)

        return await kept_of(request, file)

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
    """Opens a hall for a game or for exercises, and tells its counts to whoever knows its code."""

    async def open_hall(request: Request) -> Response:
        """The body: the page's address for the hall, to which its code is added."""
        try:
            page = urlsplit((await request.body()).decode())
            if page.scheme not in ("http", "https") or not page.hostname:
                raise ValueError(page.scheme)
            if halls.reached and page.hostname in LOOPBACK:
                page = page._replace(netloc=halls.reached + (f":{page.port}" if page.port else ""))
        except ValueError:
            return JSONResponse({"wrong": "The body must be the address of the page."})
        code = halls.open(request.path_params["name"], request_address(request.scope, halls.limits))
        if (hall := halls.get(code or "")) is None:
            return JSONResponse({"wrong": say("guess.hall.many")})
        link = f"{page.geturl()}&hall={code}"
        picture = ""  # a link can be too long for one
        with suppress(segno.DataOverflowError):
            picture = segno.make(link).svg_data_uri(scale=6, border=2)
        return JSONResponse({"code": code, "key": hall.key, "link": link, "picture": picture})

    async def tell_hall(request: Request) -> Response:
        """The lecturer asks an exercise, or a page answers it."""
        try:
            wrong = halls.take(request.path_params["name"], await request.body())
        except ValidationError as error:
            first = error.errors()[0]
            wrong = ".".join(map(str, first["loc"])) + f": {first['msg']}"
        return JSONResponse({"wrong": wrong} if wrong else {})

    async def counts(request: Request) -> Response:
        # Browsers would log any other status as an error.
        found = halls.counts(request.path_params["name"])
        return JSONResponse(found or {"wrong": say("guess.hall.forgotten")})

    return [
        Route(f"{HALLS}/{{name}}/open", open_hall, methods=["POST"]),
        Route(f"{HALLS}/{{name}}", tell_hall, methods=["POST"]),
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


async def _events(one: Followed, since: int, queue: RunQueue) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    with one.reading():
        queue.look()  # its turn can come, now that somebody reads it
        async with aclosing(one.news(since)) as told:
            async for news in told:
                yield "id: {}\ndata: {}\n\n".format(*news) if news else ": still here\n\n"


TRACES = "/specdemo/traces"


def trace_route(models: Models, board: Board, limits: Limits) -> Route:
    """Takes the traces that visitors open. Nothing that arrives touches the disk or is ever sent out again:
    what is sent has been read and written anew."""
    salt, desk = secrets.token_bytes(16), Desk()

    async def answer(request: Request) -> Response:
        """Answers when a file has come, within the gate's bounds, with the message that shows it, or with
        what is wrong with it."""
        body, owner = await request.body(), request_address(request.scope, limits)
        name = sha256(salt + body).hexdigest()
        async with desk.turn(owner):
            # Several can open the same file at once.
            one = board.get(name) or await read(name, body, owner)
            if isinstance(one, str):  # browsers would log any other status as an error
                return JSONResponse({"wrong": one})
            return Response(await asyncio.to_thread(one.kept.message), headers=JSON)

    async def read(name: str, body: bytes, owner: str) -> Followed | str:
        """The trace in the file, which is put on the board; or what is wrong with the file."""
        if isinstance(kept := await asyncio.to_thread(opened, body, name, beside), str):
            return kept
        board.put(one := Followed(limits, owner, name, kept))
        return one

    def beside(trace: Trace) -> tuple[Any, Values]:
        known = trace.pair.name in models.names
        usual = models.loaded(Choice(trace.pair.name)) if known else None
        weights = weights_of(trace.pair, usual and usual.info) if known else None
        return usual and usual.texts_of, values_of_trace(trace, weights)

    return Route(TRACES, answer, methods=["POST"])
