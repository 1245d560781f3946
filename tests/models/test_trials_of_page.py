"""The trials that the page shows: counts that grow, what is found, and where they end."""

import asyncio
import gc
import json
import time
import weakref
from contextlib import aclosing, suppress
from dataclasses import replace

import pytest

from specdemo import Params, load_pair
from specdemo.trials.chi_square import homogeneity
from specdemo.ui.runs import trials as of_page
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import LOCAL, Visitor
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.run import measure
from specdemo.ui.runs.trials import SHOWN_CELLS, verdict_of
from tests.pure.test_following import measured

PROMPT = "Once upon a time, there was a little fox"
PARAMS = Params(gamma=3, temperature=0.8, top_p=0.9, seed=7)
USUAL = {"name": None, "target": None, "drafter": None, "device": "cpu", "dtype": None, "quantize": None}


def request(trial, params=PARAMS, prompt=PROMPT):
    return measurement_request({"kind": "trials", "trial": trial}, Choice(), prompt, params)


def counted(trial, runs, params=PARAMS, *pairs):
    trials = request(trial, params)
    trials.begin(*pairs)
    for _ in range(runs):
        trials.go_on(lambda: False, *pairs)
    return json.loads(json.dumps(trials.so_far(), allow_nan=False))


@pytest.mark.slow
def test_the_counts_grow_until_there_are_enough(monkeypatch):
    monkeypatch.setattr(of_page.TrialsOfTiny, "most", 120)
    monkeypatch.setattr(of_page.TrialsOfTiny, "period", 0.01)
    told = measured(Models(USUAL), RunQueue(), request("none"))
    counts = [one["trials"]["runs"] for one in told if "trials" in one]
    assert counts == sorted(counts) and len(set(counts)) > 1 and counts[-1] == 120
    last = told[-1]
    assert (last["id"], last["kind"], last["state"], last["share"]) == ("name", "trials", "ended", None)
    assert last["trials"]["found"] == "fits" and "seeds from 7 on" in last["whose"]
    for sums in ("came", "due"):
        assert sum(cell[sums] for cell in last["trials"]["cells"]) == pytest.approx(1)


@pytest.mark.slow
def test_a_turn_that_is_too_long_ends_with_what_it_has():
    queue = RunQueue()

    def ends_there(message, ticket):
        if "trials" in message:
            queue.limits = replace(LOCAL, run_seconds=ticket.seconds)

    told = measured(Models(USUAL), queue, request("none"), ends_there)
    assert told[-1]["state"] == "stopped" and told[-1]["text"]
    assert 0 < told[-1]["trials"]["runs"] < told[-1]["trials"]["most"]


def test_who_waits_has_a_turn_between_two_pieces(monkeypatch):
    monkeypatch.setattr("specdemo.ui.runs.queue.TURN_PIECE", 0.02)
    monkeypatch.setattr(of_page.TrialsOfTiny, "period", 0.05)
    monkeypatch.setattr(of_page.TrialsOfTiny, "most", 400)
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


def test_pieces_together_take_no_longer_than_a_turn():
    ticket = RunQueue(replace(LOCAL, run_seconds=0.5)).join(Visitor("page", "10.0.0.1"), "measurement")

    def work():
        time.sleep(0.3)
        ticket.gave_way = True

    ticket.enter(work)
    ticket.done.result(10)
    assert ticket.is_late and ticket.had >= 0.3


def test_a_mistake_is_found_and_its_bars_tell_where():
    """toy/test_exact_trials.py has all of them."""
    found = counted("soft", 100)
    assert found["found"] == "differs" and found["p_value"] < 1e-6
    assert found["distance"] > 2 * found["by_chance"] and found["greedy"]
    assert found["statistic"] is None, "what p gives 0 comes out there"
    assert len(found["cells"]) <= SHOWN_CELLS


def test_greedy_runs_are_one_cell():
    found = counted("told", 100, replace(PARAMS, temperature=0.0))
    assert found["greedy"] and found["found"] == "alike" and found["freedom"] == 0
    assert [(one["came"], one["due"]) for one in found["cells"]] == [(1.0, 1.0)]


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
    found = counted("pair", 3, PARAMS, pair)
    assert found["runs"] == 3 and found["found"] == "few" and 0 < found["accepted"] <= found["judged"]
    assert any(one["text"].strip() for one in found["cells"])
    assert f"“{PROMPT}”" in request("pair").begin(pair)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [0, 1])
def test_between_two_turns_no_pair_is_kept(runs):
    """Before the first run, too, and after one that failed."""
    pair = load_pair(device="cpu", dtype="float32")
    trials, held = request("pair"), weakref.ref(pair)
    trials.begin(pair)
    with suppress(ZeroDivisionError):
        for _ in range(runs):
            trials.go_on(lambda: 1 / 0, pair)
    del pair
    gc.collect()
    assert held() is None
