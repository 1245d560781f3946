"""The trials that the page shows: counts that grow, what is found, and where they end."""

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import replace

import pytest

from specdemo import Params, load_pair
from specdemo.errors import PairError
from specdemo.trials.chi_square import homogeneity
from specdemo.ui.runs import trials as of_page
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.measuring import measure
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Refused, RunQueue
from specdemo.ui.runs.trials import SHOWN_CELLS, trials_of, verdict_of
from tests.sentences import assert_one_sentence

PROMPT = "Once upon a time, there was a little fox"
PARAMS = Params(gamma=3, temperature=0.8, top_p=0.9, seed=7)
USUAL = {"name": None, "target": None, "drafter": None, "device": "cpu", "dtype": None, "quantize": None}


def messages_of(request, until=lambda message: False, **limits):
    models, queue = Models(USUAL), RunQueue(replace(LOCAL, **limits))

    async def follow():
        told, ticket = [], queue.join(Visitor("page", "10.0.0.1"), "measurement")
        async with aclosing(measure(models, ticket, request, "name")) as reports:
            async for message in reports:
                told.append(json.loads(json.dumps(message, allow_nan=False)))
                if until(told[-1]):
                    break
        return told

    return asyncio.run(follow())


def request(trial, params=PARAMS, prompt=PROMPT):
    return measurement_request({"kind": "trials", "trial": trial}, Choice(), prompt, params)


def counted(trial, runs, params=PARAMS, *pairs):
    trials = trials_of(request(trial, params), *pairs)
    for _ in range(runs):
        trials.run(lambda: False)
    return json.loads(json.dumps(trials.so_far(), allow_nan=False))


@pytest.mark.slow
def test_the_counts_grow_until_there_are_enough(monkeypatch):
    monkeypatch.setattr(of_page.OfTiny, "most", 300)
    monkeypatch.setattr(of_page.TrialsRequest, "period", 0.05)
    told = messages_of(request("none"))
    counts = [one["trials"]["runs"] for one in told if "trials" in one]
    assert counts == sorted(counts) and len(set(counts)) > 3 and counts[-1] == 300
    last = told[-1]
    assert (last["id"], last["kind"], last["state"], last["share"]) == ("name", "trials", "ended", None)
    assert last["trials"]["found"] == "fits" and "seeds from 7 on" in last["whose"]
    for sums in ("came", "due"):
        assert sum(cell[sums] for cell in last["trials"]["cells"]) == pytest.approx(1)


def test_leaving_stops_the_runs_at_once():
    told = messages_of(request("none"), until=lambda message: "trials" in message)
    assert told[-1]["state"] == "running" and told[-1]["trials"]["runs"] < 5_000


@pytest.mark.slow
def test_a_turn_that_is_too_long_ends_with_what_it_has():
    told = messages_of(request("none"), run_seconds=1.5)
    assert told[-1]["state"] == "stopped" and told[-1]["text"]
    assert 0 < told[-1]["trials"]["runs"] < told[-1]["trials"]["most"]


def test_who_waits_has_a_turn_between_two_pieces(monkeypatch):
    monkeypatch.setattr("specdemo.ui.runs.queue.TURN_PIECE", 0.02)
    monkeypatch.setattr(of_page.TrialsRequest, "period", 0.05)
    monkeypatch.setattr(of_page.OfTiny, "most", 600)
    models, queue = Models(USUAL), RunQueue()
    seen, counts = [], []  # how many runs there were when another one's turn came, and as they are told

    def join_another():
        ticket = queue.join(Visitor(f"other {len(seen)}", "10.0.0.2"), "run")
        ticket.enter(its_turn)

    def its_turn():
        seen.append(counts[-1])
        if len(seen) < 3:
            join_another()

    async def follow_all():
        ticket = queue.join(Visitor("page", "10.0.0.1"), "measurement")
        async with aclosing(measure(models, ticket, request("none"))) as reports:
            async for message in reports:
                if "trials" in message:
                    counts.append(message["trials"]["runs"])
                    if len(counts) == 1:
                        join_another()
                        own = queue.join(Visitor("page", "10.0.0.1"), "run")  # the same visitor can run, too
                        own.enter(lambda: None)
        return message, own

    last, own = asyncio.run(follow_all())
    assert len(seen) == 3 and seen == sorted(seen) and seen[-1] < last["trials"]["runs"], seen
    assert last["state"] == "ended" and last["trials"]["runs"] == last["trials"]["most"] and own.done.done()


def test_pieces_together_take_no_longer_than_a_turn(monkeypatch):
    ticket = RunQueue(replace(LOCAL, run_seconds=0.5)).join(Visitor("page", "10.0.0.1"), "measurement")
    for _ in range(2):
        ticket.enter(lambda: time.sleep(0.3))
        ticket.done.result(10)
        was_late = ticket.is_late
        ticket.join_again()
    assert was_late and ticket.had >= 0.6


def test_a_request_that_was_stopped_between_two_pieces_is_told_so():
    ticket = RunQueue().join(Visitor("page", "10.0.0.1"), "measurement")
    ticket.enter(lambda: None)
    ticket.done.result(10)
    ticket.stop("Stopped.")
    ticket.join_again()
    with pytest.raises(Refused, match="given up before its turn"):
        ticket.done.result(10)


@pytest.mark.slow
def test_two_guesses_at_each_place_are_said_and_a_chains_mistakes_are_not_made_in_them():
    def of(trial):
        wanted = {"kind": "trials", "trial": trial, "guesses": 2}
        return measurement_request(wanted, Choice(), PROMPT, PARAMS)

    trials = trials_of(of("none"))
    trials.run(lambda: False)
    assert ", tree 2,2, " in trials.whose and "γ" not in trials.whose and trials.so_far()["guesses"] == 2
    with pytest.raises(ValueError, match="trial must be one of none, told, soft, not 'from_p'"):
        of("from_p")


@pytest.mark.parametrize("mistake", ["soft", "told"])  # toy/test_exact_trials.py has all of them
def test_a_mistake_is_found_and_its_bars_tell_where(mistake):
    found = counted(mistake, 100 if mistake == "soft" else 300)
    assert found["found"] == "differs" and found["p_value"] < 1e-6
    assert found["distance"] > 2 * found["by_chance"] and found["greedy"] == (mistake == "soft")
    assert (found["statistic"] is None) == (mistake == "soft"), "what p gives 0 comes out there"
    assert len(found["cells"]) <= SHOWN_CELLS


def test_a_lossy_rule_is_named_and_a_mistake_is_made_in_the_usual_rule():
    assert counted("none", 1, replace(PARAMS, rule="typical"))["lossy"] == "typical"
    assert counted("from_p", 1, replace(PARAMS, rule="typical"))["lossy"] == ""


def test_greedy_runs_are_one_cell():
    found = counted("told", 100, replace(PARAMS, temperature=0.0))
    assert found["greedy"] and found["found"] == "alike" and found["freedom"] == 0
    assert [(one["came"], one["due"]) for one in found["cells"]] == [(1.0, 1.0)]


def test_a_sampler_that_leaves_one_text_is_said_to_leave_nothing_to_test():
    narrow = replace(PARAMS, top_p=0.3)
    found = counted("told", 100, narrow)
    assert found["found"] == "alike" and found["freedom"] == 0 and not found["greedy"]


@pytest.mark.parametrize(
    ("on", "off", "found"),
    [
        ({(1, 2): 100}, {(1, 2): 100}, "alike"),
        ({(1, 2): 100}, {(1, 2): 98, (1, 3): 2}, "few"),
        ({(1, 2): 60, (1, 3): 40}, {(1, 2): 58, (1, 3): 42}, "fits"),
        ({(1, 2): 100}, {(1, 3): 100}, "differs"),
    ],
)
def test_a_difference_is_tested_only_where_there_is_more_than_one_text(on, off, found):
    assert verdict_of(homogeneity(on, off), 100, len({**on, **off})) == found


@pytest.mark.slow
def test_a_pair_is_tried_with_drafting_on_and_off():
    pair = load_pair(device="cpu", dtype="float32")
    found = counted("pair", 20, PARAMS, pair)
    assert found["runs"] == 20 and found["found"] == "few" and 0 < found["accepted"] <= found["judged"]
    assert any(one["text"].strip() for one in found["cells"])
    assert f"“{PROMPT}”" in trials_of(request("pair"), pair).whose


@pytest.mark.parametrize(
    ("trial", "prompt", "params", "sentence"),
    [
        ("all", PROMPT, PARAMS, "trial must be one of none, from_p, told, soft, likelier, pair, not 'all'"),
        (None, PROMPT, PARAMS, "trial must be one of"),
        (["none"], PROMPT, PARAMS, "trial must be one of"),
        ("pair", "", PARAMS, "prompt must"),
        ("pair", PROMPT, replace(PARAMS, draft_with="none"), "Drafting method is none"),
    ],
)
def test_what_is_wrong_gets_a_sentence(trial, prompt, params, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}") as raised:
        request(trial, params, prompt)
    assert_one_sentence(str(raised.value))


def test_a_server_cannot_switch_drafting_off():
    with pytest.raises(PairError, match="^Drafting cannot be switched off"):
        trials_of(request("pair"), object())
