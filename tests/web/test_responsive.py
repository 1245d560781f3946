"""The server goes on answering others while it does something large for one."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from gradio_client import Client

from tests.web.dense import dense_trace

pytestmark = pytest.mark.slow

DENSE = {
    **{"prompt": "Once upon a time", "gamma": 16, "alternatives": 50, "temperature": 2.0, "top_p": 1.0},
    **{"max_new_tokens": 400, "ignore_eos": True, "seed": 1},
}
STILL = 1.0  # s; on a machine of its own 0.2, but others use it, too
# Asks for something small all the time, in a process of its own; writes the longest times that it took.
PROBE = """
import sys, time, httpx
times = []
with httpx.Client(timeout=60) as client:
    while True:
        start = time.perf_counter()
        client.get(sys.argv[1])
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            print("ready", flush=True)
        time.sleep(0.02)
        print(times[-1], flush=True)
"""


@contextmanager
def probing(url: str, capsys, what: str):
    command = [sys.executable, "-c", PROBE, f"{url}/theme.css"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout.readline() == "ready\n"
        with ThreadPoolExecutor(1) as reader:
            lines = reader.submit(probe.stdout.read)
            try:
                yield
            finally:
                probe.kill()
            times = sorted(map(float, lines.result().splitlines()[1:-1]))
    with capsys.disabled():
        print(
            f"\n{what}: {len(times)} answers, the slowest after {times[-1]:.2f} s, "
            f"half of them within {times[len(times) // 2]:.3f} s"
        )
    assert times[-1] < STILL


@pytest.mark.long
def test_while_a_dense_trace_is_opened(url, tmp_path, capsys):
    dense_trace(tmp_path / "dense.json", 13 * 2**20)
    body = (tmp_path / "dense.json").read_bytes()
    httpx.post(f"{url}/specdemo/traces", content=b"{}", timeout=60)
    with probing(url, capsys, "opening 13 MB"):
        opened = httpx.post(f"{url}/specdemo/traces", content=body, timeout=120)
    assert opened.json()["update"]["until"] > 100


def by_client(url: str) -> None:
    last = Client(url, verbose=False).predict(**DENSE, api_name="/generate")
    assert len(last["trace"]["output_ids"]) == DENSE["max_new_tokens"]


def by_the_plain_route(url: str) -> None:
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=DENSE).json()["event_id"]
    stream = httpx.get(f"{url}/gradio_api/call/generate/{event}", timeout=300).text
    *_, last = (line for line in stream.splitlines() if line.startswith("data: "))
    assert len(json.loads(last[6:])[0]["trace"]["output_ids"]) == DENSE["max_new_tokens"]


def by_a_tool(url: str) -> None:
    arguments = {"name": "generate", "arguments": DENSE}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
    accept = {"Accept": "application/json, text/event-stream"}
    said = httpx.post(f"{url}/gradio_api/mcp/", json=call, headers=accept, timeout=300).text
    assert f"({DENSE['max_new_tokens']} tokens, " in said


@pytest.mark.long
@pytest.mark.parametrize("ask", [by_client, by_the_plain_route, by_a_tool])
def test_while_a_dense_run_streams(url, capsys, ask):
    Client(url, verbose=False).predict("Once", max_new_tokens=2, api_name="/generate")
    with probing(url, capsys, f"a run with gamma 16 and 50 alternatives {ask.__name__.replace('_', ' ')}"):
        ask(url)


def test_thirty_visitors_open_the_same_trace_at_once(url, tmp_path):
    dense_trace(tmp_path / "dense.json", 2**20)
    body = (tmp_path / "dense.json").read_bytes()

    def opened(_) -> int:
        return httpx.post(f"{url}/specdemo/traces", content=body, timeout=120).json()["update"]["until"]

    with ThreadPoolExecutor(30) as visitors:
        assert len(set(visitors.map(opened, range(30)))) == 1
