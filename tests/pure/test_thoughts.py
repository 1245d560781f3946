"""Where a text is in a thought or in a header, by the marks of published templates."""

import pytest

from specdemo.events import Mark
from specdemo.events.thoughts import Opened, Thoughts, opened_in

THINK, END, CALL, START, CHANNEL, BODY, EOS, CALLED = range(90, 98)
MARKS = (
    *(Mark(THINK, "<think>", "thinking"), Mark(END, "</think>", "end")),
    *(Mark(CALL, "<tool_call>", "tool call"), Mark(START, "<|start|>", "header")),
    *(Mark(CHANNEL, "<|channel|>", "header"), Mark(BODY, "<|message|>", "body")),
    *(Mark(EOS, "<|end|>", "end"), Mark(CALLED, "</tool_call>", "tool call")),
)
WORDS = {1: "analysis", 2: "final", 3: " to=functions.f", 4: "commentary"}


def answer_of(prompt, output) -> int | None:
    """How many tokens of the output come before its answer; None where it has none."""
    thoughts = Thoughts.at_first(MARKS, opened_in(prompt, MARKS, lambda one: WORDS.get(one, "")))
    for at, token_id in enumerate(output):
        thoughts = thoughts.after(token_id, WORDS.get(token_id, ""))
        if thoughts is None:
            return at
    return None


@pytest.mark.parametrize(
    ("prompt", "output", "before"),
    [
        ((5, THINK, 6), (7, END, 8), 2),
        ((5,), (THINK, 7, END, 8), 3),
        ((5, THINK, 6, END), (THINK, 8), 0),  # the prompt has closed a thought, and no other comes
        ((THINK, 6, EOS, 7), (7, 8), 0),
        ((THINK, 6, CALL, 7, CALLED), (7, END, 8), 2),
        ((5,), (THINK, 7, CALL, 8, CALLED, 9, END, 10), 7),
        ((5,), (THINK, 7, CALL, 8, END, 9), 5),  # the call is not closed
        ((THINK,), (THINK, 7, END, 8), 3),
        ((5, START, 9), (CHANNEL, 1, BODY, 7, EOS, START, 9, CHANNEL, 2, BODY, 10), 10),
        ((5, START, 9), (CHANNEL, 4, 3, BODY, 10), None),
        ((5, START, 9), (CHANNEL, 4, BODY, 10), 3),
        ((5, START, 9), (CHANNEL, 1), None),
    ],
)
def test_an_answer_begins_after_what_is_thought_or_meant_for_a_tool(prompt, output, before):
    assert answer_of(prompt, output) == before


def test_without_marks_nothing_is_open():
    assert opened_in((THINK, 7), ()) == Opened() and not Thoughts().are_open
