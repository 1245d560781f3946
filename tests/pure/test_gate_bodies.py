"""The bodies of requests: each has to arrive in time, and all together are bounded."""

import asyncio

import pytest

from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.front.gate import Bodies, Inside
from tests.played import played

MOST, TOGETHER = 1_000, 4


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


def test_a_body_that_does_not_come_to_its_end_is_given_up():
    reader = Bodies(MOST, TOGETHER, seconds=0.05)
    with pytest.raises(NotLetIn, match="took too long to arrive") as refused:
        asyncio.run(reader.read(request(b"{", waits=True), "a"))
    assert refused.value.status == 408 and not reader.arriving


@played
async def test_what_was_read_is_read_again_by_the_app():
    reader = Bodies(MOST, TOGETHER, 30)
    inside = request(b"ab", b"", b"c")
    assert await reader.read(inside, "a") == b"abc"
    assert await inside.receive() == {"type": "http.request", "body": b"abc", "more_body": False}
    assert not reader.arriving


@played
async def test_unfinished_bodies_are_bounded_together_and_keep_nobody_else_out():
    reader = Bodies(MOST, TOGETHER, 30)
    unfinished = [
        asyncio.create_task(reader.read(request(b"x" * 900, waits=True), "a")) for _ in range(2 * TOGETHER)
    ]
    while not any(task.done() for task in unfinished):
        await asyncio.sleep(0)
    assert reader.arriving["a"] <= TOGETHER * MOST
    for address in ("b", "c"):
        assert await reader.read(request(b"y" * 500, b"y" * 400), address)
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
            await reader.read(request(b"x" * 900), "a")
        assert await reader.read(request(b"y" * 900), "b"), "it has its share"
    assert not reader.arriving
