"""What a hosted page takes from visitors: trace files of several addresses at once, and runs by the API."""

import asyncio
import json
import threading
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.requests import Request

from specdemo.events.trace import Trace
from specdemo.ui.page.api import add_api
from specdemo.ui.page.page import RECORDED
from specdemo.ui.runs import routes
from specdemo.ui.runs.board import RECORDED_RUN, Board, recorded_run
from specdemo.ui.runs.limits import HOSTED
from specdemo.ui.runs.models import Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import trace_route
from specdemo.ui.view.kept import opened
from tests.played import played

FLOOD, MODEST = "8.8.8.8", "9.9.9.9"
TRACE = RECORDED.read_bytes()
LIMITS = replace(HOSTED, trace_bytes=len(TRACE) + 100)


@pytest.fixture
def one_desk():
    board = Board(LIMITS, recorded_run(LIMITS, Trace.load(RECORDED), RECORDED_RUN))
    return trace_route(Models({"device": "cpu"}, LIMITS), board, LIMITS)


def sent(one_desk, address: str, body: bytes) -> asyncio.Task:
    """A file from this address."""

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/specdemo/traces", "headers": []}
    return asyncio.create_task(one_desk.endpoint(Request(scope | {"client": (address, 1)}, receive)))


def numbered(number: int) -> bytes:
    return json.dumps(json.loads(TRACE) | {"prompt": f"{number}"}, separators=(",", ":")).encode()


def test_a_visitor_waits_for_one_file_of_another_address_at_most(one_desk, monkeypatch):
    async def play():
        read, order = threading.Semaphore(0), []

        def reading(body, *more):
            read.acquire()
            order.append(json.loads(body)["prompt"])
            return opened(body, *more)

        monkeypatch.setattr(routes, "opened", reading)
        tasks = [sent(one_desk, FLOOD, numbered(number)) for number in range(3)]
        await asyncio.sleep(0.05)
        tasks.append(sent(one_desk, MODEST, numbered(99)))
        for _ in range(4):
            read.release()
            await asyncio.sleep(0.05)
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        assert order.index("99") <= 1

    asyncio.run(play())


@played
async def test_the_api_takes_no_more_than_the_page_does():
    with gr.Blocks() as page:
        add_api(Models({"device": "cpu"}, HOSTED), RunQueue(HOSTED), HOSTED)
    generate = next(one.fn for one in page.fns.values() if one.api_name == "generate_in_words")
    request = SimpleNamespace(scope={"type": "http", "client": (MODEST, 1), "headers": []})
    asked = signature(generate).bind(request, "Once", max_new_tokens=1_001)
    asked.apply_defaults()
    with pytest.raises(ValueError, match="^max_new_tokens .*1,000"):
        await generate(*asked.args)
