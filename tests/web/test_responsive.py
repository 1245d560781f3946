"""The server goes on answering others while it does something large for one."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from gradio_client import Client

from tests.web.dense import dense_trace

pytestmark = pytest.mark.slow

TOKENS = 400
DENSE = {
    **{"prompt": "Once upon a time", "gamma": 16, "alternatives": 50, "temperature": 2.0, "top_p": 1.0},
    **{"max_new_tokens": TOKENS, "ignore_eos": True, "seed": 1},
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
    half, slowest = times[len(times) // 2], times[-1]
    with capsys.disabled():
        print(f"\n{what}: {len(times)} answers, half within {half:.3f} s, the slowest after {slowest:.2f} s")
    assert slowest < STILL


def body_of(folder, size: int) -> bytes:
    dense_trace(folder / "dense.json", size)
    return (folder / "dense.json").read_bytes()


def opened(url: str, body: bytes) -> int:
    return httpx.post(f"{url}/specdemo/traces", content=body, timeout=120).json()["update"]["until"]


@pytest.mark.long
def test_while_a_dense_trace_is_opened(url, tmp_path, capsys):
    body = body_of(tmp_path, 13 * 2**20)
    with probing(url, capsys, "opening 13 MB"):
        assert opened(url, body) > 100


def by_gradio_client(url: str) -> bool:
    last = Client(url, verbose=False).predict(**DENSE, api_name="/generate")
    return len(last["trace"]["output_ids"]) == TOKENS


def by_http(url: str) -> bool:
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=DENSE).json()["event_id"]
    return "event: complete" in httpx.get(f"{url}/gradio_api/call/generate/{event}", timeout=300).text


def by_a_tool(url: str) -> bool:
    arguments = {"name": "generate", "arguments": DENSE}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
    accept = {"Accept": "application/json, text/event-stream"}
    said = httpx.post(f"{url}/gradio_api/mcp/", json=call, headers=accept, timeout=300).text
    return f"({TOKENS} tokens, " in said


@pytest.mark.long
@pytest.mark.parametrize("ask", [by_gradio_client, by_http, by_a_tool])
def test_while_a_dense_run_streams(url, capsys, ask):
    Client(url, verbose=False).predict("Once", max_new_tokens=2, api_name="/generate")
    with probing(url, capsys, f"a run with gamma 16 and 50 alternatives {ask.__name__.replace('_', ' ')}"):
        assert ask(url)


def test_ten_visitors_open_the_same_trace_at_once(bare, tmp_path):
    body = body_of(tmp_path, 2**20)
    with ThreadPoolExecutor(10) as visitors:
        assert len(set(visitors.map(opened, [bare] * 10, [body] * 10))) == 1
