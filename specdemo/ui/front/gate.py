"""The gate in front of Gradio: what a request may ask for at all, how large it may be, and how many may wait;
and what is written into its answers.

What is not listed here is not there. gradio.py knows its functions, and visits.py its sessions.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.front.checks import (
    SESSION,
    Function,
    Hosts,
    NotLetIn,
    check_address,
    check_named,
    check_no_file,
    check_rest,
    check_unicode,
    check_values,
    name_in,
    number_in,
    read_object,
    session_asked_for,
)
from specdemo.ui.front.language import path_of
from specdemo.ui.front.visits import Visits
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


class Bodies:
    """Reads the bodies of requests. most: bytes of one. at_once: how many of that size may arrive at once,
    which the addresses share. seconds: how long one may take to arrive."""

    def __init__(self, most: int, at_once: int, seconds: float) -> None:
        self.most, self.together, self.seconds = most, at_once * most, seconds
        self.arriving = Holdings()  # bytes

    async def read(self, inside: Inside, address: str) -> bytes:
        """The request's body, which the app behind the gate then reads again."""
        async with self.held(inside, address) as body:
            return body

    @asynccontextmanager
    async def held(self, inside: Inside, address: str) -> AsyncIterator[bytes]:
        """Reads the body as `read` does; its bytes count as arriving until this context is left."""
        announced = dict(inside.scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > self.most:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    while await self._arrive(inside, address, body):
                        pass
            except TimeoutError:
                raise NotLetIn(408, "The request's body took too long to arrive: send it again.") from None
            whole = bytes(body)
            inside.receive = _again(whole, inside.receive)
            yield whole
        finally:
            self.arriving.give_back(address, len(body))

    async def _arrive(self, inside: Inside, address: str, body: bytearray) -> bool:
        """Adds what comes next to the body. Returns whether there is more of it."""
        message = await inside.receive()
        if message["type"] == "http.disconnect":
            raise NotLetIn(400, "The request ended before its body did.")
        part = message.get("body", b"")
        body += part
        has_room = self.arriving.take(address, len(part), self.together)
        if len(body) > self.most:
            raise self._too_large()
        if not has_room:
            sentence = f"Too many requests arrive at once: busy, try again in about {RETRY_AFTER} s."
            raise NotLetIn(429, sentence, RETRY_AFTER)
        return message.get("more_body", False)

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


Checked = Literal[
    "view",
    "embed",
    "plain",
    "listen",
    "join",
    "call",
    "named",
    "run",
    "cancel",
    "reset",
    "raw",
    "ask",
    "tools",
    "trace",
]


@dataclass(frozen=True)
class Door:
    """A path that is open, with its methods. entry: what is checked there."""

    path: str
    methods: tuple[str, ...]
    entry: Checked = "plain"


READ_METHODS = ("GET", "HEAD")
FUNCTION_NAME = r"(?P<name>\w{1,64})"
MAKING = 4  # views of the page that Gradio makes at once, each from a copy of its whole config
DOORS = (
    Door(r"/|/config", READ_METHODS, "view"),
    Door(r"/embed", READ_METHODS, "embed"),
    Door(r"/theme\.css|/robots\.txt|/favicon\.ico|/manifest\.json", READ_METHODS),
    Door(r"/(assets|static)(/[\w@-][\w.@-]*)+", READ_METHODS),
    Door(r"/specdemo/[0-9a-f]+/\w+/[\w.-]+", READ_METHODS),
    Door(r"/health", READ_METHODS),
    Door(r"/gradio_api/(info|openapi\.json|startup-events)", READ_METHODS),
    Door(rf"/gradio_api/heartbeat/{SESSION.pattern}", ("GET",)),
    Door(r"/gradio_api/queue/data", ("GET",), "listen"),
    Door(rf"/gradio_api/call/(v2/)?{FUNCTION_NAME}/(?P<event>{SESSION.pattern})", ("GET",), "listen"),
    Door(r"/gradio_api/queue/join", ("POST",), "join"),
    Door(r"/gradio_api/run/predict", ("POST",), "run"),
    Door(rf"/gradio_api/call/{FUNCTION_NAME}", ("POST",), "call"),
    Door(rf"/gradio_api/call/v2/{FUNCTION_NAME}", ("POST",), "named"),
    Door(r"/gradio_api/cancel", ("POST",), "cancel"),
    Door(r"/gradio_api/reset", ("POST",), "reset"),
    Door(r"/gradio_api/mcp(/http|/schema)?/?", (*READ_METHODS, "POST"), "tools"),
    Door(r"/specdemo/traces", ("POST",), "trace"),
    Door(r"/specdemo/halls/[0-9a-f]{32}", ("GET",)),
    Door(r"/specdemo/halls/[0-9a-f]{16}", ("POST",), "raw"),
    Door(r"/specdemo/runs", ("POST",), "ask"),
    Door(r"/specdemo/runs/\w{1,64}(/whole|/trace|/html|/report)?", ("GET",)),
    Door(r"/specdemo/runs/\w{1,64}/stop", ("POST",), "raw"),
)
PATTERNS = tuple((re.compile(door.path, re.ASCII), door) for door in DOORS)


class Gate:
    """The gate as ASGI middleware. visits: the visits of the server behind it."""

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
        self.bodies = Bodies(limits.body_bytes, BODIES_ARRIVING, BODY_SECONDS)
        self.traces = Bodies(limits.trace_bytes, FILES_ARRIVING, FILE_SECONDS)
        self.making = asyncio.Semaphore(MAKING)
        self.named = {one.name: one for one in functions.values() if not one.private}

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

        try:
            await self._enter(scope, receive, send_with_headers)
        except NotLetIn as refused:
            await _answer(send_with_headers, refused)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-gradio-server"]
        check_address(scope["path"], scope["headers"])
        doors = _doors_at(path_of(scope))
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
            case "view":
                await self._view(inside)
            case "embed":  # which answers with an address that has the same query
                await self.app(scope, receive, send)
            case "plain":
                scope["query_string"] = b""  # the page's scripts read theirs in the browser
                await self.app(scope, receive, send)
            case "listen":
                await self._listen(inside, found.groupdict().get("event"))
            case "raw":
                await self.bodies.read(inside, request_address(scope, self.limits))
                await self.app(scope, inside.receive, send)
            case "ask":
                try:
                    await self.bodies.read(inside, request_address(scope, self.limits))
                    await self.app(scope, inside.receive, send)
                except NotLetIn as refused:  # which the page shows as it is
                    await _answer(send, refused, is_json=False)
            case "tools":
                if scope["method"] != "POST" and _listens(scope):
                    refused = NotLetIn(405, "This server answers POST requests only.")
                    return await _answer(send, refused, [(b"allow", b"POST")])
                if body := await self.bodies.read(inside, request_address(scope, self.limits)):
                    asked = read_object(body)
                    check_unicode(asked)
                    check_no_file(asked)
                await self.app(scope, inside.receive, send)
            case "trace":
                try:
                    async with self.traces.held(inside, request_address(scope, self.limits)):
                        await self.app(scope, inside.receive, send)
                except NotLetIn as refused:  # which the page shows as it is
                    await _answer(send, refused, is_json=False)
            case _:
                await self._post(inside, door.entry, found.groupdict().get("name", ""))

    async def _view(self, inside: Inside) -> None:
        """Answers a view of the page. The view waits for its turn to be made, and not until others have been
        read."""
        inside.scope["query_string"] = b""
        await self.making.acquire()
        making = ExitStack()
        making.callback(self.making.release)

        async def send(message: Message) -> None:
            making.close()
            await inside.send(message)

        with making:
            await self.app(inside.scope, inside.receive, send)

    async def _listen(self, inside: Inside, event: str | None) -> None:
        if event is None:
            session = session_asked_for(inside.scope["query_string"])
            if not (SESSION.fullmatch(session) and self.visits.queue.has_messages(session)):
                if session in self.visits.visitors:
                    return await _answer_that_all_was_read(inside.send)
                raise NotLetIn(404, "There is nothing to read for this session.")
        else:
            session = self.visits.queue.session_of(event)
            if session is None or not self.visits.queue.has_messages(session):
                raise NotLetIn(404, "There is no such event, or its answer has been read or dropped.")
            if self.visits.has_reader(session):  # each message of Gradio's goes to one of them only
                raise NotLetIn(409, "Somebody reads the answer of this event already.")
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

    async def _post(self, inside: Inside, entry: Checked, name: str) -> None:
        """Handles a request with a JSON body."""
        if entry in ("call", "named") and name not in self.named:
            raise NotLetIn(404, f"There is no endpoint of this name; there are {', '.join(self.named)}.")
        address = request_address(inside.scope, self.limits)
        body = read_object(await self.bodies.read(inside, address))
        if entry == "cancel":
            name_in(body, "event_id")
            number_in(body, "fn_index")
            name_in(body, "session_hash")
        elif entry == "reset":
            name_in(body, "event_id")
        elif entry == "run":
            self._check_event(body, private=True)
        elif entry == "join":
            self._check_event(body, private=False)
        elif entry == "call":
            check_values(body.get("data"), self.named[name].fields)
        else:
            check_named(body, self.named[name].fields)
        if entry not in ("join", "call", "named"):
            return await self.app(inside.scope, inside.receive, inside.send)
        is_named = entry == "join" or (entry == "call" and body.get("session_hash") is not None)
        session = name_in(body, "session_hash") if is_named else None
        async with self.visits.admitted(session, address):
            await self.app(inside.scope, inside.receive, inside.send)

    def _check_event(self, body: dict[str, Any], private: bool) -> None:
        name_in(body, "session_hash")
        function = self.functions.get(number_in(body, "fn_index"))
        if function is None or function.private != private:
            raise NotLetIn(404, "There is no function of this number here.")
        check_values(body.get("data"), function.fields)
        check_rest(body, self.triggers)


def with_host(app: ASGIApp, limits: Limits, hosts: Hosts) -> ASGIApp:
    """Lets in only requests with the header Host, without which a layer of Gradio's in front of the gate
    fails, and of those only what `hosts` lets in."""

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                if all(name != b"host" for name, _ in scope["headers"]):
                    raise NotLetIn(400, "The header host is missing.")
                hosts.check(scope["headers"])
        except NotLetIn as refused:
            return await _answer(send, refused, headers_of(limits))
        await app(scope, receive, send)

    return enter


def _doors_at(path: str) -> dict[str, tuple[Door, re.Match[str]]]:
    """The doors that are open at a path, by method."""
    doors = {
        method: (door, found)
        for pattern, door in PATTERNS
        if (found := pattern.fullmatch(path))
        for method in door.methods
    }
    if not doors:
        raise NotLetIn(404, "There is nothing here.")
    return doors


def _listens(scope: Scope) -> bool:
    """Whether the request asks the tools' server for a stream, which would be kept for as long as the caller
    likes. The server's older transport (sse, messages) has no door for the same reason."""
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


async def _answer_that_all_was_read(send: Send) -> None:
    """Answers a page that asks for its messages after it has read the last of them: an event that is answered
    at once can come to a stream that was open for an earlier one."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'data: {"msg": "close_stream"}\n\n'})


async def _answer(
    send: Send, refused: NotLetIn, more: Iterable[tuple[bytes, bytes]] = (), is_json: bool = True
) -> None:
    text = json.dumps({"detail": refused.sentence}) if is_json else refused.sentence
    body = b"" if refused.status == 204 else text.encode()
    headers = [*more, (b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/json" if is_json else b"text/plain; charset=utf-8"))
    if refused.status == 408:  # the rest of the body may still come
        headers.append((b"connection", b"close"))
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# Gradio goes through every number of an answer several times, on the event loop, where everybody waits. So it
# gets a short name in place of the JSON, and the JSON is written where the name stands.

FRAGMENT_NAME = re.compile(rb'"json:([0-9a-f]{32})"')
# Characters that many readers of a stream, httpx among them, take for the end of a line. JSON allows them in
# strings, and nowhere else.
BREAKS = {sign.encode(): f"\\u{ord(sign):04x}".encode() for sign in "\u0085\u2028\u2029"}


class Fragment(str):
    """The name of a JSON text. The text is kept as long as Gradio keeps the name."""

    json: bytes


_named: WeakValueDictionary[str, Fragment] = WeakValueDictionary()


def fragment(json: str) -> Fragment:
    name = token_hex(16)
    made = _named[name] = Fragment(f"json:{name}")
    made.json = json.encode()
    return made


class Filling:
    """An ASGI middleware that writes out the fragments in streams of messages, and escapes BREAKS there. Each
    message has a call of `send` for itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def filled(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
                is_stream = kind.startswith(b"text/event-stream")
            elif is_stream and (body := bytes(message.get("body", b""))):
                body = FRAGMENT_NAME.sub(_json, body)
                for sign, escaped in BREAKS.items():
                    body = body.replace(sign, escaped)
                message = {**message, "body": body}
            await send(message)

        await self.app(scope, receive, filled)


def _json(found: re.Match[bytes]) -> bytes:
    made = _named.get(found[1].decode())
    return found[0] if made is None else made.json
