"""HTTP to one server: short questions, and streams that any thread can close. The connections live in one
event loop, in a thread of its own, since a blocking read could not be ended from outside."""

import asyncio
import json
import queue
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

import httpx

from specdemo.errors import LoadError, hide, without_directories

T = TypeVar("T")

CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
ASK_SECONDS, OPTIONAL_SECONDS = 20.0, 5.0  # for a short answer as a whole
UNWILLING = (401, 403, 501, 502, 503)
LONGEST_LINE = 4_000_000  # bytes of one event; fifty alternatives for 17 tokens take about 60,000
LONGEST_ANSWER = 20_000_000  # bytes of an answer that is no stream
SHOWN = 300  # characters of what a server says is wrong


class ServerError(LoadError):
    """A server cannot be used, or a run on it broke off: one sentence."""


class Arrived(NamedTuple):
    """An event of a stream, and when it came, by time.perf_counter."""

    data: dict[str, Any]
    at: float


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T]) -> "Future[T]":
    """Runs in the servers' event loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


class Client:
    """address: see `address_of`. key: sent as a bearer token, and in no message. name: stands for the address
    in messages."""

    def __init__(self, address: str, key: str | None = None, name: str | None = None):
        self.address = address
        self.called, self.is_named = name or f"the server at {address}", name is not None
        headers = {"User-Agent": "specdemo"}
        if key is not None:
            if not key.isascii() or not key.isprintable() or not key.strip():
                raise ServerError("vllm: the key for the server is empty or cannot be sent")
            hide(key)
            headers["Authorization"] = f"Bearer {key}"
        self.read_seconds = READ_SECONDS  # the longest silence
        timeout = httpx.Timeout(self.read_seconds, connect=CONNECT_SECONDS)
        # A redirect could lead to another host, which would get the prompt and the key.
        self._http = httpx.AsyncClient(
            base_url=address, headers=headers, timeout=timeout, follow_redirects=False
        )

    def get(self, path: str) -> str | None:
        """The text at a path; None where the server has nothing there. ServerError otherwise."""
        return run(self.ask("GET", path)).result()

    def optional(
        self, path: str, is_over: Callable[[], bool] = lambda: False, seconds: float | None = None
    ) -> str | None:
        """The same of what a run can do without: None also where the server refuses it or takes longer, by
        default OPTIONAL_SECONDS, and once `is_over`."""
        until = time.monotonic() + (OPTIONAL_SECONDS if seconds is None else seconds)
        asked = run(self.ask("GET", path, optional=True))
        while not is_over() and time.monotonic() < until:
            with suppress(TimeoutError):
                return asked.result(timeout=0.05)
        asked.cancel()
        return None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that answers a question; None where the server does not take it."""
        text = run(self.ask("POST", path, body, optional=True)).result()
        return None if text is None else self.parsed(text.encode())

    async def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, optional: bool = False
    ) -> str | None:
        """optional: whether a proxy may keep it to itself."""
        try:
            async with asyncio.timeout(ASK_SECONDS), self._http.stream(method, path, json=body) as response:
                if response.status_code in (404, 405, *(UNWILLING if optional else ())):
                    return None
                content = await self._content(response)
                self._check_status(response, content)
        except TimeoutError:
            raise self.error(f"has not answered within {ASK_SECONDS:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            raise self.failed(error) from None
        return content.decode("utf-8", "replace")

    def stream(self, path: str, body: dict[str, Any], most: int) -> "Stream":
        """Asks for a stream of events. most: how many events it can have at most."""
        return Stream(self, path, body, most)

    async def events(self, path: str, body: dict[str, Any], most: int) -> AsyncIterator[Arrived]:
        """The events of a stream up to its [DONE]."""
        count = 0
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    self._check_status(response, await self._content(response))
                async for line, at in _lines(response, self):
                    # Other lines are comments and the names of fields that are not used here.
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    count += 1
                    if count > most:
                        raise self.error("does not end its answer: it has sent more than was asked for")
                    yield Arrived(self._event(data), at)
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise self.failed(error) from None
        raise self.error("broke off in the middle of its answer")

    def _event(self, data: bytes) -> dict[str, Any]:
        event = self.parsed(data)
        if not isinstance(event, dict):
            raise self.error("sent something else than events of a completion")
        if event.get("error"):
            raise self.error(f"gave the run up: {self._said(event)}")
        return event

    def parsed(self, data: bytes) -> Any:
        try:
            return json.loads(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise self.error("sent bytes that are not UTF-8") from None
        except (ValueError, RecursionError):
            raise self.error("sent something that is not JSON") from None

    async def _content(self, response: httpx.Response) -> bytes:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > LONGEST_ANSWER:
                raise self.error("sent an answer that is too long")
        return bytes(content)

    def _check_status(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        if status in (401, 403):
            raise self.error(
                "refuses the key, or wants one: set --vllm-key-from-env to a variable that has it"
            )
        if response.is_redirect:
            raise self.error("answers from another address, which is not followed: give that address")
        if status != 200:
            try:
                said = self._said(json.loads(content))
            except (ValueError, RecursionError):
                said = response.reason_phrase
            raise self.error(f"answers with status {status}: {said or 'no reason given'}")

    def _said(self, answer: Any) -> str:
        """What it says is wrong, on one line."""
        while isinstance(answer, dict) and ("error" in answer or "message" in answer):
            answer = answer.get("message", answer.get("error"))
        return " ".join(str(answer).split())[:SHOWN].rstrip(".")

    def error(self, what: str) -> ServerError:
        return ServerError(f"{self.called} {without_directories(what) if self.is_named else what}")

    def silent(self) -> ServerError:
        return self.error(f"has sent no token for {self.read_seconds:g} s")

    def failed(self, error: Exception) -> ServerError:
        """What went wrong with a connection, in a sentence."""
        if isinstance(error, httpx.ReadTimeout):
            return self.silent()
        if isinstance(error, httpx.TimeoutException):
            return self.error(f"did not take a connection within {CONNECT_SECONDS:.0f} s")
        words = " ".join(str(error).split())[:SHOWN]
        why = f": {words}" if words and not self.is_named else ""  # they can tell the host
        if "CERTIFICATE" in words or isinstance(error, ssl.SSLError):
            return self.error(f"has no certificate that can be trusted{why}")
        if isinstance(error, httpx.ConnectError):
            return self.error(f"cannot be reached{why}")
        if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
            return self.error("broke off the connection")
        return self.error(f"cannot be used: {type(error).__name__}{why}")


async def _lines(response: httpx.Response, client: Client) -> AsyncIterator[tuple[bytes, float]]:
    """The lines of a body as bytes, so that what is not UTF-8 is seen, each with its arrival."""
    rest = bytearray()
    async for part in response.aiter_bytes():
        at = time.perf_counter()
        rest += part
        if b"\n" not in part:
            if len(rest) > LONGEST_LINE:
                raise client.error("sent a line that is too long")
            continue
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in lines:
            yield line.rstrip(b"\r"), at
    if rest.strip():
        raise client.error("broke off in the middle of a line")


class Stream:
    """A stream of events. Read it with `next`; `close` ends it from any thread, and the connection with
    it."""

    def __init__(self, client: Client, path: str, body: dict[str, Any], most: int):
        self._arrived: queue.SimpleQueue[Arrived | BaseException | None] = queue.SimpleQueue()
        self.asked_at = time.perf_counter()
        self._reading = run(self._read(client.events(path, body, most)))

    async def _read(self, events: AsyncIterator[Arrived]) -> None:
        try:
            async for event in events:
                self._arrived.put(event)
            self._arrived.put(None)
        except Exception as error:
            self._arrived.put(error)

    def next(self, seconds: float) -> Arrived | None:
        """The next event; None at the stream's end. TimeoutError if there is none for so long; raises what
        went wrong."""
        try:
            arrived = self._arrived.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(arrived, BaseException):
            raise arrived
        return arrived

    def close(self) -> None:
        self._reading.cancel()
        with suppress(BaseException):
            self._reading.result(timeout=2)
