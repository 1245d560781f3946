"""The table of connections, without sockets: who is in it, for how long, who makes room; and slow readers."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from specdemo.ui.front.connections import PIECE, Connection, Connections
from tests.played import played

QUICK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = QUICK.replace(b"/", b"/slow", 1)
ENDLESS = QUICK.replace(b"/", b"/endless", 1)
HALF = QUICK[:20]
SLOWLY = 0.5  # s


async def app(scope: dict, receive: Callable, send: Callable) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    if scope["path"] == "/slow":
        await asyncio.sleep(SLOWLY)
    if scope["path"] == "/endless":
        await asyncio.Event().wait()
    await send({"type": "http.response.body", "body": b"ok"})


class Wire(asyncio.Transport):
    """A transport to a visitor of this address."""

    def __init__(self, table: Connections, address: str = "127.0.0.1") -> None:
        super().__init__({"peername": (address, 1234)})
        config = Config(app, ws="none", lifespan="off", log_config=None)
        config.load()
        self.sent, self.is_cut, self.left = b"", False, 0
        self.protocol: asyncio.Protocol = Connection(
            table, config=config, server_state=ServerState(), app_state={}
        )
        self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.sent += data
        if self.left and data == b"ok":
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.left

    def is_closing(self) -> bool:
        return self.is_cut

    def close(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    async def ask(self, data: bytes) -> None:
        self.protocol.data_received(data)
        for _ in range(5):
            await asyncio.sleep(0)


@played
async def test_headers_have_to_come_in_time_and_what_is_answered_goes_on():
    table = Connections(10, SLOWLY)
    endless, silent, half, again = (Wire(table) for _ in range(4))
    await endless.ask(ENDLESS)
    await again.ask(QUICK)
    for wire in (half, again):
        await wire.ask(HALF)
    while not (silent.is_cut and half.is_cut and again.is_cut):
        for wire in (half, again):
            if not wire.is_cut:
                await wire.ask(b"x")  # more of it does not give it more time
        await asyncio.sleep(0.01)
    assert b" 200 " in again.sent and not endless.is_cut


@played
async def test_a_new_connection_takes_the_place_of_one_that_waits():
    table = Connections(3, 20)
    endless = Wire(table)
    await endless.ask(ENDLESS)
    half = [Wire(table) for _ in range(10)]
    await asyncio.sleep(0)
    assert [wire.is_cut for wire in half] == [True] * 8 + [False] * 2
    assert not endless.is_cut and len(table.open) == 3


@played
async def test_the_answer_to_a_second_request_that_came_with_the_first_takes_as_long_as_it_takes():
    wire = Wire(Connections(10, SLOWLY / 2))
    await wire.ask(QUICK + SLOW)
    while wire.sent.count(b"ok") < 2:
        assert not wire.is_cut
        await asyncio.sleep(0.01)
    while not wire.is_cut:  # only then is there a time for the third
        await asyncio.sleep(0.01)


@played
async def test_a_crowd_of_long_answers_makes_room_for_other_addresses_and_for_nobody_else():
    table = Connections(20, 20)
    modest = [Wire(table, f"10.0.0.{number}") for number in range(3)]
    crowd = [Wire(table, "8.8.8.8") for _ in range(17)]
    for wire in (*modest, *crowd):
        await wire.ask(ENDLESS)
    assert Wire(table, "8.8.8.8").is_cut, "of one address the new one goes"
    others = []
    for _ in range(3):
        others.append(Wire(table, "8.8.4.4"))
        await others[-1].ask(ENDLESS)
        assert b"HTTP/1.1 200" in others[-1].sent
    assert [wire.is_cut for wire in crowd] == [True] * 3 + [False] * 14
    assert not any(wire.is_cut for wire in (*modest, *others)) and len(table.open) == 20


@played
async def test_a_reader_has_to_take_a_piece_of_its_answer_in_time():
    """tests/web/test_gate.py has one that stops reading."""
    quick, slow, stopped = (Wire(Connections(10, 20, SLOWLY)) for _ in range(3))
    for wire in (quick, slow, stopped):
        await wire.ask(ENDLESS)
        wire.left = 5 * PIECE
        wire.protocol.pause_writing()
    quick.protocol.resume_writing()
    while not stopped.is_cut:
        slow.left, stopped.left = slow.left - PIECE, stopped.left - 1
        assert not slow.is_cut
        await asyncio.sleep(SLOWLY)
    while not slow.is_cut:
        await asyncio.sleep(0.01)
    assert not quick.is_cut


@played
async def test_who_still_takes_an_answer_need_not_ask_again():
    wire = Wire(Connections(10, 0.01))
    wire.left = 5 * PIECE
    await wire.ask(QUICK)
    await asyncio.sleep(0.1)
    assert b" 200 " in wire.sent and not wire.is_cut
    wire.protocol.resume_writing()
    while not wire.is_cut:
        await asyncio.sleep(0.01)
