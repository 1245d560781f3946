"""What the page tells of the place where two greedy texts part."""

import asyncio
import json
from contextlib import aclosing

import pytest

import specdemo.session as session
from specdemo import Params, load_pair
from specdemo.trials.fork import find_fork
from specdemo.ui.runs.fork import fork_of
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import Visitor
from specdemo.ui.runs.measuring import measure
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.words.catalogue import speaking
from tests.models.test_fork import accepts_all

PROMPT = "Once upon a time"
GREEDY = Params(temperature=0.0, max_new_tokens=24, seed=0)
USUAL = {"name": "embedded-poor", "target": None, "drafter": None, "device": "cpu", "quantize": None}


def told(dtype, until=lambda message: False):
    request = measurement_request({"kind": "exactness"}, Choice(), PROMPT, GREEDY)

    async def follow():
        queue, messages = RunQueue(), []
        ticket = queue.join(Visitor("page", "10.0.0.1"), "measurement")
        async with aclosing(measure(Models(USUAL | {"dtype": dtype}), ticket, request)) as measurements:
            async for message in measurements:
                messages.append(json.loads(json.dumps(message, allow_nan=False)))
                if until(messages[-1]):
                    ticket.cancel()
        return messages

    return asyncio.run(follow())


def test_a_fault_is_told_with_what_each_forward_says(monkeypatch):
    monkeypatch.setattr(session, "rule_of", lambda params: accepts_all)
    *_, last = told("bfloat16")
    fork = last["fork"]
    assert last["state"] == "ended" and "“Once upon a time”" in last["whose"]
    assert fork["verdict"] == "fault" and fork["sentence"].startswith("A fault: the speculative text has a ")
    assert "Plain text goes on with “" in fork["place"]
    names = [row[0] for row in fork["rows"]]
    assert names == ["Plain, 1 row", "Verifying, 5 rows", "The model's own", "float32"]
    assert all(len(row) == len(fork["columns"]) for row in fork["rows"])
    assert "and 16 bits and float32 by up to 0" in fork["notes"]
    assert json.loads(fork["json"])["sentence"] == fork["sentence"]


def test_it_is_told_in_the_visitor_s_language(monkeypatch):
    pair = load_pair("embedded-poor")
    with speaking("de"):
        equal = fork_of(find_fork(pair, PROMPT, GREEDY))
    assert equal["sentence"].startswith("Die Texte gehen nicht auseinander") and equal["rows"] == []
    monkeypatch.setattr(session, "rule_of", lambda params: accepts_all)
    report = find_fork(pair, PROMPT, GREEDY)
    with speaking("de"):
        fork = fork_of(report)
    assert fork["sentence"].startswith("Ein Fehler: der Text mit Entwürfen hat ein Token")
    assert "das Zielmodell rechnet selbst in float32" in fork["notes"] and "," in fork["rows"][0][1]
    assert json.loads(fork["json"])["sentence"].startswith("A fault"), "a report is in English"


def test_one_that_is_stopped_tells_nothing_and_frees_the_engine():
    messages = told("bfloat16", until=lambda message: message["state"] == "running")
    assert messages[-1]["state"] == "stopped" and "fork" not in messages[-1]
    *_, last = told("bfloat16")
    assert last["state"] == "ended" and last["fork"]["verdict"] in ("none", "rounding")


@pytest.mark.parametrize(
    ("params", "sentence"),
    [(Params(), "temperature must be 0"), (Params(temperature=0, draft_with="none"), "draft_with must be a")],
)
def test_what_has_no_greedy_drafts_is_refused(params, sentence):
    with pytest.raises(ValueError, match=sentence):
        measurement_request({"kind": "exactness"}, Choice(), PROMPT, params)
