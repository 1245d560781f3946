"""The route by which the page sends a trace file that a visitor opens, and fetches what lies on the shelf.

Nothing that arrives touches the disk or is ever sent out again: what can be fetched has been read and written
anew.
"""

import asyncio
import secrets
from dataclasses import dataclass
from hashlib import sha256
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from specdemo.events.trace import Trace
from specdemo.ui.fair import Arriving
from specdemo.ui.gradio_queue import address_in
from specdemo.ui.limits import MIB, Limits
from specdemo.ui.models import Choice, Models
from specdemo.ui.opening import head_of, packed_head, read, with_prompt
from specdemo.ui.shelf import GONE, Shelf

PATH = "specdemo/trace"
READERS = 2  # traces that are read at once
ARRIVING = 4  # times the largest file: what may arrive or wait to be read at once
ARRIVAL_SECONDS = 60  # that a file may take to arrive
AGAIN = 2  # s until the page tries again when too much arrives at once
BUSY = "Too many traces are being opened at once. Try again in a few seconds."


@dataclass(frozen=True)
class OnDesk:
    """A trace that has been opened: its head, and the names of its update and its file on the shelf."""

    head: Trace
    update: str
    file: str


class Desk:
    """Takes the traces that visitors open. The same file, opened by several at once, is read once."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self.limits, self.shelf = models, limits, Shelf(limits)
        self.salt = secrets.token_bytes(16)
        self.reading: dict[str, asyncio.Task[str]] = {}  # by the name that the trace will have
        self.readers = asyncio.Semaphore(READERS)
        # So that one address keeps others waiting for one file at most.
        self.of_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.arriving = Arriving(ARRIVING * limits.trace_bytes)  # until they are answered

    def route(self) -> Route:
        return Route(f"/{PATH}", self.answer, methods=["GET", "POST"])

    async def answer(self, request: Request) -> Response:
        """POST: a file; the answer has the name to open it by, or what is wrong with it. GET ?name=...: a
        text from the shelf."""
        if request.method != "POST":
            return self._stored(request.query_params.get("name", ""))
        address, body = address_in(request.scope, self.limits), bytearray()
        try:
            refusal = await self._arrive(request, address, body)
            return refusal or await self._open(bytes(body), address)
        finally:
            self.arriving.remove(address, len(body))

    def opened(self, name: str) -> OnDesk | None:
        """The trace that was opened under this name."""
        head = self.shelf.get(_head(name))
        if head is None or not self._has(name):
            return None
        return OnDesk(head_of(head), name, _file(name))

    def _has(self, name: str) -> bool:
        return all(self.shelf.get(part) for part in (_head(name), name, _file(name)))

    async def _arrive(self, request: Request, address: str, body: bytearray) -> Response | None:
        """Fills the body; what is wrong with it."""
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                async for part in request.stream():
                    body += part
                    has_room = self.arriving.add(address, len(part))
                    if len(body) > self.limits.trace_bytes:
                        most = self.limits.trace_bytes / MIB
                        return PlainTextResponse(f"At most {most:g} MB can be opened.", 413)
                    if not has_room:
                        return PlainTextResponse(BUSY, 429, {"Retry-After": str(AGAIN)})
        except TimeoutError:
            return PlainTextResponse("The file took too long to arrive. Open it again.", 408)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody hears it
        return None

    async def _open(self, body: bytes, owner: str) -> Response:
        name = sha256(self.salt + body).hexdigest()
        if not self._has(name):
            if name not in self.reading:
                self.reading[name] = asyncio.create_task(self._read(name, body, owner))
            if wrong := await asyncio.shield(self.reading[name]):  # others may wait for it, too
                return JSONResponse({"wrong": wrong})  # browsers would log another status as an error
        return JSONResponse({"name": name})

    async def _read(self, name: str, body: bytes, owner: str) -> str:
        """Puts what is in the file on the shelf; what is wrong with the file."""
        try:
            async with self.of_address.setdefault(owner, asyncio.Semaphore(READERS)), self.readers:
                one = await read(body)
            if one.head is None:
                return one.wrong
            pair = one.head.pair.name
            usual = self.models.loaded(Choice(pair)) if pair in self.models.names else None
            update = await asyncio.to_thread(with_prompt, one, getattr(usual, "tokenizer", None))
            self.shelf.put(packed_head(one.head), owner, _head(name))
            self.shelf.put(one.file, owner, _file(name))
            self.shelf.put(update, owner, name)
            return ""
        finally:
            del self.reading[name]

    def _stored(self, name: str) -> Response:
        data = self.shelf.get(name)
        if data is None:
            return PlainTextResponse(GONE, 404)
        headers = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
        headers["X-Content-Type-Options"] = "nosniff"
        return Response(data, media_type="application/json", headers=headers)


def _head(name: str) -> str:
    return f"{name}.head"


def _file(name: str) -> str:
    return f"{name}.file"
