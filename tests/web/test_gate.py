"""What the server lets in and what it frees again, seen from outside."""

import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import gradio as gr
import httpx
import pytest

from specdemo.ui.runs.limits import HOSTED
from tests.web.conftest import tiny_pair
from tests.web.server import Server, served_here, watched

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with watched(folder, *tiny_pair(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Its address and the page itself, which Gradio numbers as the second one of this process."""
    with gr.Blocks():
        gr.Textbox()
    limits = replace(HOSTED, listen_seconds=3, reader_seconds=3)
    with served_here(tmp_path_factory.mktemp("here"), limits) as (url, demo):
        yield url, demo


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_server_tells_that_it_works_and_every_answer_has_its_headers(server):
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok", "busy": False, "waiting": 0})
    for path in ("/", "/health", "/nothing", "/gradio_api/queue/data?session_hash=nobody"):
        headers = httpx.get(f"{server.url}{path}").headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"].startswith("frame-ancestors 'self' ")


def test_the_document_of_the_api_is_true(server):
    """Gradio's own. It has an upload of files besides, which is not offered here."""
    paths = httpx.get(f"{server.url}/gradio_api/openapi.json").json()["paths"]
    assert httpx.post(f"{server.url}/gradio_api/upload").status_code == 404
    calls = {path.rpartition("/")[2]: path for path in paths if "/call/v2/" in path}
    assert calls.keys() == {"generate", "pairs"}
    schema = paths[calls["generate"]]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "max_new_tokens"} <= schema["properties"].keys()
    event = httpx.post(f"{server.url}{calls['pairs']}", json={}).json()["event_id"]
    (reading,) = (path for path in paths if path.endswith("/call/pairs/{event_id}"))
    assert "event: complete" in httpx.get(server.url + reading.replace("{event_id}", event)).text


def flood(url: str, requests: int, name: str = "pairs", body: dict | None = None) -> Counter:
    """The statuses of so many requests whose answers nobody reads."""

    def ask(count: int) -> Counter:
        with httpx.Client(timeout=120) as client:
            address = f"{url}/gradio_api/call/v2/{name}"
            return Counter(client.post(address, json=body or {}).status_code for _ in range(count))

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(ask, [requests // 8] * 8), Counter())


def modest(url: str, ends: Future) -> list[tuple[int, str]]:
    """What a second visitor, who reads each answer, gets meanwhile: statuses and streams. It has another
    address on this machine."""
    got = []
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=120) as client:
        while not ends.done() or len(got) < 2:
            asked = client.post(f"{url}/gradio_api/call/v2/pairs", json={})
            event = asked.json().get("event_id", "none")
            got.append((asked.status_code, client.get(f"{url}/gradio_api/call/pairs/{event}").text))
    return got


def turned_away(server: Server, requests: int, **asked) -> None:
    """Most of so many requests are, and another visitor's are answered meanwhile."""
    before = server.memory()
    with ThreadPoolExecutor(1) as pool:
        flooding = pool.submit(flood, server.url, requests, **asked)
        others = modest(server.url, flooding)
        statuses = flooding.result()
    more = server.memory() - before
    print(f"{requests} unread requests: {dict(statuses)}, {more:.0f} MiB more; {len(others)} of another one")
    assert statuses.keys() == {200, 429} and statuses.total() == requests
    assert [one for one in others if one[0] != 200 or "event: complete" not in one[1]] == []
    assert "event: complete" in server.run()
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    assert more < 400 and "Traceback" not in server.log()


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc")
@pytest.mark.parametrize("requests", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_flood_of_requests_that_nobody_reads_is_turned_away(server, requests):
    """Gradio keeps the messages of 2,000 sessions, and its queue ended for good when the oldest had to go."""
    turned_away(server, requests)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc")
def test_a_flood_of_the_largest_requests_at_a_hosted_server(tmp_path):
    body = {"prompt": "x" * HOSTED.prompt_characters, "stop": [f"{n:03}" + "y" * 997 for n in range(64)]}
    with watched(tmp_path, "--hosted", *tiny_pair(tmp_path)) as server:
        assert "event: complete" in server.run()
        turned_away(server, 4_000, name="generate", body=body)


def test_an_answer_is_read_once_and_dropped_where_nobody_begins_to_read_it(here):
    url, demo = here

    def asked() -> str:
        return httpx.post(f"{url}/gradio_api/call/v2/pairs", json={}).json()["event_id"]

    def read(event: str) -> httpx.Response:
        return httpx.get(f"{url}/gradio_api/call/pairs/{event}")

    first, second = asked(), asked()
    assert "event: complete" in read(first).text
    wait_until(lambda: second not in demo._queue.pending_messages_per_session)
    for event in (first, second):
        gone = read(event)
        assert gone.status_code == 404 and "has been read or dropped" in gone.json()["detail"]


def test_names_that_only_the_page_uses_cannot_be_called(server):
    config = httpx.get(f"{server.url}/config").json()
    private = [one for one in config["dependencies"] if one["api_visibility"] == "private"]
    assert private
    for one in private:
        for path in ("call", "run"):
            answer = httpx.post(f"{server.url}/gradio_api/{path}/{one['api_name']}", json={"data": []})
            assert answer.status_code == 404, (path, one["api_name"])
    dropdown = next(one for one in private if one["api_name"] == "run_on_stage")
    values = [None] * len(dropdown["inputs"])
    values[:2] = "Once", "no such pair"
    body = {"session_hash": "visitor", "fn_index": dropdown["id"], "data": values}
    wrong = httpx.post(f"{server.url}/gradio_api/queue/join", json=body)
    assert wrong.status_code == 400
    assert re.match('Pair must be one of .*, not "no such pair".', wrong.json()["detail"])


def test_a_second_page_of_one_process_takes_its_own_events(here):
    """Gradio numbers the pages of a process from 0 on."""
    url, demo = here
    at_load = [one for one in demo.config["dependencies"] if (demo._id, "load") in one["targets"]]
    assert at_load and demo._id
    for event in at_load:
        body = {"session_hash": "visitor", "fn_index": event["id"], "trigger_id": demo._id}
        inputs = [demo.blocks[number] for number in event["inputs"]]
        empty = {gr.Textbox: "", gr.State: None}
        body["data"] = [empty.get(type(block), block.value) for block in inputs]
        way = "queue/join" if event["queue"] else "run/predict"
        answer = httpx.post(f"{url}/gradio_api/{way}", json=body)
        assert answer.status_code == 200, answer.text


def test_what_is_kept_for_a_reader_that_has_stopped_reading_is_freed(here):
    url, demo = here
    for listening in demo.server.servers:
        for sock in listening.sockets:  # connections take it from here: some systems buffer a whole run
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    asked = {"prompt": "Once", "max_new_tokens": 1_000, "alternatives": 10, "ignore_eos": True}
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=asked).json()["event_id"]
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", urlsplit(url).port))
        reader.sendall(f"GET /gradio_api/call/generate/{event} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        kept = demo._queue.pending_messages_per_session
        wait_until(lambda: event in kept and kept[event].qsize() >= 2)
        wait_until(lambda: event not in kept)
