"""The server's connections: how many at once, how long one may take to send a request's headers, and how long
to take its answer. Without Gradio."""

import asyncio
import logging
from functools import partial
from math import inf
from typing import Any

import h11
from starlette.datastructures import Headers
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdemo.ui.runs.limits import LOCAL, Holdings, Limits, visitor_address

try:
    import resource
except ImportError:  # on Windows, which has no such limit
    resource = None

PIECE = 2**16  # bytes of an answer, of which a reader has to take so many in time
NO_FILES = "socket.accept() out of system resource"  # logged with a traceback thousands of times a second


def bound_connections(server: Server, limits: Limits) -> None:
    """Bounds the connections that the server accepts from now on, and what they can make libraries log."""
    table = Connections(_most(limits), limits.header_seconds, limits.reader_seconds)
    server.config.http_protocol_class = partial(Connection, table)  # type: ignore[assignment]
    # An upgrade gets an ordinary answer: the table would not be told when another protocol's connection ends.
    server.config.ws_protocol_class = None
    logging.getLogger("uvicorn.error").setLevel("ERROR")  # it warns of each request that is not HTTP
    logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith(NO_FILES))


def _most(limits: Limits) -> int:
    """The most connections at once: fewer than the files that the process may open, the last quarter of which
    is kept for other files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else -1
    return limits.connections if files < 0 else min(limits.connections, files * 3 // 4)


class Connections:
    """The open connections. seconds: in which one has to send a whole request's headers. patience: seconds in
    which it has to take some of its answer. Beyond `most`, one makes room: the one that has waited longest
    without a whole request; if only the new one waits, the oldest of an address that has more of them than
    the new one's; else the new one."""

    def __init__(self, most: int, seconds: float, patience: float = LOCAL.reader_seconds) -> None:
        self.most, self.seconds, self.patience = most, seconds, patience
        self.open: dict[Connection, str] = {}  # with the address that each came from, oldest first
        self.waiting: dict[Connection, asyncio.TimerHandle] = {}  # for their next request, longest first

    def come(self, one: "Connection") -> None:
        self.open[one] = visitor_address(one.client[0] if one.client else "", Headers(), behind_proxy=False)
        self.wait(one)
        if len(self.open) > self.most:
            self._to_go(one).abandon()

    def _to_go(self, new: "Connection") -> "Connection":
        longest = next(iter(self.waiting))
        if longest is not new:
            return longest
        others = {one: address for one, address in self.open.items() if one is not new}
        return Holdings(others.values()).to_go(others, newcomer=self.open[new]) or new

    def wait(self, one: "Connection") -> None:
        """Begins to wait for the connection's next request, which has to come in time."""
        self.ask(one)
        self.waiting[one] = one.loop.call_later(self.seconds, one.abandon)

    def ask(self, one: "Connection") -> None:
        """Ends the wait for the connection's request: the request has come, or the connection is gone."""
        if timer := self.waiting.pop(one, None):
            timer.cancel()

    def leave(self, one: "Connection") -> None:
        self.open.pop(one, None)
        self.ask(one)


class Connection(H11Protocol):
    """uvicorn's connection, entered in a table. uvicorn itself waits for ever for the rest of headers,
    whatever has come of them, and for a reader."""

    def __init__(self, table: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.table = table
        self.stalled: asyncio.TimerHandle | None = None  # while its reader has much of the answer to take

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.table.come(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_answering:
            self.table.ask(self)

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP. If it is the rest of a request that is being answered, that answer
        ends."""
        if self.is_answering:
            self.cycle.disconnected = True
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the answer has begun, or was the last one here
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        """Waits for the next request, unless that came together with this one, or its reader has still much
        of the answer to take."""
        if not self.is_answering and not self.flow.write_paused:
            self.table.wait(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def _watch(self, left: float = inf) -> None:
        """Gives up a reader who has not taken a piece since `left` bytes were left."""
        before, left = left, self.transport.get_write_buffer_size()
        if left > before - PIECE:
            self.abandon()
        else:
            self.stalled = self.loop.call_later(self.table.patience, self._watch, left)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stalled:
            self.stalled.cancel()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.leave(self)
        if self.stalled:
            self.stalled.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Called when the server ends. A request whose body has not come is given up, as if its sender had
        gone."""
        super().shutdown()
        if self.is_answering and self.cycle.more_body:
            self.transport.abort()

    def abandon(self) -> None:
        self.table.leave(self)
        self.transport.abort()
