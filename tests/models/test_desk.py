"""Trace files that visitors of several addresses send at the same time."""

import asyncio
import json
from dataclasses import replace

import pytest
from starlette.requests import Request

from specdemo.ui import desk
from specdemo.ui.desk import READERS, Desk
from specdemo.ui.limits import HOSTED
from specdemo.ui.models import Models
from specdemo.ui.opening import opened
from specdemo.ui.page import RECORDED

FLOOD, MODEST = "8.8.8.8", "9.9.9.9"
TRACE = RECORDED.read_bytes()
LIMITS = replace(HOSTED, trace_bytes=len(TRACE) + 100)


@pytest.fixture
def one_desk():
    return Desk(Models({"device": "cpu"}, LIMITS), LIMITS)


def sent(one_desk, address: str, body: bytes, stalls: bool = False) -> asyncio.Task:
    """A file from this address. stalls: its end does not come."""
    parts = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]

    async def receive():
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts) or stalls}
        return await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/specdemo/trace", "headers": []}
    return asyncio.create_task(one_desk.answer(Request(scope | {"client": (address, 1)}, receive)))


def numbered(number: int) -> bytes:
    return json.dumps(json.loads(TRACE) | {"prompt": f"{number}"}, separators=(",", ":")).encode()


def test_files_of_one_address_that_do_not_come_to_their_end_keep_nobody_else_out(one_desk):
    async def play():
        stalled = [sent(one_desk, FLOOD, TRACE, stalls=True) for _ in range(8)]
        await asyncio.sleep(0.05)
        assert {task.result().status_code for task in stalled if task.done()} == {429}
        assert one_desk.arriving.held[FLOOD] <= desk.ARRIVING * LIMITS.trace_bytes
        for number in range(2):
            answer = await sent(one_desk, MODEST, numbered(number))
            assert answer.status_code == 200 and b"name" in answer.body
        for task in stalled:
            task.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)
        assert not one_desk.arriving.held

    asyncio.run(play())


def test_a_visitor_waits_for_one_file_of_another_address_at_most(one_desk, monkeypatch):
    async def play():
        read, order = asyncio.Semaphore(0), []

        async def reading(body):
            await read.acquire()
            order.append(json.loads(body)["prompt"])
            return opened(body)

        monkeypatch.setattr(desk, "read", reading)
        tasks = [sent(one_desk, FLOOD, numbered(number)) for number in range(3)]
        await asyncio.sleep(0.05)
        tasks.append(sent(one_desk, MODEST, numbered(99)))
        for _ in range(4):
            read.release()
            await asyncio.sleep(0.05)
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        assert order.index("99") <= READERS
        assert not one_desk.of_address and not one_desk.reading

    asyncio.run(play())
