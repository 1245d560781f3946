"""The connections themselves, by real sockets. tests/pure/test_connection_table.py has their table."""

import resource
import signal
import socket
from contextlib import ExitStack, suppress
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from tests.web.conftest import tiny_pair
from tests.web.server import watched

pytestmark = pytest.mark.slow
HALF = b"GET /health HTTP/1.1\r\nHost: "
POSTS = ("/", "/gradio_api/queue/join", "/gradio_api/call/generate", "/gradio_api/mcp/", "/specdemo/traces")


def connected(url: str, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30)
    connection.sendall(sent)
    return connection


def request(url: str, line: str, *headers: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {urlsplit(url).netloc}", *headers, "", "")).encode()


def wait_until_closed(connection: socket.socket) -> None:
    """The server ends it; what it sends before is left out."""
    with suppress(ConnectionError):
        while connection.recv(2**16):
            pass


def answers(url: str) -> bool:
    """Also a visitor who comes with a new connection."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=60).status_code == 200
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It may open 1,024 files."""
    folder = tmp_path_factory.mktemp("server")
    few_files = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (1024, 1024))
    with watched(folder, *tiny_pair(folder), change=few_files) as server:
        yield server


@pytest.fixture
def many_files():
    """This process may open 4,096."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_flood_of_half_sent_headers_shuts_nobody_out(server, many_files):
    """More connections than the server may open files."""
    with ExitStack() as stack:
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


def test_what_is_no_http_and_an_end_during_an_upload_write_no_traceback(server):
    """It ends the server, so it is the last one here."""
    for path in POSTS:
        chunked = request(server.url, f"POST {path}", "Transfer-Encoding: chunked")
        with connected(server.url, chunked + b"zz\r\nxx") as wrong, connected(server.url, chunked) as later:
            assert wrong.recv(100).startswith(b"HTTP/1.1 400 ")
            later.sendall(b"5\r\nhello\r\n")
            assert answers(server.url)  # so it has come to the part before
            with suppress(OSError):
                later.sendall(b"zz\r\n")
            assert later.recv(100).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
            wait_until_closed(wrong)
            wait_until_closed(later)
    with ExitStack() as stack:
        for path in POSTS:
            half = request(server.url, f"POST {path}", "Content-Length: 100000") + b'{"a'
            stack.enter_context(connected(server.url, half))
        assert answers(server.url) and answers(server.url)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert "Traceback" not in server.log() and "ERROR" not in server.log(), server.log()
