"""How long a draft is: ended by the drafter's confidence, or chosen round by round. Neither may change the
target's distribution; what looks at the drafted token itself does, and must fail the same test."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specdemo.engine import draft
from specdemo.engine.draft import PAUSE, ROW_COST, TRIAL, DraftLength, is_unsure
from specdemo.engine.sampling import Sampler
from specdemo.events import Round
from specdemo.events.speedup import DraftingCost, expected_speedup
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.steps import AUTO_ROWS, EagerSteps
from tests.oracle import TableLM, decoding, make_drafter, random_table
from tests.toy.test_exact_table import (
    CONFIDENCE,
    DRAFTER,
    EOS,
    MANY_PROMPTS,
    PLAIN,
    PROMPTS,
    RUNS,
    SOUND,
    TARGET,
    V,
    exactness,
)

SURE = replace(PLAIN, gamma=3, confidence=CONFIDENCE)
AUTO = replace(PLAIN, gamma="auto")
PROMPT = PROMPTS["lookup"]


def test_a_length_chosen_round_by_round_keeps_the_distribution():
    """That confidence does is shown token for token in test_exact_table.py."""
    fates = Counter()
    p = exactness(AUTO, RUNS, cost=DraftingCost(token=0.1), fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    chosen = [fates[f"gamma {gamma}"] for gamma in AUTO_ROWS]
    assert sum(count > RUNS / 50 for count in chosen) >= 2, f"always about the same length: {chosen}"


def rounds_of(params, seed, run_step=None, stops=True):
    """The rounds of one run, but for their times. stops: whether the drafter ends its loop at an unsure
    place."""
    how = dict(run_step=run_step or EagerSteps(), gamma=params.gamma, confidence=params.confidence)
    drafter = make_drafter("model", Sampler(params), V, TableLM(DRAFTER), **how)
    if not stops:
        drafter.stops_below = 0.0
    prompt = MANY_PROMPTS[seed % len(MANY_PROMPTS)]
    events = decoding(TableLM(TARGET), drafter, replace(params, seed=seed), prompt, run_step=how["run_step"])
    return [replace(one, draft_ms=0, verify_ms=0) for one in events if isinstance(one, Round)]


class FullRows(EagerSteps):
    """With rows as captured steps have them."""

    def rows(self, k, gamma):
        return Graphs.rows(self, k, gamma)

    blocker = None


@pytest.mark.slow
@pytest.mark.parametrize("params", [SURE, replace(SURE, gamma="auto"), replace(SURE, temperature=0.0)])
def test_a_draft_that_is_cut_is_the_one_that_was_stopped(params):
    """On a GPU all rows are drafted, and the verifier alone decides how many of them count."""
    params = replace(params, alternatives=2, max_new_tokens=12)
    ended = Counter()
    for seed in range(25):
        stopped, full = rounds_of(params, seed), rounds_of(params, seed, FullRows(), stops=False)
        assert stopped == full
        left = params.max_new_tokens
        for one in stopped:
            asked, drafted = min(one.gamma, left - 1), len(one.draft)
            dropped = asked - drafted if one.ended_by == "confidence" else 0
            ended[one.ended_by] += 1
            ended["several dropped"] += dropped > 1
            left -= len(one.emitted)
    assert all(ended[why] > 4 for why in ("confidence", "length", "several dropped")), ended


def test_a_drafter_stops_where_reading_a_number_costs_nothing():
    table, fed = TableLM(DRAFTER), []
    for confidence in (0.0, 0.999):
        drafter = make_drafter("model", Sampler(SURE), V, table, gamma=3, confidence=confidence)
        before = table.forwards
        drafter.propose([0, 1], 3, [0.5] * 3)
        fed.append(table.forwards - before)
    assert fed == [3, 1]
    table.device = torch.device("cuda")
    assert make_drafter("model", Sampler(SURE), V, table, confidence=0.5).stops_below == 0


def test_confidence_ends_no_draft_that_has_no_distribution():
    texts = []
    for confidence in (0.0, 0.99):
        params = replace(PLAIN, draft_with="ngram", seed=1, max_new_tokens=40, confidence=confidence)
        run = decoding(TableLM(TARGET), None, params, PROMPT)
        texts.append([(one.emitted, one.ended_by) for one in run if isinstance(one, Round)])
    assert texts[0] == texts[1] and {"gamma", "drafter"} <= {ended_by for _, ended_by in texts[0]}


def test_broken_weights_do_not_pass_for_unsure_ones():
    table = random_table(2)
    table[...] = float("nan")
    assert not is_unsure(table[0], 0.5).any()
    with pytest.raises(RuntimeError, match="drafter's probabilities are not numbers"):
        list(decoding(TableLM(TARGET), TableLM(table), replace(SURE, seed=1), [0, 1]))


@pytest.mark.parametrize(("draft_with", "confidence"), [("model", 0.0), ("model", 0.3), ("lookup", 0.9)])
def test_an_eos_ends_a_draft(draft_with, confidence):
    params = replace(PLAIN, draft_with=draft_with, confidence=confidence, gamma=4, max_new_tokens=12)
    ended = Counter()
    for seed in range(15):
        run = decoding(TableLM(TARGET), TableLM(DRAFTER), replace(params, seed=seed), PROMPT, eos=[2])
        for one in run:
            if isinstance(one, Round):
                ended[one.ended_by] += 1
                assert (one.ended_by == "eos") == (bool(one.draft) and one.draft[-1].id == EOS)
    assert ended["eos"] > 5


def test_the_length_is_the_best_one_for_what_was_seen():
    length = DraftLength("auto", DraftingCost(token=0.05))
    seen = []
    for fate in ["accepted"] * 200 + ["rejected"] * 200 + ["accepted"] * 200:
        length.learn(int(fate == "accepted"), fate == "rejected")
        alpha = length.accepted / length.judged
        speedups = {gamma: expected_speedup(alpha, gamma, 0.05 + ROW_COST) for gamma in AUTO_ROWS}
        best = max(AUTO_ROWS, key=speedups.__getitem__)
        assert length.gamma == (0 if length.is_paused else best)
        assert not length.is_paused or speedups[best] <= 1
        seen.append(length.gamma)
    assert (seen[199], seen[599]) == (16, 16) and set(seen[200:400]) >= {0, 1}


def test_drafting_pauses_where_it_does_not_pay_and_comes_back():
    """By a drafter that is as dear as the target: never before so many verdicts as make a trial. After a
    pause few verdicts are enough to change the length, and one that pays stays."""
    length = DraftLength("auto", DraftingCost(token=0.6))
    lengths = []
    for _ in range(3 * (PAUSE + TRIAL)):
        lengths.append(length.gamma)
        length.learn(0, rejected=length.gamma > 0)
    assert lengths == ([1] * TRIAL + [0] * PAUSE) * 3
    cheap = DraftLength("auto", DraftingCost(token=0.05))
    while not cheap.is_paused:
        cheap.learn(0, rejected=True)
    for _ in range(PAUSE):
        assert cheap.gamma == 0
        cheap.learn(0, rejected=False)
    for _ in range(TRIAL):
        cheap.learn(1, rejected=False)
    assert cheap.gamma >= 4


def test_a_pause_ends_no_text_and_is_told():
    params = replace(AUTO, seed=1, max_new_tokens=200)
    events = decoding(TableLM(TARGET), TableLM(DRAFTER), params, PROMPT, cost=DraftingCost(token=2.0))
    rounds = [one for one in events if isinstance(one, Round)]
    paused = [one for one in rounds if one.ended_by == "pause"]
    assert paused and all(one.gamma == 0 and not one.draft and len(one.emitted) == 1 for one in paused)
    assert all(one.gamma for one in rounds if one.ended_by != "pause")


def test_pauses_keep_the_distribution(monkeypatch):
    """Which round is one depends on the verdicts before it."""
    monkeypatch.setattr(draft, "PAUSE", 1)
    monkeypatch.setattr(draft, "TRIAL", 1)
    fates = Counter()
    p = exactness(AUTO, RUNS, cost=DraftingCost(token=0.7), fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    assert min(fates["gamma 0"], fates["gamma 1"]) > RUNS / 50


def test_a_dearer_drafter_gets_shorter_drafts_and_one_that_costs_the_same_for_each_length_longer_ones():
    def length(**cost):
        return DraftLength("auto", DraftingCost(**cost)).gamma

    lengths = [length(token=cost) for cost in (0.0, 0.05, 0.2, 0.8)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1] == 1
    assert length(token=0.2) < length(draft=0.2)


@pytest.mark.parametrize("longest", [1, 7, 16, 31])
def test_no_length_is_longer_than_the_drafter_can_draft(longest):
    length = DraftLength("auto", DraftingCost(draft=0.05), longest)
    length.learn(200, rejected=False)
    assert length.gamma == min(longest, 16)
