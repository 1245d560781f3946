"""Many visitors at once: fifty runs, and one greedy visitor beside a modest one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gradio_client import Client

from specdemo.ui.runs.limits import HOSTED
from tests.web.server import awaited

pytestmark = pytest.mark.long

CLIENTS, SEEDS = 50, 10
GREEDY = 600
LONG = {"max_new_tokens": 1_000, "ignore_eos": True, "alternatives": 0}
SHORT = {"max_new_tokens": 3, "ignore_eos": True}


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


def test_fifty_clients_at_once_each_get_the_run_that_they_would_get_alone(url, capsys):
    def run(client: Client, seed: int) -> list[dict]:
        asked = {"prompt": f"Visitor {seed}", "seed": seed, "max_new_tokens": 24, "ignore_eos": True}
        job = client.submit(**asked, api_name="/generate")
        job.result(timeout=300)
        return job.outputs()

    clients = [Client(url, verbose=False, httpx_kwargs={"timeout": 120}) for _ in range(CLIENTS)]
    alone = [run(clients[seed], seed)[-1]["trace"] for seed in range(SEEDS)]
    start = time.perf_counter()
    seeds = [number % SEEDS for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = list(pool.map(run, clients, seeds))
    took = time.perf_counter() - start
    for seed, messages in zip(seeds, runs, strict=True):
        trace = messages[-1]["trace"]
        assert without_times(trace) == without_times(alone[seed])
        streamed = [one for message in messages for one in message["rounds"]]
        assert streamed == trace["rounds"], "complete and in order"
        assert all(trace["text"].startswith(message["text"]) for message in messages)
    waited = sum(any("waiting" in message for message in messages) for messages in runs)
    with capsys.disabled():
        print(f"\n{CLIENTS} clients at once: {took:.1f} s in all, {waited} waited")
    assert waited >= CLIENTS // 2


def without_times(trace: dict) -> dict:
    rounds = [{name: one[name] for name in one if not name.endswith("_ms")} for one in trace["rounds"]]
    return {name: trace[name] for name in ("prompt", "output_ids", "text", "finish")} | {"rounds": rounds}


def test_a_greedy_visitor_delays_a_modest_one_by_a_turn_or_two(hosted, capsys):
    said: list[tuple[str, object]] = []  # what each of the greedy one's callers has read first

    async def begins(browser: httpx.AsyncClient, number: int, **how) -> tuple[list[int], float, float]:
        """The places that a visitor reads, and the seconds until its run begins and ends."""
        places, began, start = [], None, time.perf_counter()
        event = await ask(browser, hosted, number, **how)
        async for kind, data in messages_of(browser, event, hosted):
            assert kind in ("generating", "complete"), data
            if "in line" in data[0].get("waiting", ""):
                places.append(int(data[0]["waiting"].split()[3]))
            else:
                began = began or time.perf_counter() - start
        return places, began, time.perf_counter() - start

    async def stay(browser: httpx.AsyncClient) -> None:
        try:
            messages = messages_of(browser, await ask(browser, hosted, 1, **LONG), hosted)
            said.append(await anext(messages))
            async for _ in messages:
                pass
        except (KeyError, StopAsyncIteration, httpx.TransportError):  # the gate has let it in no further
            said.append(("error", "refused"))

    async def visit() -> tuple[float, list[int], float, float]:
        async with patient() as browser:
            await begins(browser, 1, **LONG)  # loads the pair
            *_, one_turn = await begins(browser, 1, **LONG)
            callers = [asyncio.create_task(stay(browser)) for _ in range(GREEDY)]
            while len(said) < GREEDY:
                await asyncio.sleep(0.05)
            places, delay, _ = await begins(browser, 2, **SHORT)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            _, after, _ = await begins(browser, 2, **SHORT)
        return one_turn, places, delay, after

    one_turn, places, delay, after = awaited(visit())
    refusals = [str(sentence) for kind, sentence in said if kind == "error"]
    with capsys.disabled():
        print(f"\n{GREEDY} requests, {len(refusals)} of them refused; a turn takes {one_turn:.1f} s; another")
        print(f"visitor was number {places} and began after {delay:.1f} s; the next run began {after:.1f} s")
        print("after the callers had left")
    assert places in ([], [1], [2], [2, 1])
    assert delay < 5 * one_turn + 5
    limit = f"busy: {HOSTED.waiting_of_address} requests of your network"
    assert any(limit in sentence for sentence in refusals)
    assert after < one_turn + 5, "those who have left do not run"
