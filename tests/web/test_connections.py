"""The server's process: its connections, by real sockets, its end on a signal, and app.py's flags.
tests/pure/test_connection_table.py has the connections' table."""

import resource
import signal
import socket
import time
from contextlib import ExitStack, suppress
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest
from gradio_client import Client
from gradio_client.client import Job
from huggingface_hub import constants

import app
from specdemo.ui.page import serve
from specdemo.ui.page.serve import SIGNALS, ended_by_signals
from tests.web.conftest import address_of, fork, tiny_pair
from tests.web.server import watched

HALF = b"GET /health HTTP/1.1\r\nHost: "
POSTS = ("/", "/gradio_api/queue/join", "/gradio_api/mcp/", "/specdemo/runs", "/specdemo/traces")
LONG = {"max_new_tokens": 30_000, "ignore_eos": True, "alternatives": 0, "api_name": "/generate"}


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
    """It may open 1,024 files, and also answers to lab.example."""
    folder = tmp_path_factory.mktemp("server")
    few_files = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (1024, 1024))
    with watched(folder, *tiny_pair(folder), "--allow-host", "lab.example", change=few_files) as server:
        yield server


@pytest.mark.slow
def test_it_answers_to_a_name_that_is_allowed_and_to_no_other(server):
    for host, status in (("lab.example", 200), ("evil.example", 403)):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == status


@pytest.fixture
def many_files():
    """This process may open 4,096."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_flood_of_half_sent_headers_shuts_nobody_out(server, many_files):
    """More connections than the server may open files."""
    with ExitStack() as stack:
        size, answered, asked = len(server.log()), 0, 0
        for number in range(2_000):
            with suppress(OSError):
                stack.enter_context(connected(server.url, HALF))
            if number % 100 == 99:
                answered, asked = answered + answers(server.url), asked + 1
        assert answered == asked and server.log()[size:] == ""


@pytest.mark.slow
def test_a_second_host_and_what_is_no_length_are_refused_before_the_gate(server):
    """The gate reads one Host, and a length as a number."""
    lengths = ("many", "+1", "1_0", "9" * 5000, "1\r\nContent-Length: 2")
    for header in ("Host: evil.example", *(f"Content-Length: {length}" for length in lengths)):
        with connected(server.url, request(server.url, "POST /specdemo/runs", header)) as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 400 "), header[:50]


@pytest.mark.slow
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


def be_patient() -> None:
    """A busy machine may take longer to read the answers than visitors have."""
    serve.RUN_PATIENCE = serve.ANSWER_PATIENCE = 20


@pytest.fixture
def running(tmp_path):
    """The app's process."""
    app = fork(*tiny_pair(tmp_path), change=be_patient)
    try:
        yield app
    finally:
        app.kill()
        app.wait()


def asked(url: str, until: str) -> Job:
    """A client's run that goes on, if until is "rounds", or stands in line, if it is "waiting"."""
    job = Client(url, verbose=False).submit("the cat sat", **LONG)
    while not job.done() and not any(answer.get(until) for answer in job.outputs()):
        time.sleep(0.05)
    return job


@pytest.mark.slow
def test_a_signal_ends_the_run_and_the_server_while_a_page_is_open(running):
    url = address_of(running)
    with httpx.stream("GET", f"{url}/gradio_api/heartbeat/page") as page:
        assert next(page.iter_lines())
        job, waiting = asked(url, "rounds"), asked(url, "waiting")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    trace = job.result(timeout=60)["trace"]
    assert trace["finish"] == "cancelled" and trace["rounds"]
    with pytest.raises(Exception, match="The server is being closed"):
        waiting.result(timeout=60)


class Finalized:
    """A signal comes while it is finalized, where an exception would be lost."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_is_not_lost_in_a_finalizer_and_a_second_one_ends_the_program_at_once():
    before = signal.getsignal(signal.SIGINT)
    with ended_by_signals() as ended:
        assert signal.getsignal(signal.SIGINT) is not before and ended.empty()
        Finalized()
        assert ended.get(timeout=60) is None
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) is before


def ended(capsys, *arguments: str) -> tuple[int, str]:
    """The exit status and standard error. A page that is up already when a mistake shows is taken down."""
    try:
        status = app.main(["--port", "0", *arguments])
    except SystemExit as ended:
        status = ended.code
    out, said = capsys.readouterr()
    assert out == "" and "Traceback" not in said
    return status, said


@pytest.mark.parametrize(
    "arguments, status, sentence",
    [
        (["--pair", "embeded"], 2, "did you mean embedded"),
        (["--drafter", "x"], 2, "drafter: there is no directory x"),
        (["--host", "203.0.113.7"], 1, "cannot listen on 203.0.113.7"),
        (["--allow-host", "https://lab.example"], 2, "--allow-host: must be the name or address of a host"),
        (["--vllm-key-from-env", "KEY"], 2, "server_key_from_env is for a server, so it needs --server"),
    ],
)
def test_a_wrong_flag_is_answered_in_a_sentence(capsys, monkeypatch, arguments, status, sentence):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # or one waits for a hub that is out of reach
    code, said = ended(capsys, *arguments)
    assert code == status and sentence in said
    assert all(line.startswith("app.py: ") for line in said.splitlines())


def test_a_port_in_use_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = ended(capsys, "--port", str(port))
    assert code == 1 and f"port {port}" in said
