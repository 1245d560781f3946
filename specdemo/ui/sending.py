"""Readers that stop reading: their connection is given up, so that what is kept for them is freed. Without
Gradio."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE = 2**16  # bytes that are sent at once: a slow reader takes one in time


class Sending:
    """An ASGI middleware around all others. When a piece of an answer is not taken within `patience` seconds,
    the app behind it goes on as when the visitor has gone."""

    def __init__(self, app: ASGIApp, patience: float) -> None:
        self.app, self.patience = app, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        connection = _Connection(receive, send, self.patience)
        await self.app(scope, connection.receive, connection.send)


class _Connection:
    def __init__(self, receive: Receive, send: Send, patience: float) -> None:
        self._receive, self._send, self.patience = receive, send, patience
        self.given_up = asyncio.Event()

    async def receive(self) -> Message:
        told, given_up = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self.given_up.wait())
        try:
            await asyncio.wait([told, given_up], return_when=asyncio.FIRST_COMPLETED)
            return told.result() if told.done() else {"type": "http.disconnect"}
        finally:
            told.cancel()
            given_up.cancel()

    async def send(self, message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= PIECE:
            return await self._send_piece(message)
        for end in range(PIECE, len(body) + PIECE, PIECE):
            more = message.get("more_body", False) or end < len(body)
            await self._send_piece(message | {"body": body[end - PIECE : end], "more_body": more})

    async def _send_piece(self, message: Message) -> None:
        if self.given_up.is_set():
            return
        try:
            async with asyncio.timeout(self.patience):
                await self._send(message)
        except TimeoutError:
            self.given_up.set()
