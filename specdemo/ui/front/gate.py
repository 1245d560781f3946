"""The gate in front of Gradio: what a request may ask for at all, how large it may be, and how many may wait;
and what is written into its answers.

What is not listed here is not there. gradio.py knows its functions, and visits.py its sessions.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any
from weakref import WeakValueDictionary

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.front.checks import (
    SESSION,
    Field,
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


Door = Callable[..., Awaitable[None]]  # lets in an Inside; more arguments are the path's named parts


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


READ_METHODS = ("GET", "HEAD")
FUNCTION_NAME = r"(?P<name>\w{1,64})"
MAKING = 4  # views of the page that Gradio makes at once, each from a copy of its whole config
READ_BY_PAGES = ("/specdemo/runs", "/specdemo/traces")  # a page shows what these refuse as it is


class Gate:
    """The gate as ASGI middleware. visits: the visits of the server behind it. functions: those that can be
    called, by Gradio's numbers. triggers: Gradio's numbers of the page's components."""

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
        session = SESSION.pattern
        # The paths that are open, with their methods and what lets a request in.
        doors: tuple[tuple[str, tuple[str, ...], Door], ...] = (
            (r"/|/config", READ_METHODS, self._view),
            (r"/embed", READ_METHODS, self._let_in),  # answers with an address that has the same query
            (r"/theme\.css|/robots\.txt|/favicon\.ico|/manifest\.json", READ_METHODS, self._plain),
            (r"/(assets|static)(/[\w@-][\w.@-]*)+", READ_METHODS, self._plain),
            (r"/specdemo/[0-9a-f]+/\w+/[\w.-]+", READ_METHODS, self._plain),
            (r"/health", READ_METHODS, self._plain),
            (r"/gradio_api/(info|openapi\.json|startup-events)", READ_METHODS, self._plain),
            (rf"/gradio_api/heartbeat/{session}", ("GET",), self._plain),
            (r"/gradio_api/queue/data", ("GET",), self._listen_to_session),
            (rf"/gradio_api/call/(v2/)?\w{{1,64}}/(?P<event>{session})", ("GET",), self._listen_to_event),
            (r"/gradio_api/queue/join", ("POST",), self._join),
            (r"/gradio_api/run/predict", ("POST",), self._update),
            (rf"/gradio_api/call/{FUNCTION_NAME}", ("POST",), self._call),
            (rf"/gradio_api/call/v2/{FUNCTION_NAME}", ("POST",), self._call_by_names),
            (r"/gradio_api/cancel", ("POST",), self._cancel),
            (r"/gradio_api/reset", ("POST",), self._reset),
            (r"/gradio_api/mcp(/http|/schema)?/?", (*READ_METHODS, "POST"), self._tools),
            (r"/specdemo/runs(/\w{1,64}/stop)?", ("POST",), self._raw),
            (r"/specdemo/halls/[0-9a-f]{16}", ("POST",), self._raw),
            (r"/specdemo/runs/\w{1,64}(/whole|/trace|/html|/report)?", ("GET",), self._plain),
            (r"/specdemo/halls/[0-9a-f]{32}", ("GET",), self._plain),
            (r"/specdemo/traces", ("POST",), self._trace),
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
            is_text = scope["method"] == "POST" and path_of(scope) in READ_BY_PAGES
            await _refuse(inside, refused, is_text)

    async def _enter(self, inside: Inside) -> None:
        scope = inside.scope
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-gradio-server"]
        check_address(scope["path"], scope["headers"])
        path = path_of(scope)
        doors = {
            method: (door, found)
            for pattern, methods, door in self.doors
            if (found := pattern.fullmatch(path))
            for method in methods
        }
        if not doors:
            raise NotLetIn(404, "There is nothing here.")
        if scope["method"] not in doors:
            methods = ", ".join((*doors, "OPTIONS"))
            status = 204 if scope["method"] == "OPTIONS" else 405
            raise NotLetIn(status, f"Only {methods} work here.", allow=methods)
        door, found = doors[scope["method"]]
        await door(inside, **found.groupdict())

    # What lets a request in.

    async def _let_in(self, inside: Inside) -> None:
        await self.app(inside.scope, inside.receive, inside.send)

    async def _plain(self, inside: Inside) -> None:
        inside.scope["query_string"] = b""  # the page's scripts read theirs in the browser
        await self._let_in(inside)

    async def _view(self, inside: Inside) -> None:
        """Answers a view of the page. The view waits for its turn to be made, and not until others have been
        read."""
        await self.making.acquire()
        making, send = ExitStack(), inside.send
        making.callback(self.making.release)

        async def send_and_end(message: Message) -> None:
            making.close()
            await send(message)

        inside.send = send_and_end
        with making:
            await self._plain(inside)

    async def _raw(self, inside: Inside) -> None:
        await self.bodies.read(inside, self._address(inside))
        await self._let_in(inside)

    async def _trace(self, inside: Inside) -> None:
        async with self.traces.held(inside, self._address(inside)):
            await self._let_in(inside)

    async def _tools(self, inside: Inside) -> None:
        if inside.scope["method"] != "POST" and _listens(inside.scope):
            raise NotLetIn(405, "This server answers POST requests only.", allow="POST")
        if body := await self.bodies.read(inside, self._address(inside)):
            asked = read_object(body)
            check_unicode(asked)
            check_no_file(asked)
        await self._let_in(inside)

    async def _update(self, inside: Inside) -> None:
        """Answers an event of the page's controls."""
        self._check_event(await self._object(inside), private=True)
        await self._let_in(inside)

    async def _cancel(self, inside: Inside) -> None:
        body = await self._object(inside)
        name_in(body, "event_id")
        number_in(body, "fn_index")
        name_in(body, "session_hash")
        await self._let_in(inside)

    async def _reset(self, inside: Inside) -> None:
        name_in(await self._object(inside), "event_id")
        await self._let_in(inside)

    async def _join(self, inside: Inside) -> None:
        body = await self._object(inside)
        self._check_event(body, private=False)
        await self._admit(inside, name_in(body, "session_hash"))

    async def _call(self, inside: Inside, name: str) -> None:
        fields, body = self._fields(name), await self._object(inside)
        check_values(body.get("data"), fields)
        is_named = body.get("session_hash") is not None
        await self._admit(inside, name_in(body, "session_hash") if is_named else None)

    async def _call_by_names(self, inside: Inside, name: str) -> None:
        fields = self._fields(name)
        check_named(await self._object(inside), fields)
        await self._admit(inside, None)

    async def _admit(self, inside: Inside, session: str | None) -> None:
        """Lets in a call of the API, which waits in Gradio's queue. session: None for one of its own."""
        async with self.visits.admitted(session, self._address(inside)):
            await self._let_in(inside)

    async def _listen_to_session(self, inside: Inside) -> None:
        session = session_asked_for(inside.scope["query_string"])
        if SESSION.fullmatch(session) and self.visits.queue.has_messages(session):
            await self._listen(inside, session)
        elif session in self.visits.visitors:
            # An event that is answered at once can come to a stream that was open for an earlier one.
            answer = Response('data: {"msg": "close_stream"}\n\n', media_type="text/event-stream")
            await answer(inside.scope, inside.receive, inside.send)
        else:
            raise NotLetIn(404, "There is nothing to read for this session.")

    async def _listen_to_event(self, inside: Inside, event: str) -> None:
        session = self.visits.queue.session_of(event)
        if session is None or not self.visits.queue.has_messages(session):
            raise NotLetIn(404, "There is no such event, or its answer has been read or dropped.")
        if self.visits.has_reader(session):  # each message of Gradio's goes to one of them only
            raise NotLetIn(409, "Somebody reads the answer of this event already.")
        await self._listen(inside, session)

    async def _listen(self, inside: Inside, session: str) -> None:
        at_the_end, send = False, inside.send

        async def send_and_note(message: Message) -> None:
            nonlocal at_the_end
            await send(message)
            at_the_end = message["type"] == "http.response.body" and not message.get("more_body")

        inside.send = send_and_note
        self.visits.listen(session)
        try:
            await self._let_in(inside)
        finally:
            await self.visits.leave(session, at_the_end)

    def _address(self, inside: Inside) -> str:
        return request_address(inside.scope, self.limits)

    async def _object(self, inside: Inside) -> dict[str, Any]:
        return read_object(await self.bodies.read(inside, self._address(inside)))

    def _fields(self, name: str) -> tuple[Field, ...]:
        if name not in self.named:
            raise NotLetIn(404, f"There is no endpoint of this name; there are {', '.join(self.named)}.")
        return self.named[name].fields

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
            return await _refuse(Inside(scope, receive, send), refused, more=headers_of(limits))
        await app(scope, receive, send)

    return enter


def _listens(scope: Scope) -> bool:
    """Whether the request asks the tools' server for a stream, which would be kept for as long as the caller
    likes. The server's older transport (sse, messages) has no door for the same reason."""
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


async def _refuse(
    inside: Inside, refused: NotLetIn, is_text: bool = False, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    said = refused.sentence if is_text else json.dumps({"detail": refused.sentence})
    kind = "text/plain" if is_text else "application/json"
    answer = Response("" if refused.status == 204 else said, refused.status, refused.headers, kind)
    answer.raw_headers += more
    await answer(inside.scope, inside.receive, inside.send)


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
