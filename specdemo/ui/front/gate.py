"""The gate in front of Gradio and of the page's own routes: what a request may ask for at all, how large it
may be, and in which language it is answered. What is not listed here is not there.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.front.checks import SESSION, Hosts, NotLetIn, check_for_tools, read_object
from specdemo.ui.runs.limits import Holdings, Limits, request_address
from specdemo.words.catalogue import LANGUAGES, speaking

OWN_FRAMES = "'self' http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"
SPACES_FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
REDUCED = b"frame=1"  # in a query: the page without anything to ask with, see page/serve.py
RETRY_AFTER = 2  # s until it is worth another try when too much arrives
READ_METHODS = ("GET", "HEAD")


def headers_of(limits: Limits, reduced: bool = False) -> list[tuple[bytes, bytes]]:
    """The headers of every response. reduced: the request is for the reduced page, which any page may frame
    if it is hosted: a click that its visitor is tricked into can start nothing there."""
    frames = OWN_FRAMES if not limits.hosted else "*" if reduced else SPACES_FRAMES
    return [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"content-security-policy", f"frame-ancestors {frames}".encode()),
    ]


class Bodies:
    """Reads the bodies of requests. most: bytes of one. at_once: how many of that size may arrive at once,
    which the addresses share. seconds: how long one may take to arrive."""

    def __init__(self, most: int, at_once: int, seconds: float) -> None:
        self.most, self.together, self.seconds = most, at_once * most, seconds
        self.arriving = Holdings()  # bytes

    @asynccontextmanager
    async def held(self, scope: Scope, receive: Receive, address: str) -> AsyncIterator[bytes]:
        """Reads the request's body. Its bytes count as arriving until this context is left."""
        if int(Headers(scope=scope).get("content-length", "0")) > self.most:  # h11 lets in no others
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    async for part in Request(scope, receive).stream():
                        body += part
                        self._take(address, len(part), len(body))
            except TimeoutError:
                sentence = "The request's body took too long to arrive: send it again."
                close = {"connection": "close"}  # the rest of it may still come
                raise NotLetIn(408, sentence, close) from None
            except ClientDisconnect:
                raise NotLetIn(400, "The request ended before its body did.") from None
            yield bytes(body)
        finally:
            self.arriving.give_back(address, len(body))

    def _take(self, address: str, more: int, size: int) -> None:
        has_room = self.arriving.take(address, more, self.together)
        if size > self.most:
            raise self._too_large()
        if not has_room:
            sentence = f"Too many requests arrive at once: busy, try again in about {RETRY_AFTER} s."
            raise NotLetIn(429, sentence, {"retry-after": str(RETRY_AFTER)})

    def _too_large(self) -> NotLetIn:
        size = f"{self.most // 2**20} MiB" if self.most >= 2**20 else f"{self.most // 1024} KiB"
        return NotLetIn(413, f"The request is too large: at most {size} are allowed.")


def _again(body: bytes, receive: Receive) -> Receive:
    """What the app behind the gate reads the body from."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return whole.pop() if whole else await receive()

    return receive_again


class Gate:
    """The gate as ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.bodies = Bodies(limits.body_bytes, limits.bodies_arriving, limits.body_seconds)
        traces = Bodies(limits.trace_bytes, limits.traces_arriving, limits.trace_seconds)
        body, trace = partial(self._with_body, self.bodies), partial(self._with_body, traces)
        self.making = asyncio.Semaphore(limits.views_made)
        session = SESSION.pattern
        # The paths that are open, with their methods and what lets a request in.
        doors: tuple[tuple[str, tuple[str, ...], ASGIApp], ...] = (
            (r"/|/config", READ_METHODS, self._view),
            (r"/embed", READ_METHODS, app),  # answers with an address that has the same query
            (r"/health|/theme\.css|/robots\.txt|/favicon\.ico|/manifest\.json", READ_METHODS, self._plain),
            # Gradio makes file names of these, which are bounded.
            (r"/(assets|static)(/[\w@-][\w.@-]{0,99}){1,9}", READ_METHODS, self._plain),
            (r"/specdemo/[0-9a-f]+/\w+/[\w.-]+", READ_METHODS, self._plain),
            (r"/gradio_api/(info|openapi\.json|startup-events)", READ_METHODS, self._plain),
            (rf"/gradio_api/heartbeat/{session}", ("GET",), self._plain),
            (r"/gradio_api/queue/data", ("GET",), app),
            (rf"/gradio_api/call/(v2/)?\w{{1,64}}/{session}", ("GET",), self._plain),
            (r"/gradio_api/(call/(v2/)?\w{1,64}|queue/join|cancel|reset)", ("POST",), body),
            (r"/gradio_api/mcp(/http|/schema)?/?", (*READ_METHODS, "POST"), self._tools),
            (r"/specdemo/runs(/\w{1,64}/stop)?", ("POST",), body),
            (r"/specdemo/halls/([0-9a-f]{16}|exercises)/open|/specdemo/halls/[0-9a-f]{32}", ("POST",), body),
            (r"/specdemo/runs/\w{1,64}(/whole|/trace|/html|/report)?", ("GET",), self._plain),
            (r"/specdemo/halls/[0-9a-f]{32}", ("GET",), self._plain),
            (r"/specdemo/traces", ("POST",), trace),
        )
        self.doors = [(re.compile(path, re.ASCII), methods, door) for path, methods, door in doors]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # the server speaks nothing but HTTP
            await self.app(scope, receive, send)
            return
        path = path_of(scope)
        is_reduced = REDUCED in scope["query_string"].split(b"&") or path == "/embed"
        headers = headers_of(self.limits, is_reduced)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        try:
            with speaking(language_asked(scope) if OF_THE_PAGE.fullmatch(path) else "en"):
                await self._door(path, scope)(scope, receive, send_with_headers)
        except NotLetIn as refused:
            await _answer(refused)(scope, receive, send_with_headers)

    def _door(self, path: str, scope: Scope) -> ASGIApp:
        """What lets the request in."""
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-gradio-server"]
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
            raise NotLetIn(status, f"Only {methods} work here.", {"allow": methods})
        return doors[scope["method"]]

    async def _plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["query_string"] = b""  # the page's scripts read theirs in the browser
        await self.app(scope, receive, send)

    async def _view(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a view of the page. The view waits for its turn to be made, and not until others have been
        read."""
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        async with self.making:
            await self._plain(scope, receive, keep)
        for message in answer:
            await send(message)

    async def _with_body(self, bodies: Bodies, scope: Scope, receive: Receive, send: Send) -> None:
        async with bodies.held(scope, receive, request_address(scope, self.limits)) as body:
            await self.app(scope, _again(body, receive), send)

    async def _tools(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A stream would be kept for as long as the caller likes. The server's older transport (sse, messages)
        # has no door for the same reason.
        accepted = ",".join(Headers(scope=scope).getlist("accept"))
        if scope["method"] != "POST" and "text/event-stream" in accepted:
            raise NotLetIn(405, "This server answers POST requests only.", {"allow": "POST"})
        async with self.bodies.held(scope, receive, request_address(scope, self.limits)) as body:
            if body:
                check_for_tools(read_object(body))
        await self.app(scope, _again(body, receive), send)


def with_host(app: ASGIApp, limits: Limits, hosts: Hosts) -> ASGIApp:
    """Lets in only what `hosts` does. Gradio's own layers in front of the gate fail without a proper Host."""

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        door = app
        try:
            if scope["type"] == "http":
                hosts.check(Headers(scope=scope))
        except NotLetIn as refused:
            door = _answer(refused)
            door.raw_headers += headers_of(limits)
        await door(scope, receive, send)

    return enter


def _answer(refused: NotLetIn) -> Response:
    said = "" if refused.status == 204 else json.dumps({"detail": refused.sentence})
    return Response(said, refused.status, refused.headers, "application/json")


# The paths of what a page asks for by itself, and other programs do not call. Those are answered in English.
OF_THE_PAGE = re.compile(r"/|/config|/specdemo/(runs|traces|halls)(/.*)?")


def language_asked(scope: Scope) -> str:
    """The language that is asked for, one of LANGUAGES: that of `lang` in the query, else that of `lang` in
    the address in Referer, else the first known one of Accept-Language, which browsers send in order, else
    the first. A value that is not one of LANGUAGES, or no language at all, asks for nothing."""
    headers = Headers(scope=scope)
    for asked in (scope["query_string"].decode("latin-1"), _query_of(headers.get("referer", ""))):
        if found := _known(parse_qs(asked).get("lang", [""])[0]):
            return found
    accepted = headers.get("accept-language", "").split(",")
    return next(filter(None, map(_known, accepted)), next(iter(LANGUAGES)))


def _known(tag: str) -> str | None:
    """The language in LANGUAGES that a tag names ("de-AT" is German), or None."""
    main = re.split("[-;]", tag.strip().lower())[0]
    return main if main in LANGUAGES else None


def _query_of(address: str) -> str:
    try:
        return urlsplit(address).query
    except ValueError:  # not an address
        return ""


def path_of(scope: Scope) -> str:
    """The request's path without the prefix under which a proxy serves the page."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path
