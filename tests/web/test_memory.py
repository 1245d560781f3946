"""What the server keeps of visitors who have been there."""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from gradio_client import Client

from specdemo.ui.runs.limits import LOCAL, MIB
from tests.web.conftest import tiny_pair
from tests.web.dense import dense_trace
from tests.web.server import Server, watched

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc"),
]

LEFT = 10  # MiB that may stay
VISITORS = 10
VIEWS, VIEWS_ROOM, VIEW_MS = 300, 60, 30  # MiB for all of them, ms of CPU for one
TRACES = 400  # MiB for what they open: one such trace alone, kept as objects, takes 250 to 330


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("log"), *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
        yield server


def told(capsys, what: str) -> None:
    with capsys.disabled():
        print(f"\n{what}")


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Asks again while the server is busy."""
    while (answer := ask()).status_code == 429:
        time.sleep(float(answer.headers.get("Retry-After", 2)))
    assert answer.status_code == 200, answer.text[:200]
    return answer


def run_by_httpx(server: Server) -> None:
    assert "event: complete" in server.run()


def run_by_gradio_client(server: Server) -> None:
    assert Client(server.url, verbose=False).predict("Once", api_name="/generate", max_new_tokens=4)


def run_that_is_left(server: Server) -> None:
    asked = {"prompt": "Once", "max_new_tokens": 1_000, "ignore_eos": True}
    calls = f"{server.url}/gradio_api/call"
    with httpx.Client(timeout=120) as client:
        event = patiently(lambda: client.post(f"{calls}/v2/generate", json=asked)).json()["event_id"]
        with client.stream("GET", f"{calls}/generate/{event}") as stream:
            said = (json.loads(line[6:])[0] for line in stream.iter_lines() if line.startswith("data: "))
            next(message for message in said if message["text"])


# first: runs that are made before, until the allocator has what it needs
@pytest.mark.parametrize(
    ("visit", "first", "times"),
    [(run_by_httpx, 60, 500), (run_by_gradio_client, 60, 500), (run_that_is_left, 400, 180)],
)
def test_runs_leave_nothing_behind(server, visit, first, times, capsys):
    held = []
    for count in (first, times):
        for _ in range(count):
            visit(server)
        time.sleep(3)
        held.append(server.memory())
    more = held[1] - held[0]
    told(capsys, f"{times} times {visit.__name__}: {more:.1f} MiB more, {held[1]:.0f} MiB in all")
    assert more < LEFT


def test_the_opened_traces_of_ten_visitors_take_a_bounded_room(server, tmp_path, capsys):
    """Each another one, as large as can be opened. They do not fit together in what is kept, so each is read
    again."""
    dense_trace(tmp_path / "dense.json", 13 * 2**20)
    whole = json.loads((tmp_path / "dense.json").read_text())
    bodies = [json.dumps(whole | {"prompt": f"visitor {number}"}).encode() for number in range(VISITORS)]
    assert all(13 * 2**20 < len(body) < LOCAL.trace_bytes for body in bodies)

    def opened(body: bytes) -> None:
        opening = f"{server.url}/specdemo/traces"
        assert patiently(lambda: httpx.post(opening, content=body, timeout=300)).json()["update"]["until"]

    before, most = server.memory(), []
    with ThreadPoolExecutor(VISITORS) as visitors:
        for _ in range(3):
            list(visitors.map(opened, bodies))
            time.sleep(3)
            most.append(server.memory() - before)
    said = ", ".join(f"{more:.0f}" for more in most)
    told(capsys, f"{VISITORS} visitors open a dense trace each, three times: {said} MiB more")
    assert max(most) < TRACES


def test_300_views_at_once_cost_little(tmp_path, capsys):
    """With the embedded pair loaded, whose weights take 57 MB."""

    def view(_) -> int:
        return httpx.get(server.url, timeout=120).status_code

    with watched(tmp_path) as server, ThreadPoolExecutor(VIEWS) as visitors:
        server.run()
        assert {*map(view, range(20))} == {200}
        before, server_cpu = server.memory(), psutil.Process(server.process.pid).cpu_times
        server.forget_peak()
        start = server_cpu().user + server_cpu().system
        assert {*visitors.map(view, range(VIEWS))} == {200}
        cpu_ms = 1000 * (server_cpu().user + server_cpu().system - start) / VIEWS
        more = server.peak() - before
    told(capsys, f"{VIEWS} views at once: {more:.0f} MiB more at most, {cpu_ms:.1f} ms of CPU each")
    assert more < VIEWS_ROOM and cpu_ms < VIEW_MS


def test_a_large_body_is_refused_before_it_is_read(server, capsys):
    server.forget_peak()
    before = server.memory()
    for path in ("gradio_api/call/v2/generate", "gradio_api/queue/join", "specdemo/traces"):
        try:
            answer = httpx.post(f"{server.url}/{path}", content=(b"x" * MIB for _ in range(300)), timeout=60)
        except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
            continue  # the connection was closed before it could send all of it
        assert answer.status_code == 413, answer.text
    more = server.peak() - before
    told(capsys, f"three bodies of 300 MiB: at most {more:.0f} MiB more")
    assert more < LOCAL.trace_bytes / MIB + 50
    assert "event: complete" in server.run()
