"""A page's stream of messages that is cut and asked for again, over a small app in place of Gradio."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from specdemo.ui import resume
from specdemo.ui.limits import HOSTED
from specdemo.ui.resume import LEAVE, STREAM, Resuming


class Server:
    """Streams what is put into `said`; None ends the stream. `ended` says how it ended."""

    def __init__(self, grace: float = 30):
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.ended: list[str] = []
        self.begun = 0
        limits = replace(HOSTED, resume_seconds=grace)
        app = Starlette(routes=[Route(STREAM, self._stream)])
        self.app = Resuming(app, limits, {"referrer-policy": "same-origin"})

    async def _stream(self, _request):
        async def body():
            self.begun += 1
            try:
                while (part := await self.said.get()) is not None:
                    yield part
                self.ended.append("complete")
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise

        return StreamingResponse(body(), media_type="text/event-stream")


class Reader:
    """One connection to it: what has arrived, and a way to cut it."""

    def __init__(self, server: Server, path: str = STREAM, address: str = "8.8.8.8", **query):
        self.status, self.received = 0, b""
        self.cut = asyncio.Event()
        words = "&".join(f"{name}={value}" for name, value in query.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": "GET",
            "path": path,
            "query_string": words.encode(),
            "headers": [],
            "client": (address, 1),
        }
        self.task = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self):
        await self.cut.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.status = message.get("status", self.status)
        self.received += message.get("body", b"")

    async def has(self, expected: bytes) -> None:
        while self.received != expected:
            await asyncio.sleep(0.001)

    async def done(self) -> "Reader":
        await self.task
        return self


@asynccontextmanager
async def deadline():
    async with asyncio.timeout(10):
        yield


def test_a_cut_stream_goes_on_from_the_byte_that_is_asked_for():
    async def steps():
        async with deadline():
            server = Server()
            first = Reader(server, session_hash="s", **{"from": 0})
            server.said.put_nowait(b"one ")
            await first.has(b"one ")
            first.cut.set()
            await first.done()
            server.said.put_nowait(b"two ")  # meanwhile
            again = Reader(server, session_hash="s", **{"from": 2})  # half of the first message was lost
            await again.has(b"e two ")
            server.said.put_nowait(None)
            await again.done()
            assert again.status == 200 and server.begun == 1 and server.ended == ["complete"]
            after = await Reader(server, session_hash="s", **{"from": 8}).done()
            assert after.status == 204, "all of it has arrived"

    asyncio.run(steps())


def test_the_next_stream_of_a_session_is_a_new_one():
    async def steps():
        async with deadline():
            server = Server()
            server.said.put_nowait(None)
            await Reader(server, session_hash="s", **{"from": 0}).done()
            server.said.put_nowait(b"second")
            await Reader(server, session_hash="s", **{"from": 0}).has(b"second")
            assert server.begun == 2

    asyncio.run(steps())


def test_a_stream_that_nobody_asks_for_again_ends():
    async def steps():
        async with deadline():
            server = Server(grace=0.05)
            reader = Reader(server, session_hash="s", **{"from": 0})
            server.said.put_nowait(b"one")
            await reader.has(b"one")
            reader.cut.set()
            await reader.done()
            assert server.ended == [], "not at once"
            while not server.ended:
                await asyncio.sleep(0.01)
            assert server.ended == ["cancelled"] and server.app.streams == {}
            late = await Reader(server, session_hash="s", **{"from": 3}).done()
            assert late.status == 410

    asyncio.run(steps())


def test_a_page_that_leaves_ends_it_at_once():
    async def steps():
        async with deadline():
            server = Server()
            reader = Reader(server, session_hash="s", **{"from": 0})
            server.said.put_nowait(b"one")
            await reader.has(b"one")
            assert (await Reader(server, LEAVE, session_hash="s").done()).status == 204
            await reader.done()
            assert server.ended == ["cancelled"]
            reader.cut.set()
            await asyncio.sleep(0)
            assert server.app.streams == {}
            assert (await Reader(server, LEAVE, session_hash="unknown").done()).status == 204

    asyncio.run(steps())


def test_without_a_place_a_cut_ends_it_as_ever():
    async def steps():
        async with deadline():
            server = Server()
            for place in ({}, {"from": "-1"}, {"from": "x"}, {"from": "9" * 40}):
                reader = Reader(server, session_hash="s", **place)
                server.said.put_nowait(b"one")
                await reader.has(b"one")
                reader.cut.set()
                await reader.done()
            assert server.ended == ["cancelled"] * 4 and server.app.streams == {}

    asyncio.run(steps())


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(resume, "KEPT", 1000)
    monkeypatch.setattr(resume, "AHEAD", 500)

    async def steps():
        async with deadline():
            server = Server()
            reader = Reader(server, session_hash="s", **{"from": 0})
            for _ in range(50):
                server.said.put_nowait(b"x" * 100)
            await reader.has(b"x" * 5000)
            stream = server.app.streams["s"]
            assert len(stream.kept) <= 1100
            reader.cut.set()
            await reader.done()
            for _ in range(50):
                server.said.put_nowait(b"y" * 100)
            await asyncio.sleep(0.05)
            assert len(stream.kept) <= 1700, "nobody reads, so Gradio has to wait"
            assert (await Reader(server, session_hash="s", **{"from": 100}).done()).status == 410
            again = Reader(server, session_hash="s", **{"from": 5000})
            await again.has(b"y" * 5000)

    asyncio.run(steps())


def test_a_stream_that_is_refused_takes_no_place(monkeypatch):
    monkeypatch.setattr(resume, "MOST", 1)

    async def steps():
        async with deadline():
            server = Server()
            page = Reader(server, session_hash="page", **{"from": 0})
            server.said.put_nowait(b"one")
            await page.has(b"one")
            page.cut.set()
            await page.done()
            for number in range(3):
                other = await Reader(
                    server, f"/nowhere{STREAM}", session_hash=f"s{number}", **{"from": 0}
                ).done()
                assert other.status == 404
            again = Reader(server, session_hash="page", **{"from": 0})
            await again.has(b"one")
            assert sorted(server.app.streams) == ["page"]

    asyncio.run(steps())


def test_a_crowd_of_cut_streams_is_bounded(monkeypatch):
    monkeypatch.setattr(resume, "MOST", 3)

    async def steps():
        async with deadline():
            server = Server()
            for number in range(6):
                reader = Reader(server, session_hash=f"s{number}", **{"from": 0})
                while server.begun <= number:
                    await asyncio.sleep(0.001)
                reader.cut.set()
                await reader.done()
            assert sorted(server.app.streams) == ["s3", "s4", "s5"]
            while len(server.ended) < 3:
                await asyncio.sleep(0.001)
            assert server.ended == ["cancelled"] * 3

    asyncio.run(steps())


@pytest.mark.parametrize("has_ended", [False, True])
def test_many_cut_streams_of_one_address_end_nobody_elses(monkeypatch, has_ended):
    """Its own go: one that has ended first, and the oldest of them."""
    monkeypatch.setattr(resume, "MOST", 3)

    async def steps():
        async with deadline():
            server = Server()
            await cut("modest", "9.9.9.9", server)
            modest = server.app.streams["modest"]
            for number in range(2):
                await cut(f"s{number}", "8.8.8.8", server)
            if has_ended:
                server.app.streams["s1"].ended = True
            await cut("s2", "8.8.8.8", server)
            assert sorted(server.app.streams) == ["modest", "s0" if has_ended else "s1", "s2"]
            again = Reader(server, address="9.9.9.9", session_hash="modest", **{"from": 0})
            while not again.status:
                await asyncio.sleep(0.001)
            assert again.status == 200 and server.app.streams["modest"] is modest

    async def cut(session, address, server):
        reader = Reader(server, address=address, session_hash=session, **{"from": 0})
        while not reader.status:
            await asyncio.sleep(0.001)
        reader.cut.set()
        await reader.done()

    asyncio.run(steps())
