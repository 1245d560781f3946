"""Many visitors at once: fifty runs, two hundred that leave, one greedy visitor beside a modest one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from threading import Event

import httpx
import pytest
from gradio_client import Client

from specdemo.ui.runs.limits import HOSTED
from tests.web.screen import generate, wait_for_end
from tests.web.server import awaited

pytestmark = [pytest.mark.slow, pytest.mark.long]

CLIENTS, SEEDS, ADDRESSES = 50, 10, 10
LEAVERS, AT_ONCE = 200, 20
GREEDY = 600
UNREAD = HOSTED.waiting + 1
LONG = {"max_new_tokens": 1_000, "ignore_eos": True, "alternatives": 0}
SHORT = {"max_new_tokens": 3, "ignore_eos": True}


def address(number: int) -> dict[str, str]:
    """What a host's proxy writes about a visitor. Before it stands what the visitor wrote."""
    return {"X-Forwarded-For": f"1.2.3.4, 8.8.{number // 250}.{number % 250 + 1}"}


def report(capsys, text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}")


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
    said = await browser.post(
        f"{url}/gradio_api/call/v2/generate", json={"prompt": "Once"} | how, headers=address(number)
    )
    return said.json()["event_id"]


@contextmanager
def crowd(url: str, addresses: Iterable[int]) -> Iterator[list[tuple[str, object]]]:
    """Callers who ask for long runs at once and read their answers, until they all leave. Gives what each has
    read first."""

    async def read(browser: httpx.AsyncClient, number: int) -> None:
        try:
            event = await ask(browser, url, number, **LONG)
        except KeyError:  # the gate has let it in no further
            said.append(("error", "refused"))
            return
        async with aclosing(messages_of(browser, event, url)) as messages:
            try:
                said.append(await anext(messages, ("error", "dropped")))
            except httpx.TransportError as error:  # on a connection that has just been closed as idle
                said.append(("error", repr(error)))
            async for _ in messages:
                pass

    async def stay() -> None:
        async with patient() as browser:
            readers.extend(asyncio.create_task(read(browser, number)) for number in addresses)
            while not left.is_set():
                await asyncio.sleep(0.05)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    said: list[tuple[str, object]] = []
    readers: list[asyncio.Task] = []
    left = Event()
    with ThreadPoolExecutor(1) as pool:
        visit = pool.submit(asyncio.run, stay())
        try:
            end = time.perf_counter() + 120
            while not readers or len(said) < len(readers):
                assert time.perf_counter() < end, f"{len(said)} have read something"
                time.sleep(0.05)
            yield said
        finally:
            left.set()
            visit.result(60)


async def first_said(url: str, number: int) -> tuple[str, str, float]:
    """Asks for a short run: the kind and the text of the first answer, and how long it took."""
    start = time.perf_counter()
    async with patient() as browser:
        event = await ask(browser, url, number, **SHORT)
        async with aclosing(messages_of(browser, event, url)) as messages:
            kind, data = await anext(messages)
    return kind, str(data), time.perf_counter() - start


async def some_said(url: str, number: int, count: int) -> list[tuple[str, str, float]]:
    """The same for so many requests at once, for which the turns that have passed made no room."""
    return await asyncio.gather(*(first_said(url, number) for _ in range(count)))


def patient() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None))


def test_fifty_clients_at_once_each_get_the_run_that_they_would_get_alone(url, capsys):
    def run(client: Client, seed: int) -> tuple[list[dict], float]:
        start = time.perf_counter()
        job = client.submit(
            f"Visitor {seed}", seed=seed, max_new_tokens=24, ignore_eos=True, api_name="/generate"
        )
        job.result(timeout=300)
        return job.outputs(), time.perf_counter() - start

    with ThreadPoolExecutor(CLIENTS) as pool:
        patience = {"timeout": 120}
        clients = [Client(url, verbose=False, httpx_kwargs=patience) for _ in range(CLIENTS)]
        alone = [run(clients[seed], seed)[0][-1]["trace"] for seed in range(SEEDS)]
        start = time.perf_counter()
        seeds = [number % SEEDS for number in range(CLIENTS)]
        runs = list(pool.map(run, clients, seeds))
        took = time.perf_counter() - start
    for seed, (messages, _) in zip(seeds, runs, strict=True):
        trace = messages[-1]["trace"]
        assert without_times(trace) == without_times(alone[seed])
        streamed = [one for message in messages for one in message["rounds"]]
        assert streamed == trace["rounds"], "complete and in order"
        assert all(trace["text"].startswith(message["text"]) for message in messages)
        waits = [message for message in messages if "waiting" in message]
        assert all((message["text"], message["rounds"]) == ("", []) for message in waits)
        places = [int(wait["waiting"].split()[3]) for wait in waits if "in line" in wait["waiting"]]
        # It grows while those who asked before begin to read their answers. All have one address.
        falling = places[places.index(max(places)) :] if places else []
        assert falling == sorted(falling, reverse=True), "nobody is overtaken"
    waited = sum(any("waiting" in message for message in messages) for messages, _ in runs)
    assert waited >= CLIENTS // 2
    longest = max(seconds for _, seconds in runs)
    report(
        capsys,
        f"{CLIENTS} clients at once: {took:.1f} s in all, {longest:.1f} s for the last, {waited} waited",
    )


def without_times(trace: dict) -> dict:
    rounds = [
        {name: value for name, value in one.items() if not name.endswith("_ms")} for one in trace["rounds"]
    ]
    return {name: trace[name] for name in ("prompt", "output_ids", "text", "finish")} | {"rounds": rounds}


def test_two_hundred_who_leave_in_the_middle_hold_nobody_up(hosted, capsys):
    """Every second one leaves during its run, the others when they have read their place in line."""

    async def leave(number: int) -> str:
        async with patient() as browser, turns:
            event = await ask(browser, hosted, number, **LONG)
            async with aclosing(messages_of(browser, event, hosted)) as messages:
                async for kind, data in messages:
                    assert kind == "generating", data
                    if number % 2 and "waiting" in data[0]:
                        return "waited"
                    if data[0]["text"]:
                        return "ran"
        raise AssertionError("it ended by itself")

    async def visit() -> tuple[list[str], float, float]:
        start = time.perf_counter()
        left = await asyncio.gather(*map(leave, range(LEAVERS)))
        took, start = time.perf_counter() - start, time.perf_counter()
        async with patient() as browser:
            event = await ask(browser, hosted, LEAVERS, **SHORT)
            last = [message async for message in messages_of(browser, event, hosted)][-1]
        assert last[0] == "complete" and last[1][0]["trace"]["finish"] == "length"
        return left, took, time.perf_counter() - start

    turns = asyncio.Semaphore(AT_ONCE)
    left, took, after = awaited(visit())
    ran = left.count("ran")
    report(
        capsys,
        f"{LEAVERS} left, {ran} of them during their run, in {took:.1f} s; the next run took {after:.1f} s",
    )
    assert ran >= LEAVERS // 4 and after < 15


def test_a_greedy_visitor_delays_a_modest_one_by_a_turn_or_two(hosted, visit, browser, capsys):
    async def turn() -> float:
        async with patient() as browser:
            start = time.perf_counter()
            event = await ask(browser, hosted, 1, **LONG)
            _ = [message async for message in messages_of(browser, event, hosted)]
            return time.perf_counter() - start

    async def modest() -> tuple[list[int], float]:
        """The places that it reads, and the seconds until its run begins."""
        places, start = [], time.perf_counter()
        async with patient() as browser:
            event = await ask(browser, hosted, 2, **SHORT)
            async for kind, data in messages_of(browser, event, hosted):
                assert kind in ("generating", "complete"), data
                if "in line" not in data[0].get("waiting", ""):
                    return places, time.perf_counter() - start
                places.append(int(data[0]["waiting"].split()[3]))
        raise AssertionError("its run never began")

    awaited(turn())  # loads the pair
    one_turn = awaited(turn())
    start = time.perf_counter()
    with crowd(hosted, [1] * GREEDY) as said:
        burst_took = time.perf_counter() - start
        *_, (kind, sentence, refused) = sorted(
            awaited(some_said(hosted, 1, 12)), key=lambda one: one[0] == "error"
        )
        places, delay = awaited(modest())
        told, waited = place_on_a_page(visit, browser, hosted)
    _, after = awaited(modest())
    turned_away = sum(kind == "error" for kind, _ in said)
    report(
        capsys,
        f"{GREEDY} requests in {burst_took:.1f} s, {turned_away} of them refused; a turn takes "
        f"{one_turn:.1f} s; another visitor was number {places} and began after {delay:.1f} s; a page said "
        f"its place after {told:.1f} s and ended after {waited:.1f} s; one more was refused in "
        f"{refused:.2f} s; when its callers had left, the next run began after {after:.1f} s",
    )
    assert places in ([], [1], [2], [2, 1])
    assert delay < 5 * one_turn + 5
    assert kind == "error" and f"busy: {HOSTED.waiting_of_address} requests of your network" in sentence
    assert refused < 2
    assert after < one_turn + 5, "those who have left do not run"


def test_what_nobody_reads_does_not_run_and_locks_nobody_out(hosted, capsys):
    async def visit() -> tuple[list[tuple[str, list]], float, dict]:
        async with patient() as browser:
            event = await ask(browser, hosted, 1, **SHORT)  # loads the pair
            _ = [message async for message in messages_of(browser, event, hosted)]
            start = time.perf_counter()
            for _ in range(UNREAD):
                await ask(browser, hosted, 1, **LONG)
            event = await ask(browser, hosted, 1, **SHORT)
            said = [message async for message in messages_of(browser, event, hosted)]
            took = time.perf_counter() - start
            return said, took, (await browser.get(f"{hosted}/health")).json()

    said, took, health = awaited(visit())
    report(capsys, f"after {UNREAD} that nobody reads another one of the address ran; all took {took:.1f} s")
    assert said[-1][0] == "complete" and not any("waiting" in data[0] for _, data in said)
    assert not health["busy"]
    if took > HOSTED.listen_seconds:
        pytest.skip(f"took {took:.0f} s, by when the first ones have been dropped")
    assert health["waiting"] == UNREAD


def place_on_a_page(visit, browser, url: str) -> tuple[float, float]:
    """Seconds until a page that asks for a run tells its place, and until the run has ended."""
    page = visit(url, still=True, context=browser.new_context(extra_http_headers=address(3)))
    start = time.perf_counter()
    generate(page, max_new_tokens=3)
    page.get_by_test_id("notice").get_by_text("in line").wait_for()
    told = time.perf_counter() - start
    wait_for_end(page)
    return told, time.perf_counter() - start


def test_a_full_line_says_busy_at_once(hosted, capsys):
    """Each address has one request in it, so none has to give way."""
    for _ in range(5):
        # One has its turn. The last ones take the places of those whose turn ends before all have come.
        with crowd(hosted, range(10, 10 + HOSTED.waiting + 10)):
            kind, said, took = awaited(first_said(hosted, 999))
        if kind == "error":
            break  # else a turn has ended since, and left a place
    report(capsys, f"the line is full: {said!r} after {took:.2f} s")
    assert kind == "error" and f"busy: {HOSTED.waiting} requests wait already. Try again in about" in said
    assert took < 2
