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
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc"),
]

RUNS, FIRST_RUNS = 500, 60  # the first ones: until the allocator has what it needs
CANCELLED, FIRST_CANCELLED = 180, 400
LEFT = 10  # MiB that may stay
VISITORS = 10
VIEWS, VIEWS_ROOM, VIEW_MS = 300, 60, 30  # MiB for all of them, ms of CPU for one
TRACES = 400  # MiB for what they open: one such trace alone, kept as objects, takes 250 to 330


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("log"), *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
        yield server


def more_after(server: Server, times: int, first: int, visit: Callable[[], None], what: str, capsys) -> float:
    """MiB that the server holds more after so many visits. first: visits that are made before."""
    for _ in range(first):
        visit()
    time.sleep(3)
    before = server.memory()
    for _ in range(times):
        visit()
    time.sleep(3)
    more = server.memory() - before
    with capsys.disabled():
        print(f"\n{times} {what}: {more:.1f} MiB more, {server.memory():.0f} MiB in all")
    return more


@pytest.mark.parametrize("caller", ["httpx", "gradio_client"])
def test_short_runs_leave_nothing_behind(server, caller, capsys):
    def visit() -> None:
        if caller == "httpx":
            assert "event: complete" in server.run()
        else:
            assert Client(server.url, verbose=False).predict("Once", api_name="/generate", max_new_tokens=4)

    assert more_after(server, RUNS, FIRST_RUNS, visit, f"short runs by {caller}", capsys) < LEFT


def test_runs_that_are_left_leave_nothing_behind(server, capsys):
    def visit() -> None:
        with httpx.Client(timeout=120) as client:
            asked = {"prompt": "Once", "max_new_tokens": 1_000, "ignore_eos": True}
            answer = client.post(f"{server.url}/gradio_api/call/v2/generate", json=asked)
            while answer.status_code == 429:
                time.sleep(float(answer.headers["Retry-After"]))
                answer = client.post(f"{server.url}/gradio_api/call/v2/generate", json=asked)
            address = f"{server.url}/gradio_api/call/generate/{answer.json()['event_id']}"
            with client.stream("GET", address) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: ") and json.loads(line[6:])[0]["text"]:
                        return
        raise AssertionError("the run said nothing")

    assert more_after(server, CANCELLED, FIRST_CANCELLED, visit, "runs left in the middle", capsys) < LEFT


def test_the_opened_traces_of_ten_visitors_take_a_bounded_room(server, tmp_path, capsys):
    """Each another one, as large as can be opened. They do not fit together in what is kept, so each is read
    again."""
    dense_trace(tmp_path / "dense.json", 13 * 2**20)
    whole = json.loads((tmp_path / "dense.json").read_text())
    bodies = [json.dumps(whole | {"prompt": f"visitor {number}"}).encode() for number in range(VISITORS)]
    assert all(13 * 2**20 < len(body) < LOCAL.trace_bytes for body in bodies)

    def opened(body: bytes) -> None:
        while (
            answer := httpx.post(f"{server.url}/specdemo/traces", content=body, timeout=300)
        ).status_code == 429:
            time.sleep(2)
        assert answer.status_code == 200 and answer.json()["update"]["until"], answer.text[:200]

    before, most = server.memory(), []
    with ThreadPoolExecutor(VISITORS) as visitors:
        for _ in range(3):
            list(visitors.map(opened, bodies))
            time.sleep(3)
            most.append(server.memory() - before)
    with capsys.disabled():
        said = ", ".join(f"{more:.0f}" for more in most)
        print(f"\n{VISITORS} visitors open a dense trace each, three times: {said} MiB more")
    assert max(most) < TRACES


def test_300_views_at_once_cost_little(tmp_path, capsys):
    """With the embedded pair loaded, whose weights take 57 MB."""
    with watched(tmp_path) as server:
        server.run()
        for _ in range(20):
            assert httpx.get(server.url).status_code == 200
        before, server_cpu = server.memory(), psutil.Process(server.process.pid).cpu_times
        server.forget_peak()
        start = server_cpu().user + server_cpu().system
        with ThreadPoolExecutor(VIEWS) as visitors:
            answers = list(
                visitors.map(lambda _: httpx.get(server.url, timeout=120).status_code, range(VIEWS))
            )
        cpu_ms = 1000 * (server_cpu().user + server_cpu().system - start) / VIEWS
        more = server.peak() - before
        with capsys.disabled():
            print(f"\n{VIEWS} views at once: {more:.0f} MiB more at most, {cpu_ms:.1f} ms of CPU each")
        assert answers == [200] * VIEWS
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
    with capsys.disabled():
        print(f"\nthree bodies of 300 MiB: at most {more:.0f} MiB more")
    assert more < LOCAL.trace_bytes / MIB + 50
    assert "event: complete" in server.run()
