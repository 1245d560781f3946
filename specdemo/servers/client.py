"""HTTP to one server: questions, and streams, each in a thread, which any other thread can end."""

import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic_core import from_json

from specdemo.errors import LoadError, PairError, hide, redacted, without_directories
from specdemo.words.message import about

Body = dict[str, Any]
Condition = Callable[[], bool]
Arrived = tuple[bytes, float]  # an answer or an event of a stream, and when it came, by time.perf_counter
Read = Callable[[httpx.Response], Iterator[Arrived]]

# No server may cost those who use others their time or memory, so what is taken from one is bounded, here and
# in the other modules: beyond it the run or the load ends with a sentence. pydantic's parser of JSON has
# bounds of its own: lists in lists to a depth of 200, integers of 4,300 digits, no NaN, no half pairs.
LONGEST_ANSWER = 2_000_000  # bytes; a list of a thousand models takes 600,000
LONGEST_EVENT = 2_000_000  # bytes of a stream: fifty alternatives for each of 256 tokens, as a chat has them
ID_BYTES = 12  # a token id in JSON: the first event of a run has those of the prompt
RUN_BYTES = 4_000_000  # of a whole stream, besides what each of its tokens may take
TOKEN_BYTES = 2_000  # a chunk around one token, with the model's name
ALTERNATIVE_BYTES = 400  # on average; in a chat a token of seven Chinese characters takes 230
SPARE_EVENTS = 8  # of a stream besides those with tokens: a chat's first one, the usage
LONGEST_REASON = 300  # characters of what a server says is wrong

LONGEST_ADDRESS = 2_000  # characters
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0  # to each of the host's addresses; without a token
ASK_SECONDS, OPTIONAL_SECONDS = 20.0, 5.0  # for a short answer as a whole
STOP_PERIOD = 0.05  # s between two looks whether to stop waiting
NOTHING_THERE, UNWILLING = (404, 405), (401, 403, 501, 502, 503)
LOOPBACK = r"localhost|::1|127(\.\d+){3}"  # the host's names for this machine


def server_address(url: object) -> str:
    """Without the API's path and without a slash at its end; PairError for what is no address."""
    fault = PairError(about("server", "address"))  # which does not show it: there could be a password in it
    if not isinstance(url, str) or len(url) > LONGEST_ADDRESS or not url.isprintable():
        raise fault
    try:
        parts = urlsplit(url.strip())
        is_sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # also for a port that is no number
        raise fault from None
    if not is_sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise fault
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def host_of(address: str) -> str:
    """The address without its scheme, for names."""
    return address.partition("://")[2]


def readable(text: str) -> str:
    """To be called before the text is cut: a part of a key would not be known as such."""
    return "".join(sign if sign.isprintable() else "?" for sign in redacted(text))


def never() -> bool:
    return False


class ServerError(LoadError):
    """A server cannot be used, or a run on it broke off: one sentence."""


@dataclass(frozen=True)
class Request:
    """For a stream, and the most tokens of its text and of its prompt, and bytes of an event and of all."""

    path: str
    body: Body
    tokens: int
    alternatives: int
    prompt_ids: int

    @property
    def longest_event(self) -> int:
        return LONGEST_EVENT + ID_BYTES * self.prompt_ids

    @property
    def most_bytes(self) -> int:
        token = TOKEN_BYTES + ALTERNATIVE_BYTES * (1 + self.alternatives)
        return RUN_BYTES + ID_BYTES * self.prompt_ids + token * self.tokens


class Client:
    """key: sent as a bearer token, and in no message. name: stands for the address in messages."""

    def __init__(self, address: str, key: str | None = None, name: str | None = None):
        self.address, self.name = address, name
        # A compressed answer could unfold to any size.
        self._headers = {"User-Agent": "specdemo", "Accept-Encoding": "identity"}
        if key is not None:
            if not key.isascii() or not key.isprintable() or not key.strip():
                raise ServerError("server: the key for it is empty or cannot be sent")
            quoted = key.replace("\\", "\\\\")  # as in a list
            for form in (key, quoted, quoted.replace("'", "\\'")):
                hide(form)
            self._headers["Authorization"] = f"Bearer {key}"
        self._tls, self.read_seconds = httpx.create_ssl_context(), READ_SECONDS  # the longest silence

    def opened(self) -> httpx.Client:
        """A proxy that the environment names is used, but not for a server on this machine."""
        try:
            return httpx.Client(
                headers=self._headers,
                verify=self._tls,
                timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # Exchange.next counts other waiting
                follow_redirects=False,  # to another host, which would get the prompt and the key
                trust_env=not re.fullmatch(LOOPBACK, urlsplit(self.address).hostname or ""),
            )
        except (ImportError, ValueError, httpx.InvalidURL):  # a kind of proxy that httpx does not know here
            raise self.error("cannot be asked: the proxy of the environment cannot be used") from None

    def ask(
        self,
        path: str,
        body: Body | None = None,
        seconds: float = ASK_SECONDS,
        is_over: Condition = never,
        most: int = LONGEST_ANSWER,
    ) -> bytes | None:
        """What is at a path, or answers a question; None where nothing is, once `is_over`, and where a proxy
        does not let the question through. most: bytes."""
        lacking = NOTHING_THERE if body is None else NOTHING_THERE + UNWILLING

        def read(response: httpx.Response) -> Iterator[Arrived]:
            if response.status_code not in lacking:
                yield self._content(response, most), time.perf_counter()

        with closing(Exchange(self, path, body, read)) as exchange:
            late = partial(self.error, f"has not answered within {seconds:g} s")
            arrived = exchange.next(exchange.asked_at + seconds, is_over, late)
        return arrived and arrived[0]

    def glance(self, path: str, is_over: Condition = never, most: int = LONGEST_ANSWER) -> bytes | None:
        """What is at a path and can be done without: None whatever goes wrong. most: bytes."""
        with suppress(ServerError):
            return self.ask(path, None, OPTIONAL_SECONDS, is_over, most)
        return None

    def field(self, path: str, body: Body, name: str, ids: int, is_over: Condition) -> Any:
        """That of an answer in JSON; None where it has none, and once `is_over`. ids: the most in it."""
        answer = self.ask(path, body, is_over=is_over, most=LONGEST_ANSWER + ID_BYTES * ids)
        fields = None if answer is None else self.parsed(answer)
        return fields.get(name) if isinstance(fields, dict) else None

    def stream(self, request: Request) -> "Exchange":
        """Asks for events."""
        return Exchange(self, request.path, request.body, partial(self._events, request))

    def _events(self, request: Request, response: httpx.Response) -> Iterator[Arrived]:
        """The lines with data. Others are comments, and the names of fields that are not used here."""
        if response.status_code != 200:
            self._content(response, LONGEST_ANSWER)
        rest, count = bytearray(), 0
        for part in self._parts(response, request.most_bytes):
            at = time.perf_counter()
            rest += part
            *lines, rest = rest.split(b"\n") if b"\n" in part else [rest]
            for data in [line[5:].strip() for line in lines if line.startswith(b"data:")]:
                if data == b"[DONE]":
                    return
                count += 1
                if count > request.tokens + SPARE_EVENTS:
                    raise self.error("does not end its answer: it has sent more than was asked for")
                yield bytes(data), at
            if len(rest) > request.longest_event:
                raise self.error(f"sent a line that is too long: more than {request.longest_event:,} bytes")

    def _content(self, response: httpx.Response, most: int) -> bytes:
        """What the server answers. ServerError if that is not what was asked for."""
        content, status = b"".join(self._parts(response, most)), response.status_code
        if status in (401, 403):
            advice = "set --server-key-from-env to a variable that has it"
            raise self.error(f"refuses the key, or wants one: {advice}")
        if response.is_redirect:
            raise self.error("answers from another address, which is not followed: give that address")
        if status != 200:
            try:
                reason = self._reason(from_json(content, allow_inf_nan=False))
            except ValueError:
                reason = self._reason(response.reason_phrase)
            raise self.error(f"answers with status {status}: {reason or 'no reason given'}")
        return content

    def _parts(self, response: httpx.Response, most: int) -> Iterator[bytes]:
        """The parts of a body as they arrive. most: the most bytes of all."""
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            if response.status_code == 200:  # else the status says more
                raise self.error("compresses its answers, although it is asked not to")
            return
        for part in response.iter_raw():
            if response.num_bytes_downloaded > most:
                raise self.error(f"sent an answer to {response.url.path} of more than {most:,} bytes")
            yield part

    def event(self, data: bytes) -> dict[str, Any]:
        event = self.parsed(data)
        if not isinstance(event, dict):
            raise self.error("sent something else than events of a completion")
        if event.get("error"):
            raise self.error(f"gave the run up: {self._reason(event)}")
        return event

    def parsed(self, data: bytes) -> Any:
        try:
            return from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise self.error(f"sent something that is not JSON as a server sends it: {error}") from None

    def error(self, what: str) -> ServerError:
        if self.name is None:
            return ServerError(f"the server at {self.address} {readable(what)}")
        return ServerError(f"{self.name} {without_directories(readable(what))}")

    def silent(self) -> ServerError:
        return self.error(f"has sent no token for {self.read_seconds:g} s")

    def failed(self, error: Exception) -> Exception:
        """What went wrong with a connection, in a sentence; another error as it is."""
        if not isinstance(error, (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError)):
            return error
        words = self._reason(error) or type(error).__name__
        # They can tell the host.
        return self.error("cannot be reached" if self.name else f"cannot be reached: {words}")

    def _reason(self, answer: Any) -> str:
        """What the server's answer says is wrong, on one line."""
        while isinstance(answer, dict) and ("error" in answer or "message" in answer):
            answer = answer.get("message", answer.get("error"))
        return self.without_host(" ".join(redacted(str(answer)).split()))[:LONGEST_REASON].rstrip(".")

    def without_host(self, words: str) -> str:
        """The server's words with its name in the place of its host, if it has one."""
        if (name := self.name) is None:
            return words
        host = re.escape(urlsplit(self.address).hostname or self.address)
        return re.sub(rf"(?<!\w)\[?{host}\]?(:\d+)?(?!\w)", lambda _: name, words, flags=re.IGNORECASE)


class Exchange:
    """One request, in a thread. `next` gives what `read` makes of the response; any thread may `close` it."""

    def __init__(self, client: Client, path: str, body: Body | None, read: Read):
        self._client, self._url, self._body, self._read = client, client.address + path, body, read
        self._arrived: queue.SimpleQueue[Arrived | Exception | None] = queue.SimpleQueue()
        self._socket: socket.socket | None = None
        # Reentrant, since garbage that is collected while it is held can close this very exchange.
        self._lock, self._is_closed, self._process = threading.RLock(), False, os.getpid()
        self.asked_at = time.perf_counter()
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:
            raise client.error("cannot be asked: no more threads can be started here") from None

    def _run(self) -> None:
        client, method = self._client, "GET" if self._body is None else "POST"
        try:
            asked = {"json": self._body, "extensions": {"trace": self._trace}}
            with client.opened() as http, http.stream(method, self._url, **asked) as response:
                for arrived in self._read(response):
                    self._arrived.put(arrived)
            self._arrived.put(None)
        except Exception as error:
            self._arrived.put(client.failed(error))
        finally:
            with self._lock:
                if self._socket is not None:
                    self._socket.close()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpcore. TLS takes the socket away from its stream, so a copy is kept."""
        if event.endswith("connect_tcp.complete"):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket").dup()
                if self._is_closed:
                    self.close()

    def next(self, until: float, is_over: Condition, late: Callable[[], ServerError]) -> Arrived | None:
        """None at the end, and once `is_over`. Raises what went wrong, and `late` if nothing comes."""
        while not is_over():
            with suppress(queue.Empty):
                arrived = self._arrived.get(timeout=STOP_PERIOD)
                if isinstance(arrived, Exception):
                    raise arrived
                return arrived
            if time.perf_counter() > until:
                raise late()
        return None

    def close(self) -> None:
        """Ends the connection, or sends nothing over it if it is not made yet."""
        if os.getpid() != self._process:  # a forked one shares the connection
            return
        with self._lock, suppress(OSError):  # where it has ended
            self._is_closed = True
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
