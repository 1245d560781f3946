"""The connections themselves, by real sockets: how many there can be, and how long a request may take."""

import logging
import resource
import select
import signal
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest

from specdemo.ui.front.connections import NO_FILES, seldom_logged
from specdemo.ui.runs.limits import LOCAL
from tests.web.conftest import tiny_pair
from tests.web.server import served_here, watched

pytestmark = pytest.mark.slow
HALF = b"GET /health HTTP/1.1\r\nHost: "
POSTS = ("/", "/gradio_api/queue/join", "/gradio_api/call/generate", "/gradio_api/mcp/", "/specdemo/traces")


def connected(url: str, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30)
    connection.sendall(sent)
    return connection


def request(url: str, line: str, *headers: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {urlsplit(url).netloc}", *headers, "", "")).encode()


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server ends it within so many seconds. What it sends before is left out."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([connection], [], [], left)[0]:
            try:
                if not connection.recv(2**16):
                    return True
            except OSError:
                return True
    return False


def answers(url: str) -> bool:
    """Also a visitor who comes with a new connection."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    return False


def test_headers_have_to_come_in_time_and_what_is_answered_goes_on(tmp_path):
    limits = replace(LOCAL, header_seconds=1.5)
    with served_here(tmp_path, limits) as (url, _), ExitStack() as stack:
        half = [stack.enter_context(connected(url, HALF)) for _ in range(30)]
        half += [stack.enter_context(connected(url)) for _ in range(5)]
        again = stack.enter_context(connected(url, request(url, "GET /health")))
        assert again.recv(2**16).startswith(b"HTTP/1.1 200")
        again.sendall(HALF)  # the connection's second request
        beating = stack.enter_context(connected(url, request(url, "GET /gradio_api/heartbeat/abc")))
        began = time.monotonic()
        while time.monotonic() - began < 1:
            time.sleep(0.2)
            for connection in (*half[:5], again):
                connection.sendall(b"x")  # more of it does not give it more time
        assert all(is_closed(connection, 3) for connection in (*half, again))
        assert time.monotonic() - began < 4
        assert not is_closed(beating, 0.5) and answers(url)


def test_a_new_connection_takes_the_place_of_one_that_waits(tmp_path, caplog):
    with served_here(tmp_path, replace(LOCAL, connections=20)) as (url, _), ExitStack() as stack:
        beating = stack.enter_context(connected(url, request(url, "GET /gradio_api/heartbeat/abc")))
        assert beating.recv(2**16)
        half = [stack.enter_context(connected(url, HALF)) for _ in range(100)]
        assert answers(url)
        assert all(is_closed(connection, 5) for connection in half[:80])
        assert not is_closed(beating, 0.2) and not is_closed(half[-1], 0.2)
        stream = [
            stack.enter_context(connected(url, request(url, f"GET /gradio_api/heartbeat/s{number}")))
            for number in range(30)
        ]
        time.sleep(1)
        closed = [is_closed(connection, 0.05) for connection in stream]
        assert sum(closed) == 30 - 19, (
            "all places are taken by those that are answered: the others are closed"
        )
        for connection in stream:
            connection.close()
        until = time.monotonic() + 10
        while not answers(url):
            assert time.monotonic() < until
    said = [record.getMessage() for record in caplog.records if "connections are open" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("20 connections are open")


@contextmanager
def files(count: int):
    """So many may be open in this process, and in those that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_flood_of_half_sent_headers_shuts_nobody_out(tmp_path):
    """More connections than the server may open files."""
    with ExitStack() as stack:
        with files(1024):
            server = stack.enter_context(watched(tmp_path, *tiny_pair(tmp_path)))
        stack.enter_context(files(4096))
        size, answered, asked = len(server.log()), 0, 0
        for number in range(2_000):
            with suppress(OSError):
                stack.enter_context(connected(server.url, HALF))
            if number % 100 == 99:
                answered, asked = answered + answers(server.url), asked + 1
        log = server.log()[size:]
        print(f"answered {answered} of {asked} requests beside 2,000 connections; log: {len(log)} bytes")
        assert answered == asked and "Traceback" not in log and len(log) < 2_000
        assert log.count("768 connections are open") == 1


def test_a_process_without_files_says_so_once(caplog):
    """asyncio tells each of thousands of attempts with a traceback."""
    log = logging.getLogger("test of asyncio's")
    log.addFilter(seldom_logged(*NO_FILES))
    for _ in range(1_000):
        log.error("socket.accept() out of system resource\nsocket: <socket>")
    log.error("something else")
    assert [record.getMessage() for record in caplog.records] == [
        "this process may open no more files: new connections have to wait",
        "something else",
    ]


def test_what_is_no_http_and_an_end_during_an_upload_write_no_traceback(tmp_path):
    with watched(tmp_path, *tiny_pair(tmp_path)) as server:
        for path in POSTS:
            chunked = request(server.url, f"POST {path}", "Transfer-Encoding: chunked")
            with (
                connected(server.url, chunked + b"zz\r\nxx") as at_once,
                connected(server.url, chunked) as later,
            ):
                assert at_once.recv(100).startswith(b"HTTP/1.1 400 ")
                later.sendall(b"5\r\nhello\r\n")
                time.sleep(0.2)
                with suppress(OSError):
                    later.sendall(b"zz\r\n")
                assert later.recv(100).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
                assert is_closed(at_once, 5) and is_closed(later, 10)
        with ExitStack() as stack:
            for path in POSTS:
                half = request(server.url, f"POST {path}", "Content-Length: 100000") + b'{"a'
                stack.enter_context(connected(server.url, half))
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
        assert "Traceback" not in server.log() and "ERROR" not in server.log(), server.log()


def test_a_second_reader_of_an_event_is_told_so(tmp_path):
    with served_here(tmp_path, LOCAL) as (url, _):
        asked = {"prompt": "Once", "max_new_tokens": 400, "ignore_eos": True}
        event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked).json()["event_id"]
        address = f"{url}/gradio_api/call/generate/{event}"
        with httpx.stream("GET", address) as first:
            lines = first.iter_lines()
            assert next(lines)
            second = httpx.get(address)
            assert second.status_code == 409
            assert second.json() == {"detail": "Somebody reads the answer of this event already."}
            assert "event: complete" in list(lines), "the first one has all of it"
        assert httpx.get(address).status_code == 404
