"""The bodies of requests: each arrives in time and is not too large, and all that arrive take bounded memory.
Without Gradio."""

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope, Send

from specdemo.ui.checks import NotLetIn
from specdemo.ui.fair import Arriving
from specdemo.ui.limits import Limits

ARRIVAL_SECONDS = 30  # that a body may take to arrive
ARRIVING = 16  # times the largest body: what may arrive at once
AGAIN = 2  # s until it is worth another try when too much arrives


@dataclass
class Inside:
    """One request, as the app behind the gate gets it."""

    scope: Scope
    receive: Receive
    send: Send


class Bodies:
    """Reads the bodies of requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.arriving = Arriving(ARRIVING * limits.body_bytes)

    async def read(self, inside: Inside, address: str) -> bytes:
        """The request's body, which the app behind the gate then reads again."""
        check_announced(inside.scope, self.limits.body_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while await self._arrive(inside, address, body):
                    pass
        except TimeoutError:
            raise NotLetIn(408, "The request's body took too long to arrive: send it again.") from None
        finally:
            self.arriving.remove(address, len(body))
        inside.receive = _again(bytes(body), inside.receive)
        return bytes(body)

    async def _arrive(self, inside: Inside, address: str, body: bytearray) -> bool:
        """Adds what comes next to the body; whether there is more of it."""
        message = await inside.receive()
        if message["type"] == "http.disconnect":
            raise NotLetIn(400, "The request ended before its body did.")
        part = message.get("body", b"")
        body += part
        has_room = self.arriving.add(address, len(part))
        if len(body) > self.limits.body_bytes:
            raise _too_large(self.limits.body_bytes)
        if not has_room:
            sentence = f"Too many requests arrive at once: busy, try again in about {AGAIN} s."
            raise NotLetIn(429, sentence, AGAIN)
        return message.get("more_body", False)


def check_announced(scope: Scope, limit: int) -> None:
    """NotLetIn if the request tells of a body that is larger."""
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if not announced.isdigit() or int(announced[:20]) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> NotLetIn:
    return NotLetIn(413, f"The request is too large: at most {_size(limit)} are allowed.")


def _size(limit: int) -> str:
    return f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit // 1024} KiB"


def _again(body: bytes, receive: Receive) -> Receive:
    read = False

    async def receive_again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
