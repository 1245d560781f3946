"""Readers that stop reading, over a small app in place of Gradio."""

import asyncio
from dataclasses import replace

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from specdemo.ui.limits import HOSTED
from specdemo.ui.resume import STREAM, Resuming
from specdemo.ui.sending import PIECE, Sending

PATIENCE = 1.5  # s
LARGE = bytes(range(256)) * (5 * PIECE // 512)  # two and a half pieces


class Reader:
    """Takes so many pieces, each after a while, and no more. Its connection stays open."""

    def __init__(self, takes: int, pause: float = 0):
        self.takes, self.pause, self.received, self.ended = takes, pause, [], False

    async def ask(self, app, query: bytes = b"") -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": STREAM}
        scope |= {"headers": [], "query_string": query, "client": ("8.8.8.8", 1)}
        await asyncio.wait_for(app(scope, asyncio.Event().wait, self._send), 10)

    async def _send(self, message):
        if message["type"] == "http.response.start":
            return
        if len(self.received) == self.takes:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pause)
        self.received.append(message["body"])
        self.ended = not message.get("more_body")


def app_that_says(part: bytes, times: int, heard: list[str], after=lambda app: app) -> Sending:
    """heard: gets how its stream has ended. after: what stands between."""

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

    return Sending(after(Starlette(routes=[Route(STREAM, stream)])), PATIENCE)


def test_a_slow_reader_gets_all_of_it_though_a_message_takes_longer_than_its_patience():
    heard, reader = [], Reader(takes=100, pause=PATIENCE / 3)
    asyncio.run(reader.ask(app_that_says(LARGE, 1, heard)))
    assert b"".join(reader.received) == LARGE and max(map(len, reader.received)) == PIECE
    assert reader.ended and heard == ["complete"]


def test_for_one_that_stops_reading_the_stream_ends_as_when_it_has_gone():
    heard, reader = [], Reader(takes=2)
    asyncio.run(reader.ask(app_that_says(LARGE, 10**9, heard)))
    assert heard == ["cancelled"] and b"".join(reader.received) == LARGE[: 2 * PIECE]


def test_so_does_a_pages_stream_which_then_waits_to_be_asked_for_again():
    def resuming(app):
        app = Resuming(app, replace(HOSTED, resume_seconds=0.1), {})
        kept.append(app)
        return app

    async def play():
        await reader.ask(app_that_says(LARGE, 10**9, heard, resuming), b"session_hash=s&from=0")
        assert heard == [] and kept[0].unread.keys() == {"s"}
        while not heard:
            await asyncio.sleep(0.01)
        assert heard == ["cancelled"] and not kept[0].streams

    kept, heard, reader = [], [], Reader(takes=2)
    asyncio.run(play())
