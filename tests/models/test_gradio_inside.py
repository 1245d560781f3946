"""The private names of Gradio that are used here: each is still where it was."""

import asyncio
from operator import attrgetter

import gradio as gr
import pytest
from gradio.routes import App

from specdemo.ui.front import gradio as inside
from specdemo.ui.front.gradio import LOOKS_EVERY, PRIVATE, GradioQueue


@pytest.fixture(scope="module")
def named():
    """What the paths begin with."""
    with gr.Blocks() as demo:
        gr.api(lambda: 1, api_name="one")
    demo.queue()
    app = App.create_app(demo, mcp_server=False)
    return {
        "Blocks": demo,
        "App": app,
    }


@pytest.mark.parametrize("path", PRIVATE)
def test_gradio_still_has(named, path):
    root, _, rest = path.partition(".")
    attrgetter(rest)(named[root])


def test_an_idle_queue_looks_for_events_as_often_as_it_is_told(monkeypatch):
    with gr.Blocks() as demo:
        gr.api(lambda: 1, api_name="one")
    queue, slept = GradioQueue(demo.queue(), lambda session, scope: None).queue, []

    async def sleep(seconds):
        slept.append(seconds)
        queue.stopped = True

    monkeypatch.setattr("gradio.queueing.asyncio.sleep", sleep)
    asyncio.run(queue.start_processing())
    assert slept == [LOOKS_EVERY]


def test_what_is_told_with_an_event_is_an_object_or_nothing():
    assert inside.event_data(gr.EventData(None, {"kind": "race"})) == {"kind": "race"}
    assert inside.event_data(gr.EventData(None, "kind")) == inside.event_data(gr.EventData(None, None)) == {}


def test_a_session_without_readers_loses_its_messages_and_no_other_one_does():
    with gr.Blocks() as demo:
        gr.api(lambda: 1, api_name="one")
    demo.queue()

    async def play():
        demo.app = App.create_app(demo, mcp_server=False)
        queue = GradioQueue(demo, lambda session, scope: None)
        for session in ("one", "two"):
            demo._queue.pending_messages_per_session[session] = asyncio.Queue()
            demo._queue.pending_event_ids_session[session] = {f"event of {session}"}
        assert queue.unread.keys() == queue.sessions == {"one", "two"}
        assert queue.session_of("event of two") == "two" and queue.session_of("nobody's") is None
        await queue.silence("one")
        assert queue.unread.keys() == {"two"} and not queue.has_messages("one") and queue.has_messages("two")
        assert not queue.events_of("one") and not queue.stopped

    asyncio.run(play())
