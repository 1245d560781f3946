"""Lets a page's stream of messages go on after its connection was cut: by a proxy, or while a laptop slept.

An ASGI middleware around Gradio. The script resume.js asks for the stream with the number of bytes that it
has (`from`), and for a cut one again. Gradio sees one stream, which ends when nobody has asked for it again
in time or the page says that it leaves. Streams that are asked for without `from` are not touched.
"""

import asyncio
import re
from urllib.parse import parse_qsl

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.fair import of_the_most
from specdemo.ui.gradio_queue import address_in
from specdemo.ui.limits import Limits

STREAM = "/gradio_api/queue/data"
LEAVE = "/specdemo/leave"
KEPT = 2**20  # bytes that were sent and may not have arrived
AHEAD = 2**18  # bytes that Gradio may be ahead of the page
MOST = 200  # streams that wait to be asked for again


class Resuming:
    """headers: of the answers that are not Gradio's."""

    def __init__(self, app: ASGIApp, limits: Limits, headers: dict[str, str]) -> None:
        self.app, self.limits, self.headers = app, limits, headers
        self.streams: dict[str, _Stream] = {}  # by session
        self.unread: dict[str, _Stream] = {}  # those among them that nobody reads, oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.endswith((STREAM, LEAVE)):
            return await self.app(scope, receive, send)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        session, start = query.get("session_hash", ""), query.get("from", "")
        if path.endswith(LEAVE):
            if stream := self.streams.get(session):
                stream.leave()
            return await Response(status_code=204, headers=self.headers)(scope, receive, send)
        if not session or not re.fullmatch(r"[0-9]{1,15}", start):
            return await self.app(scope, receive, send)
        await self._follow(session, int(start), scope, receive, send)

    async def _follow(self, session: str, start: int, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self.streams.get(session)
        if start == 0 and (stream is None or stream.ended):
            stream = self._open(session, scope)
        if start and stream and stream.ended and not stream.error and start == stream.end:
            return await Response(status_code=204, headers=self.headers)(scope, receive, send)
        if stream is None or stream.error or not stream.first <= start <= stream.end:
            answer = PlainTextResponse("This stream has ended, or has waited too long.", 410, self.headers)
            return await answer(scope, receive, send)
        self._take(session, stream)
        stream.address = address_in(scope, self.limits)
        me = stream.reader = object()  # the one before, if it is still there, has been cut
        stream.changed()
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await stream.send_from(start, me, gone, send)
        finally:
            gone.cancel()
            if stream.reader is me:
                stream.reader = None
                self._leave(session, stream)

    def _open(self, session: str, scope: Scope) -> "_Stream":
        if before := self.streams.get(session):
            self._take(session, before)
        stream = self.streams[session] = _Stream()
        stream.task = asyncio.create_task(stream.run(self.app, scope))
        return stream

    def _take(self, session: str, stream: "_Stream") -> None:
        self.unread.pop(session, None)
        if stream.timer:
            stream.timer.cancel()

    def _leave(self, session: str, stream: "_Stream") -> None:
        """Nobody reads it now. Its last bytes may have been lost, so it waits even if it has ended. What
        Gradio refused is nothing to wait for."""
        if stream.left.is_set() or stream.start is None or stream.start["status"] != 200:
            return self._forget(session, stream)
        self.unread[session] = stream
        grace = self.limits.resume_seconds
        stream.timer = asyncio.get_running_loop().call_later(grace, self._forget, session, stream)
        if len(self.unread) > MOST:
            self._make_room()

    def _make_room(self) -> None:
        """One is forgotten, of the address that has most of them: one that has ended, if there is any."""
        ended_first = sorted(self.unread, key=lambda session: not self.unread[session].ended)
        one = of_the_most({session: self.unread[session].address for session in ended_first})
        self._forget(one, self.unread[one])

    def _forget(self, session: str, stream: "_Stream") -> None:
        stream.leave()
        self._take(session, stream)
        if self.streams.get(session) is stream:
            del self.streams[session]


class _Stream:
    """What Gradio sends, kept until it is sure to have arrived."""

    def __init__(self) -> None:
        self.address = ""  # that it was last asked for from
        self.start: Message | None = None  # of Gradio's response
        self.kept = bytearray()
        self.first = 0  # the place of the first byte that is kept
        self.sent = 0
        self.ended = False
        self.error: Exception | None = None
        self.left = asyncio.Event()  # nobody will read on
        self.reader: object | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task | None = None
        self._news = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self.kept)

    def leave(self) -> None:
        self.left.set()
        self.changed()

    def changed(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # Gradio's side.

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            self.error = error
        finally:
            self.ended = True
            self.changed()

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """Waits while Gradio is too far ahead of the page. What comes after the page has left is dropped; an
        error here would keep Gradio from ending the run."""
        if self.left.is_set():
            return
        if message["type"] == "http.response.start":
            self.start = message
        self.kept += message.get("body", b"")
        self.changed()
        while self.end - self.sent > AHEAD and not self.left.is_set():
            await self._news.wait()

    # The page's side.

    async def send_from(self, place: int, me: object, gone: asyncio.Task, send: Send) -> None:
        """Sends what there is from this place on, and what comes, until the stream has ended or `me` is no
        longer its reader."""
        while self.start is None and not self.ended:
            if not await self._next(gone):
                return
        if self.start:
            await send(self.start)
        while self.reader is me:
            if place < self.end:
                body = bytes(self.kept[place - self.first :])
                await send({"type": "http.response.body", "body": body, "more_body": True})
                place += len(body)
                self._has_sent(place)
            elif self.ended:
                if self.error and not self.left.is_set():
                    raise self.error
                return await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not await self._next(gone):
                return

    def _has_sent(self, place: int) -> None:
        self.sent = max(self.sent, place)
        if (old := self.sent - KEPT - self.first) > 0:
            del self.kept[:old]
            self.first += old
        self.changed()

    async def _next(self, gone: asyncio.Task) -> bool:
        """Waits for news; False when the reader is gone."""
        news = asyncio.ensure_future(self._news.wait())
        await asyncio.wait([news, gone], return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        return not gone.done()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
