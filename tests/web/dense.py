"""A trace with many alternatives, which takes much room in a file and more in memory."""

import random
from dataclasses import replace
from pathlib import Path

from specdemo.events.trace import Trace, rounds_json
from tests.web.conftest import RECORDED, with_rounds


def dense_trace(file: Path, size: int) -> Trace:
    """Saves such a trace of about this many bytes: drafts of 16 tokens, 50 alternatives each."""
    dice, run = random.Random(1), Trace.load(RECORDED)
    trace = with_rounds(run, [])

    def top() -> tuple:
        return tuple((n, f" token {n}", *(dice.random() / 50 for _ in range(4))) for n in range(50))

    own = replace(run.rounds[0], gamma=None, made=None, kept=None)
    length = 0
    while length < size:
        token = replace(own.draft[0], fate="accepted", u=0.1, accept_prob=1.0)
        draft = tuple(replace(token, top=top()) for _ in range(16))
        bonus = replace(own.next, source="bonus", residual_mass=None, top=top())
        emitted = (*(token.id for token in draft), bonus.id)
        trace.add(replace(own, index=len(trace.rounds), draft=draft, next=bonus, emitted=emitted))
        length += len(rounds_json(trace.rounds[-1:]))
    trace.end("length")
    trace.save(file)
    return trace
