"""The server goes on answering others while it does something large for one."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx
import pytest
from gradio_client import Client

from tests.web.dense import dense_trace

TOKENS = 400
DENSE = {
    **{"prompt": "Once upon a time", "gamma": 16, "alternatives": 50, "temperature": 2.0, "top_p": 1.0},
    **{"max_new_tokens": TOKENS, "ignore_eos": True, "seed": 1},
}
STILL = 1.0  # s; on a machine of its own 0.2, but others use it, too


def is_still_answered(url: str, capsys, what: str, ask: Callable[[], bool]) -> bool:
    """Asks for something large, and meanwhile for something small all the time."""
    times = []
    with ThreadPoolExecutor(1) as other, httpx.Client(timeout=60) as client:
        asked = other.submit(ask)
        while not asked.done():
            start = time.perf_counter()
            client.get(f"{url}/theme.css")
            times.append(time.perf_counter() - start)
            time.sleep(0.02)
    half, slowest = median(times), max(times)
    with capsys.disabled():
        print(f"\n{what}: {len(times)} answers, half within {half:.3f} s, the slowest after {slowest:.2f} s")
    return asked.result() and slowest < STILL


def body_of(folder, size: int) -> bytes:
    dense_trace(folder / "dense.json", size)
    return (folder / "dense.json").read_bytes()


def opened(url: str, body: bytes) -> int:
    return httpx.post(f"{url}/specdemo/traces", content=body, timeout=120).json()["update"]["until"]


@pytest.mark.long
def test_while_a_dense_trace_is_opened(url, tmp_path, capsys):
    body = body_of(tmp_path, 13 * 2**20)
    assert is_still_answered(url, capsys, "opening 13 MB", lambda: opened(url, body) > 100)


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
    what = f"a run with gamma 16 and 50 alternatives {ask.__name__.replace('_', ' ')}"
    assert is_still_answered(url, capsys, what, lambda: ask(url))


def test_ten_visitors_open_the_same_trace_at_once(bare, tmp_path):
    body = body_of(tmp_path, 2**20)
    with ThreadPoolExecutor(10) as visitors:
        assert len(set(visitors.map(opened, [bare] * 10, [body] * 10))) == 1
