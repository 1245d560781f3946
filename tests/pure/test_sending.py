"""Readers that stop reading, over a small app in place of Gradio."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from specdemo.ui.front.connections import PIECE, Sending

STREAM = "/stream"
PATIENCE = 0.9  # s
LARGE = bytes(range(256)) * (5 * PIECE // 512)  # two and a half pieces


class Reader:
    """Takes so many pieces, each after a while, and no more. Its connection stays open."""

    def __init__(self, takes: int, pause: float = 0):
        self.takes, self.pause, self.received, self.ended = takes, pause, [], False

    async def ask(self, app) -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": STREAM}
        scope |= {"headers": [], "query_string": b"", "client": ("8.8.8.8", 1)}
        await asyncio.wait_for(app(scope, asyncio.Event().wait, self._send), 10)

    async def _send(self, message):
        if message["type"] == "http.response.start":
            return
        if len(self.received) == self.takes:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pause)
        self.received.append(message["body"])
        self.ended = not message.get("more_body")


def app_that_says(part: bytes, times: int, heard: list[str]) -> Sending:
    """heard: gets how its stream has ended."""

    async def body():
        try:
            for _ in range(times):
                yield part
                await asyncio.sleep(0)
            heard.append("complete")
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def stream(_request):
        return StreamingResponse(body())

    return Sending(Starlette(routes=[Route(STREAM, stream)]), PATIENCE)


@pytest.mark.slow
def test_a_slow_reader_gets_all_of_it_though_a_message_takes_longer_than_its_patience():
    heard, reader = [], Reader(takes=100, pause=PATIENCE / 3)
    asyncio.run(reader.ask(app_that_says(LARGE, 1, heard)))
    assert b"".join(reader.received) == LARGE and max(map(len, reader.received)) == PIECE
    assert reader.ended and heard == ["complete"]


@pytest.mark.slow
def test_for_one_that_stops_reading_the_stream_ends_as_when_it_has_gone():
    heard, reader = [], Reader(takes=2)
    asyncio.run(reader.ask(app_that_says(LARGE, 10**9, heard)))
    assert heard == ["cancelled"] and b"".join(reader.received) == LARGE[: 2 * PIECE]
