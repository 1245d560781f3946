"""HTTP to one server, at the address that a user writes: short questions, and streams that any thread can
close. The connections live in one event loop, in a thread of its own, since a blocking read could not be
ended from outside."""

import asyncio
import queue
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic_core import from_json

from specdemo.errors import LoadError, PairError, hide, without_directories
from specdemo.words.message import about, refusal

_T = TypeVar("T")
Body = dict[str, Any]
Condition = Callable[[], bool]

# No server may cost those who use others their time or memory, so what is taken from one is bounded, here and
# in the other modules: beyond it the run or the load ends with a sentence. pydantic's parser of JSON has
# bounds of its own: it refuses lists in lists deeper than 200, integers of more than 4,300 digits, NaN, and
# half a surrogate pair. Answers are asked for uncompressed, so bytes are those that arrive.
LONGEST_ANSWER = 2_000_000  # bytes; a list of a thousand models takes 600,000
LONGEST_EVENT = 2_000_000  # bytes of a stream: fifty alternatives for each of 256 tokens, as a chat has them
ID_BYTES = 12  # a token id in JSON: the first event of a run has those of the prompt
RUN_BYTES = 4_000_000  # of a whole stream, besides what each of its tokens may take
TOKEN_BYTES = 2_000  # a chunk around one token, with the model's name
ALTERNATIVE_BYTES = 400  # on average; in a chat a token of seven Chinese characters takes 230
SPARE_IDS = 20_000  # of a prompt besides one for each of its bytes: what a chat template adds
SPARE_EVENTS = 8  # of a stream besides those with tokens: a chat's first one, the usage
LONGEST_TOKEN = 1_000  # characters; the longest in known vocabularies are 128 to 256 blanks or signs
TEXT_A_TOKEN = 256  # characters of a whole text, on average
SAID = 300  # characters of what a server says is wrong

LONGEST_ADDRESS = 2_000  # characters
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
ASK_SECONDS, OPTIONAL_SECONDS = 20.0, 5.0  # for a short answer as a whole
UNWILLING = (401, 403, 501, 502, 503)


def server_address(url: object) -> str:
    """The server's address without the API's path and without a slash at its end; PairError for what is no
    address."""
    if not isinstance(url, str) or not url.strip() or len(url) > LONGEST_ADDRESS or not url.isprintable():
        raise PairError(refusal("server", "address", url))
    try:
        parts = urlsplit(url.strip())
        is_read = parts.port != 0  # raises where it is no number
    except ValueError:
        is_read = False
    if not is_read:
        raise PairError(about("server", "unreadable_address"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PairError(refusal("server", "scheme", url.rpartition("@")[2]))
    if parts.username is not None or parts.password is not None:
        raise PairError(about("server", "password"))
    if parts.query or parts.fragment:
        raise PairError(about("server", "query"))
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def never() -> bool:
    return False


def readable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def host_of(address: str) -> str:
    """The address without its scheme, for names."""
    return address.partition("://")[2]


class ServerError(LoadError):
    """A server cannot be used, or a run on it broke off: one sentence."""


@dataclass(frozen=True)
class Room:
    """The most that the answer to one request may have. tokens: those of the text; prompt_ids: those of the
    prompt."""

    tokens: int
    alternatives: int
    prompt_ids: int

    @property
    def events(self) -> int:
        return self.tokens + SPARE_EVENTS

    @property
    def line(self) -> int:
        """The most bytes of one event."""
        return LONGEST_EVENT + ID_BYTES * self.prompt_ids

    @property
    def stream(self) -> int:
        """The most bytes of all events."""
        token = TOKEN_BYTES + ALTERNATIVE_BYTES * (1 + self.alternatives)
        return RUN_BYTES + ID_BYTES * self.prompt_ids + token * self.tokens

    @property
    def text(self) -> int:
        """The most characters of the text."""
        return TEXT_A_TOKEN * self.tokens + LONGEST_TOKEN


@dataclass(frozen=True)
class Request:
    """A request for a stream. room: what the answer may have. done: whether [DONE] ends it."""

    path: str
    body: Body
    room: Room
    done: bool = True


class Arrived(NamedTuple):
    """An event of a stream as its bytes, and when it came, by time.perf_counter."""

    data: bytes
    at: float


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def run_in_loop(work: Coroutine[Any, Any, _T]) -> "Future[_T]":
    """Runs in the servers' event loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


class Client:
    """HTTP to one server. key: sent as a bearer token, and in no message. name: stands for the address in
    messages."""

    def __init__(self, address: str, key: str | None = None, name: str | None = None):
        self.address = address
        self.called, self.is_named = name or f"the server at {address}", name is not None
        # A compressed answer could unfold to any size.
        headers = {"User-Agent": "specdemo", "Accept-Encoding": "identity"}
        if key is not None:
            if not key.isascii() or not key.isprintable() or not key.strip():
                raise ServerError("server: the key for it is empty or cannot be sent")
            hide(key)
            headers["Authorization"] = f"Bearer {key}"
        self.read_seconds = READ_SECONDS  # the longest silence
        self._headers, self._tls = headers, httpx.create_ssl_context()

    def optional(
        self, path: str, is_over: Condition = never, seconds: float | None = None, most: int = LONGEST_ANSWER
    ) -> str | None:
        """The text at a path that a run can do without. None if the server lacks it, refuses it or takes
        longer than `seconds` (OPTIONAL_SECONDS by default), and once `is_over`. most: see `ask`."""
        asked = run_in_loop(self.ask("GET", path, optional=True, most=most))
        return _awaited(asked, OPTIONAL_SECONDS if seconds is None else seconds, is_over)

    def post(self, path: str, body: Body, is_over: Condition, most: int) -> Any:
        """The JSON that answers a question; None where the server does not take it, and once `is_over`."""
        asked = run_in_loop(self.ask("POST", path, body, optional=True, most=most))
        text = _awaited(asked, 2 * ASK_SECONDS, is_over)  # it gives up earlier by itself
        return None if text is None else self.parsed(text.encode())

    async def ask(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        optional: bool = False,
        most: int = LONGEST_ANSWER,
    ) -> str | None:
        """The text at a path; None where the server has nothing there. ServerError otherwise.
        optional: whether a proxy may keep it to itself. most: the most bytes of the answer."""
        try:
            async with asyncio.timeout(ASK_SECONDS), self._answer(method, path, body) as response:
                if response.status_code in (404, 405, *(UNWILLING if optional else ())):
                    return None
                content = await self._content(response, most)
                self._check_status(response, content)
        except TimeoutError:
            raise self.error(f"has not answered within {ASK_SECONDS:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            raise self.failed(error) from None
        return content.decode("utf-8", "replace")

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Body | None) -> AsyncIterator[httpx.Response]:
        """A response whose body has not been read yet, over a connection of its own. In a pool that requests
        share, a connection stays for good if its request is cancelled while it is opened or closed."""
        http = httpx.AsyncClient(
            base_url=self.address,
            headers=self._headers,
            timeout=httpx.Timeout(self.read_seconds, connect=CONNECT_SECONDS),
            verify=self._tls,
            follow_redirects=False,  # to another host, which would get the prompt and the key
        )
        try:
            async with http.stream(method, path, json=body) as response:
                yield response
        finally:
            await asyncio.shield(asyncio.ensure_future(http.aclose()))

    async def events(self, request: Request) -> AsyncIterator[Arrived]:
        """The events of a stream, up to its [DONE] if it has one."""
        count, room = 0, request.room
        try:
            async with self._answer("POST", request.path, request.body) as response:
                if response.status_code != 200:
                    self._check_status(response, await self._content(response, LONGEST_ANSWER))
                async for line, at in self._lines(response, room):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    count += 1
                    if count > room.events:
                        raise self.error("does not end its answer: it has sent more than was asked for")
                    yield Arrived(data, at)
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise self.failed(error) from None
        if request.done:
            raise self.error("broke off in the middle of its answer")

    async def _lines(self, response: httpx.Response, room: Room) -> AsyncIterator[tuple[bytes, float]]:
        """The lines with data as bytes, so that what is not UTF-8 is seen, each with its arrival. Other
        lines are comments and the names of fields that are not used here."""
        rest, count = bytearray(), 0
        async for part in self._plain(response):
            at = time.perf_counter()
            rest += part
            count += len(part)
            if count > room.stream:
                raise self.error(f"sent more than {room.stream:,} bytes for {room.tokens:,} tokens")
            if b"\n" in part:
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                for line in lines:
                    if line.startswith(b"data:"):
                        yield line, at
            if len(rest) > room.line:
                raise self.error(f"sent a line that is too long: more than {room.line:,} bytes")
        if rest.strip():
            raise self.error("broke off in the middle of a line")

    def event(self, data: bytes) -> dict[str, Any]:
        event = self.parsed(data)
        if not isinstance(event, dict):
            raise self.error("sent something else than events of a completion")
        if event.get("error"):
            raise self.error(f"gave the run up: {self._said(event)}")
        return event

    def parsed(self, data: bytes) -> Any:
        try:
            return from_json(data.decode("utf-8"), allow_inf_nan=False)
        except UnicodeDecodeError:
            raise self.error("sent bytes that are not UTF-8") from None
        except ValueError as error:
            raise self.error(
                f"sent something that is not JSON, or not as a server sends it: {error}"
            ) from None

    async def _content(self, response: httpx.Response, most: int) -> bytes:
        content = bytearray()
        async for part in self._plain(response):
            content += part
            if len(content) > most:
                raise self.error(f"sent an answer to {response.url.path} of more than {most:,} bytes")
        return bytes(content)

    async def _plain(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The parts of a body as they arrive."""
        if response.headers.get("Content-Encoding", "identity").strip().lower() == "identity":
            async for part in response.aiter_raw():
                yield part
        elif response.status_code == 200:  # else the status says more
            raise self.error("compresses its answers, although it is asked not to")

    def _check_status(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        if status in (401, 403):
            advice = "set --server-key-from-env to a variable that has it"
            raise self.error(f"refuses the key, or wants one: {advice}")
        if response.is_redirect:
            raise self.error("answers from another address, which is not followed: give that address")
        if status != 200:
            try:
                said = self._said(from_json(content, allow_inf_nan=False))
            except ValueError:
                said = response.reason_phrase
            raise self.error(f"answers with status {status}: {said or 'no reason given'}")

    def _said(self, answer: Any) -> str:
        """What the server's answer says is wrong, on one line."""
        while isinstance(answer, dict) and ("error" in answer or "message" in answer):
            answer = answer.get("message", answer.get("error"))
        return " ".join(str(answer).split())[:SAID].rstrip(".")

    def error(self, what: str) -> ServerError:
        what = readable(what)
        return ServerError(f"{self.called} {without_directories(what) if self.is_named else what}")

    def silent(self) -> ServerError:
        return self.error(f"has sent no token for {self.read_seconds:g} s")

    def failed(self, error: Exception) -> ServerError:
        """What went wrong with a connection, in a sentence."""
        if isinstance(error, httpx.ReadTimeout):
            return self.silent()
        if isinstance(error, httpx.TimeoutException):
            return self.error(f"did not take a connection within {CONNECT_SECONDS:.0f} s")
        words = " ".join(str(error).split())[:SAID]
        why = f": {words}" if words and not self.is_named else ""  # they can tell the host
        if "CERTIFICATE" in words or isinstance(error, ssl.SSLError):
            return self.error(f"has no certificate that can be trusted{why}")
        if isinstance(error, httpx.ConnectError):
            return self.error(f"cannot be reached{why}")
        if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
            return self.error("broke off the connection")
        return self.error(f"cannot be used: {type(error).__name__}{why}")


def _awaited(asked: "Future[str | None]", seconds: float, is_over: Condition) -> str | None:
    """The answer; None if there is none within so many seconds, or before `is_over`."""
    until = time.monotonic() + seconds
    while not is_over() and time.monotonic() < until:
        with suppress(TimeoutError):
            return asked.result(timeout=0.05)
    asked.cancel()
    return None


class Stream:
    """Asks for a stream of events. `next` reads it; `close` ends it, and its connection, from any thread."""

    def __init__(self, client: Client, request: Request):
        self._arrived: queue.SimpleQueue[Arrived | BaseException | None] = queue.SimpleQueue()
        self.asked_at = time.perf_counter()
        self.client = client
        self._reading = run_in_loop(self._read(client.events(request)))

    async def _read(self, events: AsyncIterator[Arrived]) -> None:
        try:
            async for event in events:
                self._arrived.put(event)
            self._arrived.put(None)
        except Exception as error:
            self._arrived.put(error)

    def next(self, seconds: float) -> tuple[dict[str, Any], float] | None:
        """The next event and its arrival; None at the stream's end. TimeoutError if there is none for so
        long; raises what went wrong."""
        try:
            arrived = self._arrived.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(arrived, BaseException):
            raise arrived
        # The event is read here and not where it arrives: many objects are made of few bytes.
        return None if arrived is None else (self.client.event(arrived.data), arrived.at)

    def close(self) -> None:
        self._reading.cancel()
        with suppress(BaseException):
            self._reading.result(timeout=2)
