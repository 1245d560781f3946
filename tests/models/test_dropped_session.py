"""A page whose session the server has dropped, or lost in a restart: it is told so."""

import json
from copy import deepcopy

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.desk import Desk
from specdemo.ui.feed import RunFeed
from specdemo.ui.handlers import Handlers
from specdemo.ui.limits import HOSTED
from specdemo.ui.models import Models
from specdemo.ui.numbers import later_number
from specdemo.ui.page import RECORDED
from specdemo.ui.page_session import PageSession
from specdemo.ui.shelf import GONE


@pytest.fixture(scope="module")
def handlers():
    models = Models({"device": "cpu"}, HOSTED)
    recorded = RunFeed(1, Trace.load(RECORDED), recorded=True)
    return Handlers(models, None, recorded, Desk(models, HOSTED), HOSTED)


def test_what_it_reads_from_a_new_session_is_later_than_all_that_it_has():
    first = PageSession()  # of which Gradio makes a copy for each page
    shown = later_number()
    assert deepcopy(first).number > shown


@pytest.mark.parametrize("asks", ["stop", "save_trace", "whole_text"])
def test_it_reads_that_its_run_is_gone_and_never_the_recorded_one(handlers, asks):
    message = json.loads(getattr(handlers, asks)(PageSession()))
    assert message["notice"]["text"] == GONE and message["notice"]["kind"] == "error"
    assert message.keys() == {"run", "notice"}


def test_a_page_that_was_just_opened_has_the_recorded_run(handlers):
    session = PageSession()
    handlers.open_link(session, "")
    assert json.loads(handlers.save_trace(session))["file"]["name"]
    for ask in (handlers.stop, handlers.whole_text):
        message = json.loads(ask(session))
        assert ("update" in message or "stored" in message) and "notice" not in message


def test_a_run_that_is_stopped_before_it_begins_is_not_called_gone(handlers):
    session = PageSession()
    session.begin()
    session.waiting = True
    assert json.loads(handlers.stop(session))["notice"]["text"] == "Stopped before the run began."
    assert "notice" not in json.loads(handlers.whole_text(session))
