"""The calls of the API: who has a place, who reads which answers, and when a function is begun and ended."""

import asyncio
import gc
import json
import weakref
from collections import Counter
from dataclasses import replace
from inspect import Parameter

import httpx
import pytest
from gradio_client.utils import apply_diff
from starlette.applications import Starlette
from starlette.responses import Response

from specdemo.ui.front import calls
from specdemo.ui.front.calls import Calls, Endpoint
from specdemo.ui.front.checks import NotLetIn
from specdemo.ui.runs.limits import HOSTED
from tests.played import played

LIMITS = replace(HOSTED, uncollected=12, uncollected_of_address=8)
FLOOD, MODEST = "8.8.8.8", "9.9.9.9"
TEXT = "one\u0085two\u2028three\u2029four \u2027\x1c\n"  # at which readers end a line
API = "http://page/gradio_api"


class Site:
    """The API's routes, with a function that tells three answers and one that goes on until it is ended."""

    def __init__(self):
        self.begun = self.ended = 0
        name = Parameter("text", Parameter.POSITIONAL_OR_KEYWORD)
        endpoints = {"count": Endpoint(self.count, [name]), "endless": Endpoint(self.endless)}
        numbers = dict(enumerate(endpoints.values(), 5))
        self.calls = Calls(LIMITS, endpoints, numbers, lambda request: None, str)
        refused = {NotLetIn: lambda request, error: Response(error.sentence, error.status)}
        self.app = Starlette(routes=self.calls.routes(), exception_handlers=refused)

    async def count(self, visitor, text):
        self.begun += 1
        for number in range(3):
            yield json.dumps([number, text], ensure_ascii=False)
        if text == "wrong":
            raise ValueError("It is wrong.")

    async def endless(self, visitor):
        self.begun += 1
        try:
            yield "1"
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    def client(self, address=FLOOD):
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        return httpx.AsyncClient(transport=transport)

    async def call(self, name="count", data=("",), address=FLOOD, **more) -> httpx.Response:
        async with self.client(address) as client:
            return await client.post(f"{API}/call/{name}", json={"data": [*data], **more})

    async def call_often(self, count, address=FLOOD, **more) -> Counter:
        """Whether each of so many calls that nobody reads was let in."""
        statuses = [(await self.call(address=address, **more)).status_code for _ in range(count)]
        return Counter(statuses)

    async def read(self, path) -> httpx.Response:
        async with self.client() as client:
            return await client.get(f"{API}/{path}")


@played
async def test_an_address_has_its_share_of_the_places_and_no_more():
    site = Site()
    assert await site.call_often(30) == {200: 8, 429: 22}
    assert await site.call_often(4, MODEST) == {200: 4}
    assert site.begun == 0, "nobody has read one"


@played
async def test_an_old_call_that_nobody_reads_goes_for_the_next_one_of_its_address():
    site = Site()
    await site.call_often(8)
    first = next(iter(site.calls.calls))
    assert await site.call_often(1) == {429: 1}
    site.calls.limits = replace(LIMITS, share_seconds=-1)
    assert await site.call_often(1) == {200: 1}
    assert first not in site.calls.calls and len(site.calls.calls) == 8


@played
async def test_the_oldest_of_the_address_with_most_loses_its_place():
    site = Site()
    for address, count in ((MODEST, 1), (FLOOD, 8), ("8.8.4.4", 3), ("1.1.1.1", 1)):
        await site.call_often(count, address)
    left = Counter(call.visitor.address for call in site.calls.calls.values())
    assert left == {MODEST: 1, FLOOD: 7, "8.8.4.4": 3, "1.1.1.1": 1}


@played
async def test_what_is_not_read_in_time_is_dropped():
    site = Site()
    site.calls.limits = replace(LIMITS, listen_seconds=0.3)
    event = (await site.call(session_hash="slow")).json()["event_id"]
    while site.calls.calls:
        await asyncio.sleep(0.01)
    for path in ("queue/data?session_hash=slow", f"call/count/{event}"):
        assert (await site.read(path)).status_code == 404
    assert site.begun == 0


def told(answer: httpx.Response) -> list[tuple[str, object]]:
    """Of the plain stream."""
    parts = [part.split("\ndata: ") for part in answer.text.split("\n\n") if part]
    return [(kind.removeprefix("event: "), json.loads(data)) for kind, data in parts]


@played
async def test_an_answer_is_read_once_and_a_message_is_one_line_for_every_reader():
    site = Site()
    event = (await site.call(data=[TEXT])).json()["event_id"]
    answer = await site.read(f"call/v2/count/{event}")
    assert all(line.startswith(("event: ", "data: ")) for line in answer.text.splitlines() if line)
    assert told(answer) == [*(("generating", [[one, TEXT]]) for one in range(3)), ("complete", [[2, TEXT]])]
    assert (await site.read(f"call/count/{event}")).status_code == 404
    event = (await site.call(data=["wrong"])).json()["event_id"]
    assert told(await site.read(f"call/count/{event}"))[-1][1]["error"] == "It is wrong."


@played
async def test_what_is_cancelled_before_it_is_read_is_not_held():
    site = Site()
    event = (await site.call("count", ["large"], session_hash="s")).json()["event_id"]
    held = weakref.ref(site.calls.calls[event])
    async with site.client() as client:
        await client.post(f"{API}/cancel", json={"event_id": event, "fn_index": 5, "session_hash": "s"})
    gc.collect()
    assert held() is None


@played
async def test_a_call_that_is_cancelled_at_once_or_twice_tells_its_reader_the_end():
    for wait in (0, 1, 3):
        site = Site()
        event = (await site.call("endless", (), session_hash="s")).json()["event_id"]
        call, messages = site.calls.calls[event], asyncio.Queue(1)
        site.calls._begin(call, messages)
        for _ in range(wait):
            await asyncio.sleep(0)
        async with site.client() as client:
            for _ in range(2):
                await client.post(
                    f"{API}/cancel", json={"event_id": event, "fn_index": 6, "session_hash": "s"}
                )
        kinds = [(await asyncio.wait_for(messages.get(), 5))[1]]
        while kinds[-1] != "complete":
            kinds.append((await asyncio.wait_for(messages.get(), 5))[1])
        assert site.calls.calls == {}


@played
async def test_a_session_reads_all_its_calls_as_gradio_client_puts_them_together():
    site = Site()
    events = [(await site.call(data=[text], session_hash="s")).json()["event_id"] for text in "ab"]
    lines = (await site.read("queue/data?session_hash=s")).text.split("\n\n")
    *messages, close = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert close == {"msg": "close_stream"}
    for event, text in zip(events, "ab", strict=True):
        own = [one for one in messages if one["event_id"] == event]
        parts, whole = [one["output"]["data"] for one in own[:-1]], own[-1]
        answers = parts[0]
        for number, (difference,) in enumerate(parts[1:], 1):
            answers = [apply_diff(answers[0], difference)]
            assert answers == [[number, text]]
        assert (whole["msg"], whole["success"], whole["output"]["data"]) == (
            "process_completed",
            True,
            answers,
        )
    assert (await site.read("queue/data?session_hash=s")).text == calls.CLOSE, "it comes once too often"


@played
async def test_a_call_ends_when_it_is_cancelled_or_its_reader_goes_and_has_one_reader():
    site = Site()
    event = (await site.call("endless", (), session_hash="s")).json()["event_id"]
    reading = asyncio.create_task(site.read(f"call/endless/{event}"))
    while not site.begun:
        await asyncio.sleep(0)
    assert site.calls.has_readers and (await site.read(f"call/endless/{event}")).status_code == 409
    async with site.client() as client:
        body = {"event_id": event, "fn_index": 6, "session_hash": "s"}
        await client.post(f"{API}/cancel", json=body | {"session_hash": "another"})
        assert site.ended == 0
        await client.post(f"{API}/cancel", json=body)
    assert told(await reading)[-1][0] == "complete" and site.ended == 1
    event = (await site.call("endless", (), session_hash="s")).json()["event_id"]
    reading = asyncio.create_task(site.read("queue/data?session_hash=s"))
    while site.begun < 2:
        await asyncio.sleep(0)
    await site.call(data=["meanwhile"], session_hash="s")
    while site.begun < 3:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    while site.ended < 2:
        await asyncio.sleep(0)
    assert not site.calls.calls and not site.calls.streams
