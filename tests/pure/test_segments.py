"""A run by segments: which token belongs to which, and numbers that add up to the run's."""

import pytest

from specdemo.cli.terminal import by_segment
from specdemo.events import ByModel, Judged, Mark, Next, PairInfo, Params, Round, Started
from specdemo.events.segments import segments_of
from specdemo.events.trace import Trace
from specdemo.ui.view.texts import number_texts

NONE = ByModel(None, None)
PAIR = PairInfo("p", "t", "d", "cpu", "a CPU", NONE, NONE)
THINK, END, CALL, START, CHANNEL, BODY, EOS, CALLED = range(90, 98)
MARKS = (
    *(Mark(THINK, "<think>", "thinking"), Mark(END, "</think>", "end")),
    *(Mark(CALL, "<tool_call>", "tool call"), Mark(START, "<|start|>", "header")),
    *(Mark(CHANNEL, "<|channel|>", "header"), Mark(BODY, "<|message|>", "body")),
    *(Mark(EOS, "<|end|>", "end"), Mark(CALLED, "</tool_call>", "end")),
)
WORDS = {1: "analysis", 2: "final", 3: " to=functions.f", 4: "commentary"}


def judged(token_id: int, fate: str) -> Judged:
    return Judged(token_id, WORDS.get(token_id, ""), 0.5, 0.5, 0.5, 0.5, 0.1, 1.0, fate, ())


def written(*drafts: tuple[int, ...], prompt=(5,), marks=MARKS, wrong=(), ms=2.0) -> Trace:
    """A run whose rounds accept all but the last of these ids, which the target adds. wrong: indices of
    rounds in which one more token was rejected."""
    trace = Trace.begin(Started(PAIR, {}, Params(), "x", tuple(prompt), marks=marks))
    for index, ids in enumerate(drafts):
        draft = [judged(one, "accepted") for one in ids[:-1]]
        draft += [judged(50, "rejected"), judged(51, "discarded")] if index in wrong else []
        own = Next(ids[-1], WORDS.get(ids[-1], ""), "bonus", 0.5, None, 0.5, None, 0.1, None, ())
        trace.add(Round(index, tuple(draft), own, ids, ms / 2, ms / 2))
    return trace


def told(trace: Trace) -> dict[str, int]:
    return {one.kind: one.tokens for one in segments_of(trace.started, trace.rounds)}


def test_each_number_stands_with_its_segment_and_they_add_up_to_the_run():
    run = written((THINK, 7, 8), (9, END, 10, 11), (12, CALL), (13, 14), wrong=(0, 1, 2), ms=4.0)
    thinking, answer, call = segments_of(run.started, run.rounds)
    assert (thinking.kind, thinking.tokens, thinking.accepted, thinking.rejected) == ("thinking", 5, 4, 1)
    assert (answer.kind, answer.tokens, answer.accepted, answer.rejected) == ("answer", 3, 2, 1)
    assert (call.kind, call.tokens, call.accepted, call.rejected) == ("tool call", 3, 1, 1)
    assert (thinking.rounds, answer.rounds, call.rounds) == (1.5, 1.0, 1.5)
    assert thinking.tokens_per_round == pytest.approx(5 / 1.5) and thinking.acceptance_rate == 0.8
    assert thinking.tokens_per_second == pytest.approx(1000 * 5 / 6)
    for name in ("tokens", "accepted", "rejected", "rounds"):
        assert sum(getattr(one, name) for one in segments_of(run.started, run.rounds)) == getattr(
            run.stats, name
        )
    assert Trace.from_json(run.to_json()).marks == MARKS
    run.end("length")
    assert len(number_texts(run)["segments"].split("\n")) == len(by_segment(run)) == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ((5, THINK, 6), {"thinking": 2, "answer": 1}),
        ((5, THINK, 6, END), {"answer": 3}),
        ((THINK, 6, EOS, 7), {"answer": 3}),
        ((THINK, 6, CALL, 7, CALLED), {"thinking": 2, "answer": 1}),
    ],
)
def test_a_prompt_can_leave_a_segment_open(prompt, expected):
    assert told(written((7, END, 8), prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((THINK, 7, CALL, 8, CALLED, 9, END, 10), {"thinking": 4, "tool call": 3, "answer": 1}),
        ((THINK, 7, CALL, 8, END, 9), {"thinking": 3, "tool call": 2, "answer": 1}),  # the call is not closed
        ((THINK, 7, CALLED, 8, END, 9), {"thinking": 5, "answer": 1}),  # no call was open
        ((THINK, THINK, 7, END, 8), {"thinking": 4, "answer": 1}),  # written again after the prompt's
        ((THINK, CALL, 7, EOS, 8), {"thinking": 1, "tool call": 3, "answer": 1}),
    ],
)
def test_after_a_segment_the_text_is_back_in_what_encloses_it(ids, expected):
    assert told(written(ids)) == expected
    assert told(written(*((one,) for one in ids))) == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((CHANNEL, 1, BODY, 7, 8, EOS, START, 9, CHANNEL, 2, BODY, 10, EOS), {"thinking": 6, "answer": 7}),
        ((CHANNEL, 1, BODY, 7, EOS, START, 9, CHANNEL, 4, 3, BODY, 10), {"thinking": 5, "tool call": 7}),
        ((3, CHANNEL, 4, BODY, 10, 11), {"tool call": 6}),
        ((CHANNEL, 4, BODY, 10), {"answer": 4}),
        ((CHANNEL, 1), {"answer": 2}),
    ],
)
def test_a_header_names_its_segment(ids, expected):
    """Also one that the prompt begins, and wherever rounds part it."""
    assert told(written(*((one,) for one in ids), prompt=(5, START, 9))) == expected
    assert told(written(ids, prompt=(5, START, 9))) == expected


def test_a_run_without_marks_is_one_segment_of_which_nothing_is_said():
    run = written((THINK, 7), (END, 8), marks=())
    assert told(run) == {"answer": 4} and by_segment(run) == []
    assert segments_of(run.started, []) == []
