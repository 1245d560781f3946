"""Large JSON in the API's answers. Gradio goes through every number of an answer several times, on the event
loop, where everybody waits; so it gets a short name in place of the JSON, and a middleware writes the JSON
where the name stands."""

import re
from secrets import token_hex
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = re.compile(rb'"json:([0-9a-f]{32})"')


class Fragment(str):
    """The name of a JSON text, which is kept as long as Gradio keeps the name."""

    json: bytes


_named: WeakValueDictionary[str, Fragment] = WeakValueDictionary()


def fragment(json: str) -> Fragment:
    name = token_hex(16)
    made = _named[name] = Fragment(f"json:{name}")
    made.json = json.encode()
    return made


class Filling:
    """An ASGI middleware that writes out the fragments in streams of messages. Each message has a call of
    `send` for itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def filled(message: Message) -> None:
            if message["type"] == "http.response.body" and b'"json:' in message.get("body", b""):
                message = {**message, "body": NAME.sub(_json, bytes(message["body"]))}
            await send(message)

        await self.app(scope, receive, filled)


def _json(found: re.Match[bytes]) -> bytes:
    made = _named.get(found[1].decode())
    return found[0] if made is None else made.json
