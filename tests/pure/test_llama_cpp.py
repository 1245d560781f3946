"""Runs on llama.cpp's server, by what the real one has sent: its rounds are read off the counts of each
token, and what contradicts them ends the run in a sentence."""

from contextlib import contextmanager
from copy import deepcopy

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.servers.client import ServerError
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.models import Choice
from specdemo.ui.view.settings import AS_STARTED, FIRST, WEIGHT_CHOICES
from specdemo.ui.view.texts import whose
from tests.pure.test_vllm_page import models_with
from tests.recorded import recorded
from tests.sentences import refused
from tests.stand_ins.replayed import llama
from tests.stand_ins.vllm import fates

SHORT = Params(temperature=0, max_new_tokens=24, seed=1, alternatives=2)


@contextmanager
def connected(name="draft"):
    server = llama(name)
    with server.serving() as url:
        yield server, load_pair(server=url)


def test_each_round_has_its_drafts_and_the_sums_are_the_servers():
    with connected() as (_, pair):
        trace = generate(pair, "Once upon a time", SHORT)
    end = recorded("draft", "llama-cpp")["events"][-1]["timings"]
    assert (len(trace.output_ids), trace.finish) == (end["predicted_n"], "length")
    assert trace.stats.drafted == end["draft_n"] > 0
    assert [fates(one) for one in trace.rounds][:2] == [" sampled", "aaaa bonus"]
    assert trace.rounds[0].next.raw_p and trace.rounds[1].next.raw_p is None
    assert pair.server.software == "llama.cpp" and pair.server.method == "draft-simple" and pair.drafts
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_drafts_of_any_length_and_none_are_rounds_of_their_own():
    with connected("sure") as (_, pair):
        trace = generate(pair, "Once upon a time", SHORT)
    events = recorded("sure", "llama-cpp")["events"]
    counts = [event["timings"].get("draft_n", 0) for event in events if event["tokens"]]
    begun = [now - before for before, now in zip(counts, counts[1:], strict=False) if now > before]
    assert [len(one.draft) for one in trace.rounds if one.draft] == begun
    assert {len(one.draft) for one in trace.rounds[1:]} > {0}


def test_a_server_that_does_not_draft_tells_each_token_s_probability():
    with connected("target") as (_, pair):
        trace = generate(pair, "Once upon a time", SHORT)
    assert (pair.server.gamma, pair.server.method) == (0, "none") and trace.params.draft_with == "none"
    assert len(trace.rounds) == 24 and trace.stats.drafted == 0
    assert all(0 < one.next.raw_p <= 1 and len(one.next.top) == 2 for one in trace.rounds)


def test_tokens_that_end_inside_a_character_are_counted_without_an_id():
    for name in ("target-bytes", "draft-bytes"):
        with connected(name) as (_, pair):
            trace = generate(pair, "Once upon a time", SHORT)
        end = recorded(name, "llama-cpp")["events"][-1]["timings"]
        assert trace.text == '"é😊 naïve"' and trace.finish == "eos"
        assert len(trace.output_ids) == end["predicted_n"] and None in trace.output_ids
        assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert trace.stats.drafted is None and max(len(one.draft) for one in trace.rounds) <= 4


def test_what_is_asked_for():
    with connected() as (server, pair):
        generate(pair, "Hi", Params(chat=True, max_new_tokens=24, min_p=0.1, repetition_penalty=1.2, seed=3))
        (*_, (_, template), (_, text), (_, sent)) = server.requests
    assert template["messages"] == [{"role": "user", "content": "Hi"}] and text["content"] == "<user>Hi"
    ids = server.answers["/tokenize"]["tokens"]
    assert sent["prompt"] == ids and sent["repeat_last_n"] == len(ids) + 24
    assert sent["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
    wanted = {"min_p": 0.1, "seed": 3, "repeat_penalty": 1.2, "n_predict": 24, "timings_per_token": True}
    assert wanted.items() <= sent.items()


REFUSED = {  # the field, what it holds, and the message's key
    "presence_penalty": (0.5, "servers_count_prompt"),
    "ignore_eos": (True, "servers_forbid_eos"),
    "seed": (2**32, "servers_seed"),
    "regex": ("a+", "grammar_not_sent"),
}


def test_what_it_does_not_take_is_refused_by_name_and_the_page_says_so_before():
    with llama().serving() as url:
        models = models_with(url)
        pair, needs = models.get(), models.needs(Choice())
        for field, (value, key) in REFUSED.items():
            with refused(key, field=field):
                stream(pair, [1, 2], Params(**{field: value}))
        trace = generate(pair, "Once upon a time", SHORT)
    held = FIRST | dict.fromkeys(WEIGHT_CHOICES, AS_STARTED) | {"pair": models.default}
    assert hints(held | {"ignore_eos": True}, "Once", needs, pair)["ignore_eos"].startswith("⚠")
    assert "draft-simple" in whose(trace) and pair.server.version in whose(trace)


def with_timings(at=9, **changes):
    return lambda events: events[at]["timings"].update(changes)


COUNTED = "cannot follow what it has counted"
WRONG = {  # what is done to the events, and what of it is said
    "no timings": (lambda events: events[0].pop("timings"), "without their timings"),
    "more accepted than drafted": (with_timings(draft_n_accepted=20), COUNTED),
    "fewer than before": (with_timings(draft_n=1), COUNTED),
    "a draft inside another": (with_timings(draft_n=13), "counts another draft"),
    "tokens beyond all": (with_timings(predicted_n=10**8), "more tokens than was asked for"),
    "a token not counted": (with_timings(predicted_n=9), COUNTED),
    "another sum at the end": (with_timings(-1, draft_n_accepted=0), COUNTED),
    "two tokens": (lambda events: events[5]["tokens"].append(7), "no such server would send: tokens: "),
    "cut off": (lambda events: events.pop(), "broke off in the middle"),
}


@pytest.mark.parametrize("name", WRONG)
def test_counts_that_cannot_be_end_the_run_and_what_came_stays(name):
    change, words = WRONG[name]
    with connected() as (server, pair):
        server.events = deepcopy(server.events)
        change(server.events)
        run = stream(pair, "Once upon a time", SHORT)
        with pytest.raises(ServerError, match=words):
            list(run)
    assert run.trace.finish == "error" and words in run.trace.error
    if name != "no timings":
        assert Trace.from_json(run.trace.to_json()).text.startswith(",")
