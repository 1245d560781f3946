"""What the gate bounds: the bodies of requests, and the views of the page that are made at once."""

import asyncio

import pytest

from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.front.gate import MAKING, Bodies, Gate, Inside
from specdemo.ui.runs.limits import LOCAL
from tests.played import played

MOST, TOGETHER = 1_000, 4
VIEWS = 5 * MAKING


def request(*parts, waits=False):
    """One whose body comes in these parts. waits: the last one never comes."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if not waits:
        messages[-1]["more_body"] = False

    async def receive():
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    async def send(message): ...

    return Inside({"type": "http", "headers": []}, receive, send)


async def read(reader: Bodies, one: Inside, address: str) -> bytes:
    async with reader.held(one, address) as body:
        return body


@played
async def test_unfinished_bodies_are_bounded_together_and_keep_nobody_else_out():
    reader = Bodies(MOST, TOGETHER, 30)
    begun = [request(b"x" * 900, waits=True) for _ in range(2 * TOGETHER)]
    unfinished = [asyncio.create_task(read(reader, one, "a")) for one in begun]
    while not any(task.done() for task in unfinished):
        await asyncio.sleep(0)
    assert reader.arriving["a"] <= TOGETHER * MOST
    for address in ("b", "c"):
        assert await read(reader, request(b"y" * 500, b"y" * 400), address)
    for task in unfinished:
        task.cancel()
    ended = await asyncio.gather(*unfinished, return_exceptions=True)
    refused = [error for error in ended if isinstance(error, NotLetIn)]
    assert refused and all((one.status, one.retry_after) == (429, 2) for one in refused)
    assert not reader.arriving


@played
async def test_what_is_held_counts_until_it_is_answered():
    reader = Bodies(MOST, 2, 30)
    async with reader.held(request(b"x" * 900), "a"), reader.held(request(b"x" * 900), "a") as body:
        assert len(body) == 900 and reader.arriving["a"] == 1_800
        with pytest.raises(NotLetIn, match="arrive at once"):
            await read(reader, request(b"x" * 900), "a")
        assert await read(reader, request(b"y" * 900), "b"), "it has its share"
    assert not reader.arriving


@played
async def test_few_views_are_made_at_once_and_a_reader_who_stops_holds_nobody_up():
    making, most, answered = 0, 0, 0

    async def app(scope, receive, send):
        nonlocal making, most
        making += 1
        most = max(most, making)
        await asyncio.sleep(0.001)
        making -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        nonlocal answered
        answered += 1
        await asyncio.Event().wait()  # it takes nothing more

    gate = Gate(app, LOCAL)
    scope = {"type": "http", "method": "GET", "path": "/config", "headers": [], "query_string": b""}
    tasks = [asyncio.create_task(gate({**scope}, None, send)) for _ in range(VIEWS)]
    while answered < VIEWS:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == MAKING
