"""Runs whose rounds are made in turns with plain ones, so that both meet the same load: some rounds of the
run, then plain ones on the stretch of text that these have written, and so on."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, takewhile
from time import perf_counter
from typing import NamedTuple

from specdemo import zero
from specdemo.engine.loop import Loop
from specdemo.errors import no_mistakes
from specdemo.events import Params, Prompt, Round, Started
from specdemo.events.speedup import NARROW, SHORTEST, timed
from specdemo.events.trace import Trace
from specdemo.loading.checks import look_at
from specdemo.loading.pair import Pair
from specdemo.measure.samples import Text, TimedTurn, after_turns, measure
from specdemo.runtime.lm import keeps_state
from specdemo.servers.software import ServedPair
from specdemo.session import (
    IsOver,
    Run,
    as_in_a_run,
    generate,
    held,
    loop_of,
    plain_loop,
    prepare,
    rounds_after,
)

SETTLED_BELOW_MS = 1000.0  # of a run: see `settle`
SETTLING_SECONDS = 2.0
SETTLED_TURNS = 12  # at least: an interval that is looked at again and again is soon narrow by chance


class Stopped(Exception):
    """Within a text, which then does not count."""


class TurnLength(NamedTuple):
    """How many rounds a turn has of the run, and at most of the target alone. The first of each side is not
    timed. Both sides should take about as long: with gamma 4 a round of the embedded pair takes as long as
    two plain ones."""

    own: int
    alone: int


USUAL_TURN = TurnLength(5, 9)
SHORT_TURN = TurnLength(3, 4)  # so that short texts and long drafts have several


def run_in_turns(pair: Pair, prompt: Prompt, params: Params, is_over: IsOver = lambda: False) -> Text:
    """A run in turns. Stopped where is_over got true before the end. A target with
    recurrent layers cannot go back: its run is followed by one without drafts, and both are one turn. Raises
    as `stream` does."""
    if keeps_state(pair.target):
        both = (params, replace(params, draft_with="none"))
        trace, alone = (generate(pair, prompt, one, measure=False, is_over=is_over) for one in both)
        if "cancelled" in (trace.finish, alone.finish):
            raise Stopped
        return Text(trace, [TimedTurn(timed(alone.rounds), timed(trace.rounds))])
    started = prepare(pair, prompt, params)
    trace, turns = Trace.begin(started), list[TimedTurn]()
    with held(pair), no_mistakes():
        loop = _at_its_prompt(pair, started, is_over)
        for rounds, turn in _in_turns(loop, started, is_over, 0, SHORT_TURN):
            for one in rounds:
                trace.add(one)
            turns += turn
    if loop.finish is None:
        raise Stopped
    trace.end(loop.finish)
    return Text(trace, turns)


def settle(run: Run, is_over: IsOver = lambda: False) -> Iterator[None]:
    """Times a run again that has ended and took less than a second, or whose speed-up cannot be claimed, for
    a narrower `speedup_interval` of its trace's stats: see `time_in_turns`. On ZeroGPU the GPU is given back
    with the run."""
    if zero.GPU and run.pair.runs_here:
        return
    stats = run.trace.stats
    is_short = (stats.prefill_ms or 0.0) + stats.run_ms < SETTLED_BELOW_MS
    if stats.target_step_ms is not None and (stats.speedup is None or is_short):
        yield from time_in_turns(run, SETTLING_SECONDS, is_over)


def time_in_turns(run: Run, seconds: float, is_over: IsOver = lambda: False) -> Iterator[None]:
    """Makes a run that has ended again and again in turns, and sets its trace's speed-up by them, for so many
    seconds, or until the ends of the interval differ by less than the factor NARROW. Where no speed-up can be
    claimed by then, it takes up to four times as long. Yields before each time. It is narrow enough only
    where the whole text has been made again, since drafts can be shorter in some parts of it. In 16 bits
    another text can come of it, since plain rounds write the cache again and are rounded otherwise. Between
    turns nothing is computed: the rounds after that would be slower.

    The speed-up stays as it is where the run has fewer than 24 tokens or did not finish, on a server, of a
    target with recurrent layers, and while the pair is busy with another run. is_over: ends it within a
    round."""
    pair, trace = run.pair, run.trace
    is_whole = trace.finish in ("eos", "stop", "length") and trace.stats.tokens >= SHORTEST
    if isinstance(pair, ServedPair) or not is_whole or keeps_state(pair.target):
        return
    end, turns, needed, is_done = perf_counter() + seconds, list[TimedTurn](), SETTLED_TURNS, False

    def is_enough() -> bool:
        late = perf_counter() - end
        return is_over() or late > 3 * seconds or (late > 0 and len(turns) >= needed)

    def again(trace: Trace, shift: int) -> None:
        nonlocal needed, is_done
        before = len(turns)
        loop = _at_its_prompt(pair, run.started, is_enough)
        for _, turn in _in_turns(loop, run.started, is_enough, shift, USUAL_TURN):
            turns.extend(turn)
        trace.stats = after_turns(trace.stats, turns)
        low, high = trace.stats.speedup_interval or (0.0, 1.0)
        is_narrow = len(turns) >= SETTLED_TURNS and high <= NARROW * low
        is_done = is_narrow or len(turns) == before  # or the text is too short for a turn
        if trace.stats.speedup is None and len(turns) >= needed:
            needed = len(turns) + SETTLED_TURNS

    until_narrow = takewhile(lambda _: not (is_done or is_enough()), count())
    # An error here (too little memory, an owner's change, another run) leaves the speed-up as it is.
    with suppress(Exception), held(pair):
        for _ in measure(lambda _: [trace], until_narrow, again):
            yield


def _at_its_prompt(pair: Pair, started: Started, is_over: IsOver) -> Loop:
    """The loop of a run that has read its prompt. The target can go back in it."""
    look_at(pair)
    loop = loop_of(pair, started, is_over)
    with loop.active():
        loop.prefill(list(started.prompt_ids))
    return loop


def _in_turns(
    loop: Loop, started: Started, is_over: IsOver, shift: int, most: TurnLength
) -> Iterator[tuple[list[Round], list[TimedTurn]]]:
    """The rounds of a run, turn by turn, until the text ends, each with the turn as it was timed. What is too
    short for a turn has no plain rounds, and so none.

    loop: that of the run, which has read the prompt. shift: how many rounds, of those of a turn, come
    before the first one, so that turns begin at other places when a run is made again."""

    def made(rounds: Iterator[Round]) -> list[Round]:
        return list(as_in_a_run(loop, beside, is_over, rounds))

    beside, shift = Trace.begin(started), shift % most.own
    plain, target = plain_loop(loop), loop.verifier.target
    ids, index = list(started.prompt_ids), 0
    while loop.finish is None:
        before, many = len(ids), shift or most.own
        left = iter(range(many - 1, -1, -1))

        def following(emitted: Sequence[int], left: Iterator[int] = left) -> list[int] | None:
            ids.extend(emitted)
            return ids if next(left) else None

        own = made(loop.rounds(ids, index, following))
        index += len(own)
        if loop.finish is not None or len(own) < many:  # a last draft can have had less room
            yield own, []
            return
        if shift:
            shift = 0
            yield own, []
            continue
        features, target.features = target.features, None
        wanted = min(len(ids) - before, most.alone)
        ends = [before + at * (len(ids) - before) // wanted for at in range(wanted)]
        alone = made(rounds_after(plain, ids, ends, index))
        target.features = features
        if len(alone) < wanted:
            return
        # The first round of each side finds the other's memory in the processor's caches; the last one of
        # those that are launched ahead is written down in its own time.
        counted = slice(1, -1 if loop.ahead else None)
        yield own, [TimedTurn(timed(alone[counted]), timed(own[counted]))]
