"""The API as Gradio's clients speak it: one request makes a call, and another one reads its answers.

Gradio describes the API. But its queue begins what nobody reads, and keeps the answers. Here a call is an
entry in a table until somebody reads it. Then its function is begun, goes on no faster than its reader, and
ends with it. Without Gradio.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from inspect import Parameter, isasyncgen
from secrets import token_hex
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specdemo.ui.front.checks import NotLetIn, name_in, number_in, read_json, short
from specdemo.ui.runs.limits import Limits, Refused, Visitor, request_address

HEARTBEAT = 15.0  # s without a message, after which the reader gets one that says nothing
# Characters that many readers of a stream, httpx among them, take for the end of a line. JSON allows them in
# strings, and nowhere else.
BREAKS = {sign: f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
STREAM = "text/event-stream"
AS_GRADIO = {"duration": 10, "visible": True, "title": "Error"}  # what its clients in JavaScript show
CLOSE = 'data: {"msg": "close_stream"}\n\n'  # ends the stream of a session


@dataclass(frozen=True)
class Endpoint:
    """A function of the API. answer: called with the visitor and a value for each argument, gives its answer
    as JSON, or several, of which the last one is the whole. arguments: those that the API documents."""

    answer: Callable[..., Any]
    arguments: Sequence[Parameter] = ()

    def values_in(self, data: Any) -> list[Any]:
        """The values that are given in their order."""
        if not isinstance(data, list):
            raise NotLetIn(400, "data must be a list.")
        if len(data) != len(self.arguments):
            raise NotLetIn(400, f"data must hold {len(self.arguments)} values, not {len(data)}.")
        return data

    def values_named(self, given: Mapping[str, Any]) -> list[Any]:
        """The values that are given by name, and the defaults of the others."""
        known = {one.name: one.default for one in self.arguments}
        if unknown := [name for name in given if name not in known]:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise NotLetIn(400, f"There is no argument {short(unknown[0])}; {takes}.")
        values = known | given
        if missing := [name for name, value in values.items() if value is Parameter.empty]:
            raise NotLetIn(400, f"The argument {missing[0]} is missing.")
        return list(values.values())


@dataclass(eq=False)
class Call:
    """A call whose answers wait to be read, or are being read. context: of the request that made it.
    messages: those for its reader, each with its kind and its JSON; None while there is no reader."""

    event: str
    visitor: Visitor
    endpoint: Endpoint
    values: list[Any]
    context: Context = field(default_factory=copy_context)
    made: float = field(default_factory=time.monotonic)
    messages: "Messages | None" = None
    task: asyncio.Task[None] | None = None
    has_begun: bool = False  # to tell its answers
    is_cancelled: bool = False


Messages = asyncio.Queue[tuple[Call, str, str]]


class Calls:
    """The API's calls. endpoints: by name. numbers: the same by Gradio's numbers. note: called with a
    request that makes a call, to note in its context who asks. in_words: what is told of an error."""

    def __init__(
        self,
        limits: Limits,
        endpoints: Mapping[str, Endpoint],
        numbers: Mapping[int, Endpoint],
        note: Callable[[Request], None],
        in_words: Callable[[Exception], str],
    ) -> None:
        self.limits, self.endpoints, self.numbers = limits, endpoints, numbers
        self.note, self.in_words = note, in_words
        self.calls: dict[str, Call] = {}  # by their events, until they are answered; the oldest first
        self.streams: dict[str, Messages] = {}  # of the sessions that somebody reads
        self.ended: set[str] = set()  # sessions whose streams have ended lately

    def routes(self) -> list[Route]:
        asked, read = {"methods": ["POST"]}, {"methods": ["GET"]}
        return [
            Route("/gradio_api/queue/join", self.join, **asked),
            Route("/gradio_api/call/{name}", self.call, **asked),
            Route("/gradio_api/call/v2/{name}", self.call_by_names, **asked),
            Route("/gradio_api/cancel", self.cancel, **asked),
            Route("/gradio_api/reset", self.reset, **asked),
            Route("/gradio_api/queue/data", self.read_session, **read),
            Route("/gradio_api/call/{name}/{event}", self.read_call, **read),
            Route("/gradio_api/call/v2/{name}/{event}", self.read_call, **read),
        ]

    @property
    def has_readers(self) -> bool:
        return any(call.messages for call in self.calls.values())

    # What makes a call, and what ends it.

    async def join(self, request: Request) -> Response:
        body = await read_json(request)
        session, number = name_in(body, "session_hash"), number_in(body, "fn_index")
        if number not in self.numbers:
            raise NotLetIn(404, "There is no function of this number here.")
        endpoint = self.numbers[number]
        return self._add(request, endpoint, endpoint.values_in(body.get("data")), session)

    async def call(self, request: Request) -> Response:
        endpoint, body = self._endpoint(request), await read_json(request)
        session = None if body.get("session_hash") is None else name_in(body, "session_hash")
        return self._add(request, endpoint, endpoint.values_in(body.get("data")), session)

    async def call_by_names(self, request: Request) -> Response:
        endpoint = self._endpoint(request)
        return self._add(request, endpoint, endpoint.values_named(await read_json(request)), None)

    def _endpoint(self, request: Request) -> Endpoint:
        if request.path_params["name"] not in self.endpoints:
            names = ", ".join(self.endpoints)
            raise NotLetIn(404, f"There is no endpoint of this name; there are {names}.")
        return self.endpoints[request.path_params["name"]]

    def _add(self, request: Request, endpoint: Endpoint, values: list[Any], session: str | None) -> Response:
        """Takes in a call. session: None for one of its own."""
        event, address = token_hex(16), request_address(request.scope, self.limits)
        self._make_room(address)
        self.note(request)
        call = self.calls[event] = Call(event, Visitor(session or event, address), endpoint, values)
        if stream := self.streams.get(call.visitor.session):
            self._begin(call, stream)
        else:
            self._later(self._drop_unread, event)
        return JSONResponse({"event_id": event})

    def _make_room(self, address: str) -> None:
        asked = {call: call.visitor.address for call in self.calls.values()}
        unread = [call for call in asked if not call.messages]
        try:
            first = self.limits.make_room(address, asked, unread)
        except Refused as error:
            old = time.monotonic() - self.limits.share_seconds
            first = next((one for one in unread if asked[one] == address and one.made < old), None)
            if first is None:
                again = f"{self.limits.listen_seconds:.0f}"
                raise NotLetIn(429, str(error), {"retry-after": again}) from None
        if first:
            self._drop_unread(first.event)

    def _drop_unread(self, event: str) -> None:
        if (call := self.calls.get(event)) and not call.messages:
            del self.calls[event]

    async def cancel(self, request: Request) -> Response:
        body = await read_json(request)
        call = self.calls.get(name_in(body, "event_id"))
        session, _ = name_in(body, "session_hash"), number_in(body, "fn_index")
        if call and call.visitor.session == session and not call.is_cancelled:
            call.is_cancelled = True
            self._drop_unread(call.event)
            if call.task:  # after its first step, without which nothing would tell its reader
                asyncio.get_running_loop().call_soon(call.task.cancel)
        return JSONResponse({"success": True})

    async def reset(self, request: Request) -> Response:
        """Answers a client that cancels a call, which does so by `cancel`, too."""
        name_in(await read_json(request), "event_id")
        return JSONResponse({"success": True})

    # What reads the answers.

    async def read_session(self, request: Request) -> Response:
        """Reads all of a session's calls, those among them that come meanwhile."""
        sessions = request.query_params.getlist("session_hash")
        if len(sessions) != 1:
            raise NotLetIn(400, "session_hash must be given once.")
        (session,) = sessions
        calls = [one for one in self.calls.values() if one.visitor.session == session and not one.messages]
        if calls:
            return StreamingResponse(self._read(calls, session), media_type=STREAM)
        # A call that is answered at once can come to a stream that was open for an earlier one.
        if session in self.streams or session in self.ended:
            return Response(CLOSE, media_type=STREAM)
        raise NotLetIn(404, "There is nothing to read for this session.")

    async def read_call(self, request: Request) -> Response:
        call = self.calls.get(request.path_params["event"])
        if call is None:
            raise NotLetIn(404, "There is no such event, or its answer has been read or dropped.")
        if call.messages:
            raise NotLetIn(409, "Somebody reads the answer of this event already.")
        return StreamingResponse(self._read([call], None), media_type=STREAM)

    async def _read(self, calls: Sequence[Call], session: str | None) -> AsyncIterator[str]:
        """What the reader of these calls gets, and of those that come to the session meanwhile."""
        messages: Messages = asyncio.Queue(1)
        if session:
            self.streams.setdefault(session, messages)
        for call in calls:
            if self.calls.get(call.event) is call and not call.messages:  # or another reader was faster
                self._begin(call, messages)
        write = _for_session if session else _plain
        try:
            while self._calls_of(messages) or not messages.empty():
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        call, kind, answer = await messages.get()
                except TimeoutError:
                    yield 'data: {"msg": "heartbeat"}\n\n' if session else "event: heartbeat\ndata: null\n\n"
                else:
                    for sign, escaped in BREAKS.items():
                        answer = answer.replace(sign, escaped)
                    yield write(call, kind, answer)
        finally:  # the reader may have gone
            for call in self._calls_of(messages):
                del self.calls[call.event]
                if call.task:
                    call.task.cancel()
            if session and self.streams.get(session) is messages:
                del self.streams[session]
                self.ended.add(session)
                self._later(self.ended.discard, session)
        if session:
            yield CLOSE

    def _calls_of(self, messages: Messages) -> list[Call]:
        return [call for call in self.calls.values() if call.messages is messages]

    def _begin(self, call: Call, messages: Messages) -> None:
        call.messages = messages
        call.task = asyncio.create_task(self._answer(call, messages), context=call.context)

    async def _answer(self, call: Call, messages: Messages) -> None:
        """Runs the call's function, and hands its answers to the reader."""
        last = "null"
        try:
            answer = call.endpoint.answer(call.visitor, *call.values)
            if isasyncgen(answer):
                async with aclosing(answer) as several:
                    async for last in several:
                        await messages.put((call, "generating", last))
            else:
                last = await answer
            await messages.put((call, "complete", last))
        except asyncio.CancelledError:
            if not call.is_cancelled:
                raise  # its reader has gone
            await messages.put((call, "complete", "null"))
        except Exception as error:
            await messages.put((call, "error", json.dumps({"error": self.in_words(error)} | AS_GRADIO)))
        finally:
            self.calls.pop(call.event, None)

    def _later(self, function: Callable[..., object], *values: Any) -> None:
        """Calls the function when what nobody reads is dropped."""
        asyncio.get_running_loop().call_later(self.limits.listen_seconds, function, *values)


def _plain(call: Call, kind: str, answer: str) -> str:
    return f"event: {kind}\ndata: {answer if kind == 'error' else f'[{answer}]'}\n\n"


def _for_session(call: Call, kind: str, answer: str) -> str:
    """The message as gradio_client reads it. Each answer of several but the first is told as the difference
    to the one before, which may be all of it."""
    is_first, call.has_begun = not call.has_begun, True
    told = answer if is_first or kind == "complete" else f'[["replace", [], {answer}]]'
    output = answer if kind == "error" else f'{{"data": [{told}]}}'
    name = "process_generating" if kind == "generating" else "process_completed"
    head = {"msg": name, "event_id": call.event, "success": kind != "error"}
    return f'data: {json.dumps(head)[:-1]}, "output": {output}}}\n\n'
