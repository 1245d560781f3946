"""What the page measures on request: a race, draft lengths, drafters, with the embedded pair and without a
page."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest

from specdemo import Params
from specdemo.ui.page.frame import TABS
from specdemo.ui.runs import instruments
from specdemo.ui.runs.instruments import INSTRUMENTS, measurement_request
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.measuring import measure
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.view.durations import SET_SIZE
from specdemo.ui.view.feed import tokens_of
from specdemo.ui.view.wire import MEASUREMENT_KINDS

PROMPT = "One day, a girl named Mia found a tiny kitten in the rain."
GREEDY = Params(temperature=0, max_new_tokens=40, seed=1)
USUAL = {"name": None, "target": None, "drafter": None, "device": "cpu", "dtype": None, "quantize": None}


@pytest.fixture(scope="module")
def models():
    return Models(USUAL)


@pytest.fixture(scope="module")
def queue():
    return RunQueue()


def measured(models, queue, wanted, params=GREEDY, until=lambda message: False):
    """All messages of a measurement, or those up to the first one for which `until` is true."""

    async def follow():
        request, messages = measurement_request(wanted, Choice(), PROMPT, params), []
        ticket = queue.join(Visitor("page", "10.0.0.1"), "measurement")
        async with aclosing(measure(models, ticket, request)) as measurements:
            async for message in measurements:
                messages.append(json.loads(json.dumps(message)))
                if until(messages[-1]):
                    break
        return messages

    return asyncio.run(follow())


def test_each_kind_of_measurement_is_a_row_with_a_tab():
    assert set(INSTRUMENTS) == set(MEASUREMENT_KINDS) <= set(TABS)


@pytest.mark.slow
def test_a_greedy_race_has_two_identical_texts(models, queue):
    *_, last = measured(models, queue, {"kind": "race"})
    alone, drafted = last["race"]["lanes"]
    assert last["state"] == "ended" and last["share"] is None
    assert text_of(alone) == text_of(drafted) and alone["tokens"] == drafted["tokens"] == 40
    assert last["race"]["verdict"] == "Identical: 40 of 40 tokens, compared."
    assert len(alone["rounds"]) == 40 > len(drafted["rounds"])
    for lane in (alone, drafted):
        times = [one["draft_ms"] + one["verify_ms"] for one in lane["rounds"]]
        assert lane["ms"] == pytest.approx(sum(times), rel=1e-4)


def text_of(lane) -> str:
    tokens = [token for one in lane["rounds"] for token in tokens_of(one)]
    return "".join(token["text"] for token in tokens if token.get("fate") not in ("rejected", "discarded"))


def test_a_sampled_race_says_in_what_sense_the_texts_are_the_same(models, queue):
    *_, last = measured(models, queue, {"kind": "race"}, Params(max_new_tokens=20))
    assert last["race"]["verdict"].startswith("Two texts, one distribution")
    assert "seed " in last["whose"], "one was drawn, for both lanes"


@pytest.mark.slow
def test_the_end_of_a_race_s_text_can_be_told_from_other_tokens_without_a_text(models, queue):
    *_, last = measured(models, queue, {"kind": "race"}, Params(seed=5, max_new_tokens=300))
    for lane in last["race"]["lanes"]:
        *others, end = [token for one in lane["rounds"] for token in tokens_of(one)]
        assert end["text"] == "" and [row[:2] for row in end["top"]] == [[end["id"], ""]]
        assert all(token["top"] == [] for token in others if token["text"])
    alone, drafted = (lane["tokens"] for lane in last["race"]["lanes"])
    assert alone != drafted, "or the seed has to be another one"
    assert f"(here {alone} tokens alone and {drafted} with drafts)" in last["race"]["verdict"]
    assert f"; for as many, the target alone needs {drafted}." in last["race"]["head"]["verdict"]


@pytest.mark.slow
def test_draft_lengths_are_measured_against_the_target_alone(models, queue, monkeypatch):
    monkeypatch.setattr(instruments, "GAMMAS", (2,))
    *_, last = measured(models, queue, {"kind": "gamma", "prompts": "set"})
    plain, *points = last["gammas"]
    assert (plain["gamma"], plain["speedup"], plain["low"]) == (0, 1, None)
    assert [point["gamma"] for point in points] == [2, GREEDY.gamma], "the run's own length is one of them"
    assert "drafter model embedded/drafter" in last["whose"] and last["conditions"]
    for point in points:
        assert point["runs"] == SET_SIZE
        assert 1 < point["tokens_per_round"] <= point["gamma"] + 1


def has_rows(message):
    return bool(message.get("comparison", {}).get("rows"))


@pytest.mark.slow
def test_stopping_leaves_what_is_measured_and_frees_the_engine(models, queue):
    messages = measured(models, queue, {"kind": "compare", "prompts": "this"}, until=has_rows)
    assert messages[-1]["state"] == "running" and messages[-1]["comparison"]["rows"]
    *_, last = measured(models, queue, {"kind": "race"})
    assert last["state"] == "ended"


@pytest.mark.slow
def test_a_measurement_that_takes_too_long_keeps_what_is_measured_and_says_so(models):
    queue = RunQueue(replace(LOCAL, run_seconds=1.5))
    *_, last = measured(models, queue, {"kind": "gamma"}, replace(GREEDY, max_new_tokens=150))
    assert last["state"] == "stopped" and last["share"] is None
    assert last["text"].startswith("This measurement was ended after 1.5 s")


@pytest.mark.parametrize(
    ("wanted", "params", "sentence"),
    [
        ({"kind": "other"}, GREEDY, "a measurement must be one of"),
        (None, GREEDY, "a measurement must be one of"),
        ({"kind": "compare", "prompts": "all"}, GREEDY, "a measurement must be one of"),
        ({"kind": "race"}, Params(draft_with="none"), "Drafting method is none"),
    ],
)
def test_what_cannot_be_measured_is_refused(wanted, params, sentence):
    with pytest.raises(ValueError, match=sentence):
        measurement_request(wanted, Choice(), PROMPT, params)


def test_an_unusable_prompt_is_refused_before_anything_is_loaded():
    with pytest.raises(ValueError, match="prompt must not be empty"):
        measurement_request({"kind": "race"}, Choice(), "", GREEDY)
