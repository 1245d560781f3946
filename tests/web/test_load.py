"""Many visitors, what the server keeps of those who have been there, and that it answers others while it does
something large for one."""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from specdemo.events.trace import Trace, rounds_json
from specdemo.ui.runs.limits import LOCAL
from tests.web.conftest import RECORDED, tiny_pair, with_rounds
from tests.web.server import Server, awaited, watched

pytestmark = pytest.mark.long
READS_PROC = pytest.mark.skipif(sys.platform != "linux", reason="it reads the process's memory from /proc")

GREEDY = 600
LONG = {"max_new_tokens": 1_000, "ignore_eos": True, "alternatives": 0}
SHORT = {"max_new_tokens": 3, "ignore_eos": True}
LEFT = 10  # MiB that may stay
VISITORS = 10
TRACES = 400  # MiB for what they open: one such trace alone, kept as objects, takes 250 to 330
TOKENS = 400
DENSE = {
    **{"prompt": "Once upon a time", "gamma": 16, "alternatives": 50, "temperature": 2.0, "top_p": 1.0},
    **{"max_new_tokens": TOKENS, "ignore_eos": True, "seed": 1},
}


def address(number: int) -> dict[str, str]:
    """What a host's proxy writes about a visitor. Before it stands what the visitor wrote."""
    return {"X-Forwarded-For": f"1.2.3.4, 8.8.8.{number}"}


async def messages_of(browser: httpx.AsyncClient, event: str, url: str) -> AsyncIterator[tuple[str, object]]:
    """(kind, data) of all that the server sends about an event of the API."""
    async with browser.stream("GET", f"{url}/gradio_api/call/v2/generate/{event}") as answer:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind != "heartbeat":
                yield kind, json.loads(line.removeprefix("data: "))


async def ask(browser: httpx.AsyncClient, url: str, number: int, **how) -> str:
    """Asks for a run from an address; the event's id."""
    body = {"prompt": "Once"} | how
    said = await browser.post(f"{url}/gradio_api/call/v2/generate", json=body, headers=address(number))
    return said.json()["event_id"]


def patient() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None))


def test_a_greedy_visitor_delays_a_modest_one_by_a_turn_or_two(hosted):
    said: list[tuple[str, object]] = []  # what each of the greedy one's callers has read first

    async def places(browser: httpx.AsyncClient, number: int, **how) -> list[int]:
        """Those in line that a visitor reads until its run has ended."""
        found, event = [], await ask(browser, hosted, number, **how)
        async for kind, data in messages_of(browser, event, hosted):
            assert kind in ("generating", "complete"), data
            if "in line" in data[0].get("waiting", ""):
                found.append(int(data[0]["waiting"].split()[3]))
        return found

    async def stay(browser: httpx.AsyncClient) -> None:
        try:
            messages = messages_of(browser, await ask(browser, hosted, 1, **LONG), hosted)
            said.append(await anext(messages))
            async for _ in messages:
                pass
        except (KeyError, StopAsyncIteration, httpx.TransportError):  # the gate has let it in no further
            said.append(("error", "refused"))

    async def visit() -> tuple[list[int], list[int]]:
        async with patient() as browser:
            await places(browser, 1, **SHORT)  # loads the pair
            callers = [asyncio.create_task(stay(browser)) for _ in range(GREEDY)]
            while len(said) < GREEDY:
                await asyncio.sleep(0.05)
            beside = await places(browser, 2, **SHORT)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            return beside, await places(browser, 2, **SHORT)

    beside, after = awaited(visit())
    assert beside in ([], [1], [2], [2, 1])
    assert after in ([], [1]), "those who have left do not run"
    assert any("gave up its place" in str(sentence) for kind, sentence in said if kind == "error")


def test_eight_clients_at_once_get_the_runs_that_they_would_get_alone(url):
    def run(seed: int) -> list:
        asked = {"prompt": f"Visitor {seed}", "seed": seed, "max_new_tokens": 24, "api_name": "/generate"}
        trace = Client(url, verbose=False).predict(**asked)["trace"]
        return [trace["prompt"], trace["text"], *((one["draft"], one["next"]) for one in trace["rounds"])]

    alone = [run(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == alone


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("log"), *tiny_pair(tmp_path_factory.mktemp("pair"))) as server:
        yield server


def dense_trace(file: Path, size: int) -> Trace:
    """Saves a trace of about this many bytes, which take more room in memory: drafts of 16 tokens, 50
    alternatives each."""
    dice, run = random.Random(1), Trace.load(RECORDED)
    trace = with_rounds(run, [])

    def top() -> tuple:
        return tuple((n, f" token {n}", *(dice.random() / 50 for _ in range(4))) for n in range(50))

    own = replace(run.rounds[0], gamma=None)
    length = 0
    while length < size:
        token = replace(own.draft[0], fate="accepted", u=0.1, accept_prob=1.0)
        draft = tuple(replace(token, top=top()) for _ in range(16))
        bonus = replace(own.next, source="bonus", residual_mass=None, top=top())
        emitted = (*(token.id for token in draft), bonus.id)
        trace.add(replace(own, index=len(trace.rounds), draft=draft, next=bonus, emitted=emitted))
        length += len(rounds_json(trace.rounds[-1:]))
    trace.end("length")
    trace.save(file)
    return trace


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Asks again while the server is busy."""
    while (answer := ask()).status_code == 429:
        time.sleep(float(answer.headers.get("Retry-After", 2)))
    assert answer.status_code == 200, answer.text[:200]
    return answer


def run_by_httpx(server: Server) -> None:
    assert "event: complete" in server.run()


def run_that_is_left(server: Server) -> None:
    asked = {"prompt": "Once", "max_new_tokens": 1_000, "ignore_eos": True}
    calls = f"{server.url}/gradio_api/call"
    with httpx.Client(timeout=120) as client:
        event = patiently(lambda: client.post(f"{calls}/v2/generate", json=asked)).json()["event_id"]
        with client.stream("GET", f"{calls}/generate/{event}") as stream:
            said = (json.loads(line[6:])[0] for line in stream.iter_lines() if line.startswith("data: "))
            next(message for message in said if message["text"])


@READS_PROC
# first: runs that are made before, until the allocator has what it needs
@pytest.mark.parametrize(("visit", "first", "times"), [(run_by_httpx, 60, 500), (run_that_is_left, 400, 180)])
def test_runs_leave_nothing_behind(server, visit, first, times):
    held = []
    for count in (first, times):
        for _ in range(count):
            visit(server)
        time.sleep(3)
        held.append(server.memory())
    more = held[1] - held[0]
    print(f"{times} times {visit.__name__}: {more:.1f} MiB more, {held[1]:.0f} MiB in all")
    assert more < LEFT


@READS_PROC
def test_the_opened_traces_of_ten_visitors_take_a_bounded_room(server, tmp_path):
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
    print(f"{VISITORS} visitors open a dense trace each, three times: {most} MiB more")
    assert max(most) < TRACES


def answered_meanwhile(url: str, ask: Callable[[], object]) -> int:
    """How often something small is answered while this is done."""
    count = 0
    with ThreadPoolExecutor(1) as other, httpx.Client(timeout=60) as client:
        asked = other.submit(ask)
        while not asked.done():
            count += client.get(f"{url}/theme.css").status_code == 200
    asked.result()
    return count


def test_while_a_dense_trace_is_opened(url, tmp_path):
    dense_trace(tmp_path / "dense.json", 13 * 2**20)
    body = (tmp_path / "dense.json").read_bytes()
    opening = f"{url}/specdemo/traces"
    assert answered_meanwhile(url, lambda: httpx.post(opening, content=body, timeout=120)) > 10


def test_while_a_dense_run_streams(url):
    event = httpx.post(f"{url}/gradio_api/call/v2/generate", json=DENSE).json()["event_id"]
    address = f"{url}/gradio_api/call/generate/{event}"
    assert answered_meanwhile(url, lambda: httpx.get(address, timeout=300)) > TOKENS / 4
