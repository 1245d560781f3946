"""What checks of a mixture of experts read, in numbers and sentences."""

from dataclasses import replace

import pytest

from specdemo.cli.terminal import summary
from specdemo.events import ByModel, ExpertsRead, PairInfo, Params, Started
from specdemo.events.speedup import DraftingCost, experts_of_checks
from specdemo.events.trace import Trace
from specdemo.events.verdict import experts_in_words
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.texts import number_texts
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
    for gamma in ("auto", 4):
        assert experts_of_checks(trace.rounds, gamma) == (5, ExpertsRead(6.25, 2.0))
    assert experts_of_checks(trace.rounds, 2) == (3, ExpertsRead(3.5, 2.0))
    assert experts_of_checks(trace.rounds, 8) is None, "no draft was that long"
    assert experts_of_checks(trace.rounds[3:], 4) is None, "nothing was drafted"
    assert Trace.from_json(trace.to_json()) == trace


def test_the_same_is_said_everywhere_and_nothing_of_other_targets():
    for experts in (True, False):
        trace = run_of(experts)
        sentence = experts_in_words(trace.rounds, trace.params)
        assert ("3.1 times" in sentence) == experts == bool(sentence)
        paid, _ = summary(trace)
        assert paid.endswith(sentence) and ("expert" in paid) == experts
        assert ("6.25" in number_texts(trace)["experts_read"]) == experts
        feed = RunFeed(trace)
        feed.ended = True
        snapshot = feed.snapshot()
        assert snapshot["outcome"]["experts"] == sentence
    none = run_of(row=0.0)
    assert Trace.from_json(none.to_json()) == none and experts_in_words(none.rounds, none.params) == ""


def test_more_rows_of_a_mixture_cost_the_experts_that_they_are_expected_to_read():
    """128 experts, of which a row reads 8, by the chance that no row reads an expert."""
    cost = DraftingCost(token=0.1, draft=0.2, experts=0.6, chosen=8 / 128)
    for gamma in (1, 4, 16):
        read = 128 * (1 - (1 - 8 / 128) ** (gamma + 1))
        assert cost.of_a_draft(gamma) == pytest.approx(0.1 * gamma + 0.2 + 0.6 * (read / 8 - 1))
    assert replace(cost, experts=0.0, chosen=1.0).of_a_draft(4) == pytest.approx(0.1 * 4 + 0.2)
