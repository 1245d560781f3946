"""The gate in front of Gradio: what a request may ask for at all, how large it may be, and how many may wait.

What is not listed here is not there. Without Gradio: functions.py and gradio_queue.py know its functions and
its sessions.
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.bodies import Bodies, Inside, check_announced
from specdemo.ui.checks import (
    SESSION,
    Function,
    NotLetIn,
    check_address,
    check_named,
    check_rest,
    check_text,
    check_values,
    event_in,
    number_in,
    read_object,
    session_asked_for,
    session_in,
)
from specdemo.ui.gradio_queue import Visits, address_in
from specdemo.ui.headers import headers_of
from specdemo.ui.limits import Limits

Entry = Literal[
    "plain", "beat", "listen", "join", "call", "named", "run", "cancel", "reset", "raw", "tools", "trace"
]


@dataclass(frozen=True)
class Door:
    """A path that is open, with its methods. entry: what is checked there."""

    path: str
    methods: tuple[str, ...]
    entry: Entry = "plain"


READ = ("GET", "HEAD")
NAME = r"(?P<name>\w{1,64})"
DOORS = (
    Door(r"/|/config|/theme\.css|/robots\.txt|/favicon\.ico|/manifest\.json", READ),
    Door(r"/(assets|static)(/[\w@-][\w.@-]*)+", READ),
    Door(r"/specdemo/[0-9a-f]+/[\w.-]+", READ),
    Door(r"/health|/openapi\.json", READ),
    Door(r"/gradio_api/(info|startup-events)", READ),
    Door(rf"/gradio_api/heartbeat/(?P<session>{SESSION.pattern})", ("GET",), "beat"),
    Door(r"/gradio_api/queue/data", ("GET",), "listen"),
    Door(rf"/gradio_api/call/(v2/)?{NAME}/(?P<event>{SESSION.pattern})", ("GET",), "listen"),
    Door(r"/gradio_api/queue/join", ("POST",), "join"),
    Door(r"/gradio_api/run/predict", ("POST",), "run"),
    Door(rf"/gradio_api/call/{NAME}", ("POST",), "call"),
    Door(rf"/gradio_api/call/v2/{NAME}", ("POST",), "named"),
    Door(r"/gradio_api/cancel", ("POST",), "cancel"),
    Door(r"/gradio_api/reset", ("POST",), "reset"),
    Door(r"/gradio_api/mcp(/[\w-]*)*", ("GET", "HEAD", "DELETE"), "raw"),
    Door(r"/gradio_api/mcp(/[\w-]*)*", ("POST",), "tools"),
    Door(r"/specdemo/trace", ("POST",), "trace"),
    Door(r"/specdemo/trace", ("GET",), "raw"),
)
PATTERNS = tuple((re.compile(door.path, re.ASCII), door) for door in DOORS)


class Gate:
    """ASGI middleware. visits: of the server behind it."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        visits: Visits,
        functions: dict[int, Function],
        triggers: Collection[int],
    ) -> None:
        self.app, self.limits, self.visits = app, limits, visits
        self.functions, self.triggers = functions, triggers
        self.bodies = Bodies(limits)
        self.named = {one.name: one for one in functions.values() if not one.private}
        self.headers = [(name.encode(), value.encode()) for name, value in headers_of(limits).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1000})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        try:
            await self._enter(scope, receive, send_with_headers)
        except NotLetIn as refused:
            await _answer(send_with_headers, refused)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-gradio-server"]
        check_address(scope["path"], scope["headers"])
        doors = _doors_at(_path(scope))
        if scope["method"] not in doors:
            status = 204 if scope["method"] == "OPTIONS" else 405
            methods = ", ".join((*doors, "OPTIONS"))
            await _answer(
                send, NotLetIn(status, f"Only {methods} work here."), [(b"allow", methods.encode())]
            )
            return
        door, found = doors[scope["method"]]
        inside = Inside(scope, receive, send)
        match door.entry:
            case "plain":
                scope["query_string"] = b""  # the page's scripts read theirs in the browser
                await self.app(scope, receive, send)
            case "beat":
                with self.visits.beating(found["session"]):
                    await self.app(scope, receive, send)
            case "listen":
                await self._listen(inside, found.groupdict().get("event"))
            case "raw":
                await self.bodies.read(inside, address_in(scope, self.limits))
                await self.app(scope, inside.receive, send)
            case "tools":
                if body := await self.bodies.read(inside, address_in(scope, self.limits)):
                    check_text(read_object(body))
                await self.app(scope, inside.receive, send)
            case "trace":  # the desk reads it, and bounds what arrives there
                check_announced(scope, self.limits.trace_bytes)
                await self.app(scope, receive, send)
            case _:
                await self._post(inside, door.entry, found.groupdict().get("name", ""))

    async def _listen(self, inside: Inside, event: str | None) -> None:
        if event is None:
            session = session_asked_for(inside.scope["query_string"])
            if not (SESSION.fullmatch(session) and self.visits.can_listen(session)):
                raise NotLetIn(404, "There is nothing to read for this session.")
        else:
            session = self.visits.session_of(event)
            if session is None or not self.visits.can_listen(session):
                raise NotLetIn(404, "There is no such event, or its answer has been read or dropped.")
        at_the_end = False

        async def send(message: Message) -> None:
            nonlocal at_the_end
            await inside.send(message)
            at_the_end = message["type"] == "http.response.body" and not message.get("more_body")

        self.visits.listen(session)
        try:
            await self.app(inside.scope, inside.receive, send)
        finally:
            await self.visits.leave(session, at_the_end)

    async def _post(self, inside: Inside, entry: Entry, name: str) -> None:
        """A request with a JSON body."""
        if entry in ("call", "named") and name not in self.named:
            raise NotLetIn(404, f"There is no endpoint of this name; there are {', '.join(self.named)}.")
        address = address_in(inside.scope, self.limits)
        body = read_object(await self.bodies.read(inside, address))
        if entry == "run":
            function = self._page_function(body, direct=True)
            await self._admit_page(function, body, address)
            await self.app(inside.scope, inside.receive, _sentences_as_400(inside.send))
        elif entry == "cancel":
            event_in(body)
            number_in(body, "fn_index")
            if session_in(body) is None:
                raise NotLetIn(400, "session_hash is missing.")
            await self.app(inside.scope, inside.receive, inside.send)
        elif entry == "reset":
            event_in(body)
            await self.app(inside.scope, inside.receive, inside.send)
        else:
            session = session_in(body) if entry != "named" else None
            if entry == "join":
                function = self._page_function(body, direct=False)
            elif entry == "call":
                function = self.named[name]
                check_values(body.get("data"), function.fields)
            else:
                function = self.named[name]
                check_named(body, function.fields)
            async with self.visits.admitted(session, address):
                await self._admit_page(function, body, address)
                await self.app(inside.scope, inside.receive, inside.send)

    def _page_function(self, body: dict[str, Any], direct: bool) -> Function:
        """The function that a page asks for."""
        if session_in(body) is None:
            raise NotLetIn(400, "session_hash is missing.")
        function = self.functions.get(number_in(body, "fn_index"))
        if function is None or function.direct != direct:
            raise NotLetIn(404, "There is no function of this number here.")
        check_values(body.get("data"), function.fields)
        check_rest(body, self.triggers)
        return function

    async def _admit_page(self, function: Function, body: dict[str, Any], address: str) -> None:
        session = session_in(body)
        if function.private and session:
            await self.visits.admit_page(session, address)


def with_host(app: ASGIApp, limits: Limits) -> ASGIApp:
    """Lets in only requests with the header Host, without which a layer of Gradio's in front of the gate
    fails."""
    headers = [(name.encode(), value.encode()) for name, value in headers_of(limits).items()]

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and all(name != b"host" for name, _ in scope["headers"]):
            await _answer(send, NotLetIn(400, "The header host is missing."), headers)
        else:
            await app(scope, receive, send)

    return enter


def _path(scope: Scope) -> str:
    """Without the prefix under which a proxy serves the page."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path


def _doors_at(path: str) -> dict[str, tuple[Door, re.Match[str]]]:
    """What is open at a path, by method."""
    doors = {
        method: (door, found)
        for pattern, door in PATTERNS
        if (found := pattern.fullmatch(path))
        for method in door.methods
    }
    if not doors:
        raise NotLetIn(404, "There is nothing here.")
    return doors


def _sentences_as_400(send: Send) -> Callable[[Message], Awaitable[None]]:
    """Gradio answers 500 whatever goes wrong in a function. Where it tells a sentence, the visitor's request
    was wrong."""
    held: list[Message] = []

    async def send_later(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500:
            held.append(message)
            return
        if held:
            start = held.pop()
            if _tells_a_sentence(message.get("body", b"")):
                start["status"] = 400
            await send(start)
        await send(message)

    return send_later


def _tells_a_sentence(body: bytes) -> bool:
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and isinstance(answer.get("error"), str)


async def _answer(send: Send, refused: NotLetIn, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = b"" if refused.status == 204 else json.dumps({"detail": refused.sentence}).encode()
    headers = [*(headers or ()), (b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/json"))
    if refused.status == 408:  # the rest of the body may still come
        headers.append((b"connection", b"close"))
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
