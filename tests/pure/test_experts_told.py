"""What checks of a mixture of experts read, in numbers and sentences."""

from dataclasses import replace

import pytest

from specdemo.cli.terminal import summary
from specdemo.engine.loop import DraftLength
from specdemo.events import ByModel, ExpertsRead, PairInfo, Params, Started
from specdemo.events.speedup import DraftingCost, experts_of_checks
from specdemo.events.trace import Trace
from specdemo.events.verdict import experts_in_words
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.texts import number_texts
from specdemo.words.catalogue import speaking
from tests.pure.test_estimate import simulated

NONE = ByModel(None, None)
PAIR = PairInfo("p", "t", "d", "cpu", "a CPU", NONE, NONE)


def run_of(experts=True, row=2.0):
    """Two full drafts, which read 5 and 7.5 experts, a shorter one, and a round without a draft."""
    trace = Trace.begin(Started(PAIR, {}, Params(gamma="auto", seed=1), "x", (5,)))
    for index, (length, read) in enumerate([(4, 5.0), (4, 7.5), (2, 3.5), (0, 2.0)]):
        (one,) = simulated(length, lambda place: 1.0, 1)
        read = ExpertsRead(read, row) if experts else None
        trace.add(replace(one, index=index, experts_read=read))
    trace.end("length")
    return trace


def test_full_drafts_are_told_and_all_rounds_add_up():
    trace = run_of()
    checks = experts_of_checks(trace.rounds, "auto")
    assert (checks.rows, checks.read, checks.ratio) == (5, ExpertsRead(6.25, 2.0), 3.125)
    assert experts_of_checks(trace.rounds, 4) == checks
    assert experts_of_checks(trace.rounds, 2).read == ExpertsRead(3.5, 2.0)
    assert experts_of_checks(trace.rounds, 8) is None, "no draft was that long"
    assert experts_of_checks(trace.rounds[3:], 4) is None, "nothing was drafted"
    assert Trace.from_json(trace.to_json()) == trace


def test_the_same_is_said_everywhere():
    trace = run_of()
    sentence = "A check of 5 rows read 3.1 times the experts of one, since each row chooses its own."
    paid, _ = summary(trace.stats, trace.finish, trace.params, trace.rounds)
    assert paid.endswith(f" {sentence}")
    assert number_texts(trace)["experts_read"] == "6.25 for 5 rows, 2.00 for 1"
    feed = RunFeed(trace)
    feed.ended = True
    snapshot = feed.snapshot()
    assert snapshot["outcome"]["experts"] == sentence
    with speaking("de"):
        words = feed.words_of(snapshot)
    assert "las 3,1-mal so viele Experten wie" in words["outcome"]["experts"]
    assert words["numbers"]["experts_read"] == "6,25 für 5 Zeilen, 2,00 für 1"


def test_where_rows_choose_alike_or_none_no_reason_is_given():
    alike = [replace(one, experts_read=ExpertsRead(2.05, 2.0)) for one in run_of().rounds]
    assert experts_in_words(alike, Params(gamma=4)) == "A check of 5 rows read 1.0 times the experts of one."
    none = run_of(row=0.0)
    assert Trace.from_json(none.to_json()) == none and experts_in_words(none.rounds, none.params) == ""


def test_of_other_targets_nothing_is_said():
    trace = run_of(experts=False)
    assert number_texts(trace)["experts_read"] == "–"
    assert "expert" not in " ".join(summary(trace.stats, trace.finish, trace.params, trace.rounds))
    feed = RunFeed(trace)
    feed.ended = True
    assert feed.snapshot()["outcome"]["experts"] == ""


def test_more_rows_of_a_mixture_cost_the_experts_that_they_are_expected_to_read():
    """128 experts, of which a row reads 8, by the chance that no row reads an expert."""
    cost = DraftingCost(token=0.1, draft=0.2, experts=0.6, chosen=8 / 128)
    for gamma in (1, 4, 16):
        read = 128 * (1 - (1 - 8 / 128) ** (gamma + 1))
        assert cost.of_a_draft(gamma) == pytest.approx(0.1 * gamma + 0.2 + 0.6 * (read / 8 - 1))
    assert replace(cost, experts=0.0, chosen=1.0).of_a_draft(4) == pytest.approx(0.1 * 4 + 0.2)


def test_such_a_target_gets_shorter_drafts_or_none():
    dense = DraftLength("auto", DraftingCost(token=0.02))
    mixture = DraftLength("auto", DraftingCost(token=0.02, experts=0.8, chosen=1 / 16))
    assert 1 <= mixture.gamma < dense.gamma
    for length in (dense, mixture):
        for _ in range(20):
            length.learn(1, rejected=True)  # half of them are accepted
    assert mixture.is_paused and not dense.is_paused
