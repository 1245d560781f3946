"""A server's run on the page: what is told is shown, and what is not is called so."""

from dataclasses import replace

import pytest

from specdemo.events.speedup import timed
from specdemo.events.verdict import verdict
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.texts import ENGINE_ONLY, HEADLINE, OTHER_NUMBERS, number_texts, whose
from tests.runs_served import SERVER, served_trace


@pytest.fixture(params=[True, False], ids=["told", "untold"])
def told(request):
    return request.param


def test_what_is_not_told_is_sent_as_null(told):
    update = RunFeed(served_trace(told), recorded=True).snapshot()
    assert update["prompt"] == [{"id": None, "text": "Once upon a time", "fate": "prompt"}]
    second = update["rounds"][1]
    assert [token["fate"] for token in second["draft"]] == ["accepted", "accepted"] + ["rejected"] * told
    first = second["draft"][0]
    assert (first["id"], first["text"], first["raw_p"]) == (1, " was", 0.625)
    assert first["top"] == [[1, " was", None, None, 0.625, None], [None, " other", None, None, 0.25, None]]
    for token in (*second["draft"], second["next"]):
        assert [token[name] for name in ("p", "q", "u", "raw_q")] == [None] * 4
    assert [token["id"] for token in second["draft"][2:]] == [None] * told
    times = [second[name] for name in ("draft_ms", "verify_ms", "arrival_ms", "drafts_told")]
    assert times == [None, None, 30.0, told]


def test_the_page_is_told_that_it_is_a_server_s_run():
    update = RunFeed(served_trace(rule="lenient"), recorded=True).snapshot()
    setting = update["setting"]
    assert setting["served"] == {"method": "eagle3", "gamma": 3}
    assert (setting["rule"]["name"], setting["lossy"]) == ("speculative", False), "its rule is its own matter"


def test_names_that_a_server_gives_are_cut_and_escaped():
    strange = "\u202e" + "x" * 300
    trace = served_trace()
    trace.pair = replace(trace.pair, server=replace(SERVER, **dict.fromkeys(TEXTS, strange)))
    sentence = whose(trace)
    assert "\u202e" not in sentence and "\\u202ex" in sentence and "x" * 90 not in sentence


TEXTS = ("software", "version", "model", "method")


def test_its_numbers_are_those_that_are_told(told):
    trace = served_trace(told)
    assert [one.ms for one in timed(trace.rounds)] == [30.0] * 4, "the first round holds the prompt's time"
    numbers = number_texts(trace)
    assert set(numbers) == {HEADLINE, *OTHER_NUMBERS}
    assert numbers["tokens_per_second"] == "91.7"  # 11 tokens after the first one in 120 ms
    assert numbers["acceptance_rate"] == ("70%" if told else "not told")  # 7 accepted, 3 rejected
    assert {numbers[name] for name in ENGINE_ONLY if name != "target_forwards"} == {"–"}


def test_no_speed_up_is_told(told):
    trace = served_trace(told)
    found = verdict(trace, "length")
    assert found.tone == "neutral" and "No speed-up is known" in found.text and "×" not in found.text
    # A file can claim anything.
    claims = replace(trace.stats, target_step_ms=9.0, target_step_spread=(9.0, 9.0), speedup=0.5)
    assert verdict(replace(trace, stats=claims), "length") == found
