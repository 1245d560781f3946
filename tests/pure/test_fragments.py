"""What the streams of the API carry."""

import asyncio
import json

import pytest

from specdemo.ui.front.gate import Filling, fragment

TEXT = "one\u0085two\u2028three\u2029four \u2027\x1c\n"


def sent(kind: str, *bodies: bytes) -> bytes:
    """What comes out, where an app sends these."""
    out: list[bytes] = []

    async def app(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]}
        )
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def send(message):
        out.append(message.get("body", b""))

    asyncio.run(Filling(app)({"type": "http"}, None, send))
    return b"".join(out)


def test_a_message_is_one_line_for_every_reader():
    """httpx, and so gradio_client, end a line at characters that JSON leaves as they are."""
    raw = json.dumps(TEXT, ensure_ascii=False)
    named = fragment(raw)
    message = f'data: [{raw}, "{named}"]\n\n'.encode()
    (line, empty) = sent("text/event-stream; charset=utf-8", message).decode().splitlines()
    assert json.loads(line.removeprefix("data: ")) == [TEXT, TEXT] and not empty


@pytest.mark.parametrize("kind", ["text/html", "application/json", "text/javascript"])
def test_other_answers_are_left_as_they_are(kind):
    assert sent(kind, TEXT.encode()) == TEXT.encode()
