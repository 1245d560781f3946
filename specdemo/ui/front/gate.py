"""The gate in front of Gradio and of the page's own routes: what a request may ask for at all, and how large
it may be. What is not listed here is not there.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.front.checks import (
    SESSION,
    Hosts,
    NotLetIn,
    check_no_file,
    check_unicode,
    read_object,
)
from specdemo.ui.front.language import path_of
from specdemo.ui.runs.limits import Holdings, Limits, request_address

OWN_FRAMES = "'self' http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"
SPACES_FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"


REDUCED = b"frame=1"  # in a query: the page without anything to ask with, see page/serve.py


def headers_of(limits: Limits, reduced: bool = False) -> list[tuple[bytes, bytes]]:
    """The headers of every response. reduced: the request is for the reduced page, which any page may frame
    if it is hosted: a click that its visitor is tricked into can start nothing there."""
    frames = OWN_FRAMES if not limits.hosted else "*" if reduced else SPACES_FRAMES
    return [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"content-security-policy", f"frame-ancestors {frames}".encode()),
    ]


BODY_SECONDS, FILE_SECONDS = 30, 60  # that a body and a trace file may take to arrive
BODIES_ARRIVING = 16  # times the largest body: what may arrive at once
FILES_ARRIVING = 4  # times the largest trace file: what may arrive or wait to be read at once
RETRY_AFTER = 2  # s until it is worth another try when too much arrives


@dataclass
class Inside:
    """One request, as the app behind the gate gets it."""

    scope: Scope
    receive: Receive
    send: Send


Door = Callable[[Inside], Awaitable[None]]


class Bodies:
    """Reads the bodies of requests. most: bytes of one. at_once: how many of that size may arrive at once,
    which the addresses share. seconds: how long one may take to arrive."""

    def __init__(self, most: int, at_once: int, seconds: float) -> None:
        self.most, self.together, self.seconds = most, at_once * most, seconds
        self.arriving = Holdings()  # bytes

    @asynccontextmanager
    async def held(self, inside: Inside, address: str) -> AsyncIterator[bytes]:
        """Reads the request's body, which the app behind the gate then reads again. Its bytes count as
        arriving until this context is left."""
        announced = dict(inside.scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > self.most:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    async for part in Request(inside.scope, inside.receive).stream():
                        body += part
                        self._take(address, len(part), len(body))
            except TimeoutError:
                raise NotLetIn(408, "The request's body took too long to arrive: send it again.") from None
            except ClientDisconnect:
                raise NotLetIn(400, "The request ended before its body did.") from None
            whole = bytes(body)
            inside.receive = _again(whole, inside.receive)
            yield whole
        finally:
            self.arriving.give_back(address, len(body))

    def _take(self, address: str, more: int, size: int) -> None:
        has_room = self.arriving.take(address, more, self.together)
        if size > self.most:
            raise self._too_large()
        if not has_room:
            sentence = f"Too many requests arrive at once: busy, try again in about {RETRY_AFTER} s."
            raise NotLetIn(429, sentence, RETRY_AFTER)

    def _too_large(self) -> NotLetIn:
        size = f"{self.most // 2**20} MiB" if self.most >= 2**20 else f"{self.most // 1024} KiB"
        return NotLetIn(413, f"The request is too large: at most {size} are allowed.")


def _again(body: bytes, receive: Receive) -> Receive:
    read = False

    async def receive_again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


READ_METHODS = ("GET", "HEAD")
MAKING = 4  # views of the page that Gradio makes at once, each from a copy of its whole config


class Gate:
    """The gate as ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.bodies = Bodies(limits.body_bytes, BODIES_ARRIVING, BODY_SECONDS)
        body = self._reading(self.bodies)
        trace = self._reading(Bodies(limits.trace_bytes, FILES_ARRIVING, FILE_SECONDS))
        self.making = asyncio.Semaphore(MAKING)
        session = SESSION.pattern
        # The paths that are open, with their methods and what lets a request in.
        doors: tuple[tuple[str, tuple[str, ...], Door], ...] = (
            (r"/|/config", READ_METHODS, self._view),
            (r"/embed", READ_METHODS, self._let_in),  # answers with an address that has the same query
            (r"/theme\.css|/robots\.txt|/favicon\.ico|/manifest\.json", READ_METHODS, self._plain),
            # Gradio makes file names of these, which are bounded.
            (r"/(assets|static)(/[\w@-][\w.@-]{0,99}){1,9}", READ_METHODS, self._plain),
            (r"/specdemo/[0-9a-f]+/\w+/[\w.-]+", READ_METHODS, self._plain),
            (r"/health", READ_METHODS, self._plain),
            (r"/gradio_api/(info|openapi\.json|startup-events)", READ_METHODS, self._plain),
            (rf"/gradio_api/heartbeat/{session}", ("GET",), self._plain),
            (r"/gradio_api/queue/data", ("GET",), self._let_in),
            (rf"/gradio_api/call/(v2/)?\w{{1,64}}/{session}", ("GET",), self._plain),
            (r"/gradio_api/(call/(v2/)?\w{1,64}|queue/join|cancel|reset)", ("POST",), body),
            (r"/gradio_api/mcp(/http|/schema)?/?", (*READ_METHODS, "POST"), self._tools),
            (r"/specdemo/runs(/\w{1,64}/stop)?", ("POST",), body),
            (r"/specdemo/halls/[0-9a-f]{16}", ("POST",), body),
            (r"/specdemo/runs/\w{1,64}(/whole|/trace|/html|/report)?", ("GET",), self._plain),
            (r"/specdemo/halls/[0-9a-f]{32}", ("GET",), self._plain),
            (r"/specdemo/traces", ("POST",), trace),
        )
        self.doors = [(re.compile(path, re.ASCII), methods, door) for path, methods, door in doors]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1000})
            return

        is_reduced = REDUCED in scope["query_string"].split(b"&") or path_of(scope) == "/embed"
        headers = headers_of(self.limits, is_reduced)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        inside = Inside(scope, receive, send_with_headers)
        try:
            await self._enter(inside)
        except NotLetIn as refused:
            await _refuse(inside, refused)

    async def _enter(self, inside: Inside) -> None:
        scope = inside.scope
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-gradio-server"]
        path = path_of(scope)
        doors = {
            method: door
            for pattern, methods, door in self.doors
            if pattern.fullmatch(path)
            for method in methods
        }
        if not doors:
            raise NotLetIn(404, "There is nothing here.")
        if scope["method"] not in doors:
            methods = ", ".join((*doors, "OPTIONS"))
            status = 204 if scope["method"] == "OPTIONS" else 405
            raise NotLetIn(status, f"Only {methods} work here.", allow=methods)
        await doors[scope["method"]](inside)

    # What lets a request in.

    async def _let_in(self, inside: Inside) -> None:
        await self.app(inside.scope, inside.receive, inside.send)

    async def _plain(self, inside: Inside) -> None:
        inside.scope["query_string"] = b""  # the page's scripts read theirs in the browser
        await self._let_in(inside)

    async def _view(self, inside: Inside) -> None:
        """Answers a view of the page. The view waits for its turn to be made, and not until others have been
        read."""
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        send, inside.send = inside.send, keep
        async with self.making:
            await self._plain(inside)
        for message in answer:
            await send(message)

    def _reading(self, bodies: Bodies) -> Door:
        async def enter(inside: Inside) -> None:
            async with bodies.held(inside, self._address(inside)):
                await self._let_in(inside)

        return enter

    async def _tools(self, inside: Inside) -> None:
        if inside.scope["method"] != "POST" and _listens(inside.scope):
            raise NotLetIn(405, "This server answers POST requests only.", allow="POST")
        async with self.bodies.held(inside, self._address(inside)) as body:
            if body:
                asked = read_object(body)
                check_unicode(asked)
                check_no_file(asked)
        await self._let_in(inside)

    def _address(self, inside: Inside) -> str:
        return request_address(inside.scope, self.limits)


def with_host(app: ASGIApp, limits: Limits, hosts: Hosts) -> ASGIApp:
    """Lets in only what `hosts` does. Gradio's own layers in front of the gate fail without a proper Host."""

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                hosts.check(scope["headers"])
        except NotLetIn as refused:
            return await _refuse(Inside(scope, receive, send), refused, more=headers_of(limits))
        await app(scope, receive, send)

    return enter


def _listens(scope: Scope) -> bool:
    """Whether the request asks the tools' server for a stream, which would be kept for as long as the caller
    likes. The server's older transport (sse, messages) has no door for the same reason."""
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


async def _refuse(inside: Inside, refused: NotLetIn, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    said = "" if refused.status == 204 else json.dumps({"detail": refused.sentence})
    answer = Response(said, refused.status, refused.headers, "application/json")
    answer.raw_headers += more
    await answer(inside.scope, inside.receive, inside.send)
