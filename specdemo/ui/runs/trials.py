"""Many short runs of the real engine, counted by their first two tokens, with a chi-square test. Without
Gradio.

The runs are of the tiny pair, as the engine is or with one of the mistakes, against the target's own
distribution, which is enumerated; or of the chosen pair and this prompt, with drafting on and off.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any

from specdemo import zero
from specdemo.errors import PairError
from specdemo.events import PairInfo, Params, check_prompt, is_lossy
from specdemo.loading.pair import AnyPair, Pair
from specdemo.trials.chi_square import (
    ChiSquare,
    distance_by_chance,
    goodness_of_fit,
    homogeneity,
    shares_of,
    total_variation,
)
from specdemo.trials.mistakes import MISTAKES
from specdemo.trials.runs import FirstTokens, PairTrials, TinyTrials, tiny_params
from specdemo.trials.tiny import TINY_PROMPT, TINY_WORDS
from specdemo.ui.runs.instruments import prompt_in_words
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import awaitable, turn_with
from specdemo.ui.view import wire
from specdemo.ui.view.choices import words_of_row
from specdemo.ui.view.feed import nothing_yet
from specdemo.ui.view.settings import in_words, judging_in_words, sampler_in_words
from specdemo.words.catalogue import say
from specdemo.words.message import message, refusal

TRIALS = ("none", *MISTAKES, "pair")
TINY_RUNS = 10_000
PAIR_RUNS = 2_000  # of each kind
SHOWN_CELLS = 16  # bars; the rarer cells are shown as one
BEYOND_CHANCE = 1e-6  # the p-value below which a difference is called found, however often it is looked at
UNSUSPICIOUS = 1e-3  # and the one from which nothing is said against being equal
FEWEST_RUNS = 100  # of which something is said
LOOK_PERIOD = 0.3  # s between two looks at the counts


@dataclass(frozen=True)
class TrialsRequest:
    """The trials that a visitor asks for. trial: one of TRIALS: "none" is the tiny pair without a mistake,
    "pair" the chosen one."""

    trial: str
    choice: Choice
    prompt: str
    params: Params

    @property
    def mistake(self) -> str | None:
        return self.trial if self.trial in MISTAKES else None


def trials_request(wanted: dict[str, Any], choice: Choice, prompt: str, params: Params) -> TrialsRequest:
    """The trials that the page's script asks for. wanted: what the script sends. Raises ValueError with one
    sentence."""
    trial = wanted.get("trial")
    if trial not in TRIALS:
        raise ValueError(refusal("trial", "choice", trial, names=", ".join(TRIALS)))
    if trial == "pair":
        check_prompt(prompt)
        if params.draft_with == "none":
            raise ValueError(message("off_already"))
    if params.seed is None:
        params = replace(params, seed=SystemRandom().randrange(2**32))
    return TrialsRequest(trial, choice, prompt, params)


async def try_often(
    models: Models, ticket: Ticket, request: TrialsRequest, name: str = ""
) -> AsyncIterator[wire.Measurement]:
    """Runs when the ticket's turn comes, and yields the counts so far a few times a second. Where others
    wait, it gives its turn back every TURN_PIECE seconds and goes on after them. Errors are raised. Closing
    this generator stops the runs after the one that goes on. name: the name that the trials are followed
    by."""
    told = nothing_yet({"kind": "trials"}, name)
    choices = [request.choice] if request.trial == "pair" else []
    trials: OfTiny | OfPair | None = None
    latest: deque[wire.Trials] = deque(maxlen=1)

    def work(*pairs: AnyPair) -> None:
        nonlocal trials
        trials = trials_of(request, *pairs) if trials is None else trials.with_pair(*pairs)
        started.set_result(trials)
        while trials.runs < trials.most and not (ticket.is_over or ticket.gives_way):
            trials.run(lambda: ticket.is_over)
            if not latest:  # the one before was taken
                latest.append(trials.so_far())
        latest.append(trials.so_far())
        trials.rest()

    try:
        while True:
            started: Future[OfTiny | OfPair] = Future()
            begun, done = awaitable(started), awaitable(ticket.done)
            async with aclosing(turn_with(models, ticket, choices, work, begun, done)) as before:
                async for waiting in before:
                    yield told | {"text": waiting.sentence, "share": told["share"] or waiting.share}
            if done.done():
                done.result()  # raises what went wrong before it began
            made = begun.result()
            told |= {"whose": made.whose, "state": "running", "share": made.runs / made.most}
            while not done.done():
                if latest:
                    told |= {"trials": (shown := latest.pop()), "share": shown["runs"] / shown["most"]}
                yield told
                await asyncio.wait([done], timeout=LOOK_PERIOD)
            told |= {"trials": latest.pop()} if latest else {}
            done.result()
            if made.runs >= made.most or ticket.is_over:
                break
            ticket.join_again()
        is_cut = made.runs < made.most
        text = in_words(ticket.ending) if ticket.is_late else say("run.stopped")
        yield told | ({"state": "stopped", "text": text} if is_cut else {"state": "ended"}) | {"share": None}
    finally:
        ticket.cancel()


class OfTiny:
    """Trials of the tiny pair, as the page is told of them."""

    most = TINY_RUNS

    def __init__(self, request: TrialsRequest):
        self.request = request
        self.trials = TinyTrials(tiny_params(request.params, request.mistake), request.mistake)

    def with_pair(self) -> "OfTiny":
        return self

    def rest(self) -> None:
        """Does nothing: the tiny pair is the trials' own."""

    def run(self, is_over: Callable[[], bool]) -> None:
        self.trials.run()

    @property
    def runs(self) -> int:
        return self.trials.seen.total()

    @property
    def whose(self) -> str:
        params = self.trials.params
        prompt = " ".join(TINY_WORDS[token_id] for token_id in TINY_PROMPT)
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), f"γ {params.gamma}"])
        return say("trials.of_tiny", prompt=prompt, how=how, seed=self.request.params.seed)

    def so_far(self) -> wire.Trials:
        trials = self.trials
        seen, p = trials.seen, trials.expected
        names = {cell: " ".join(TINY_WORDS[token_id] for token_id in cell) for cell in {**p, **seen}}
        runs = self.runs
        return {
            **_counted(self.request, trials.params, runs, self.most, trials.judged, trials.accepted),
            **_tested(goodness_of_fit(seen, p), runs, len(names)),
            **_compared(shares_of(seen), p, sorted(names, key=lambda cell: -p.get(cell, 0.0)), names),
            "by_chance": distance_by_chance(p, runs),
        }


class OfPair:
    """Trials of the chosen pair with drafting on and off, as the page is told of them."""

    most = PAIR_RUNS

    def __init__(self, request: TrialsRequest, pair: AnyPair):
        if not isinstance(pair, Pair):
            raise PairError(message("trials_server"))
        if zero.GPU is not None:
            raise PairError(message("trials_zero"))
        self.request = request
        self.params = pair.check(request.params)
        self.trials = PairTrials(pair, request.prompt, self.params)
        self.whose = self._in_words(pair.info)

    def with_pair(self, pair: AnyPair) -> "OfPair":
        """Goes on with this pair, which may have been loaded again."""
        assert isinstance(pair, Pair)
        self.trials.pair = pair
        return self

    def rest(self) -> None:
        """Lets go of the pair until `with_pair`: meanwhile others may need its memory."""
        del self.trials.pair

    def run(self, is_over: Callable[[], bool]) -> None:
        self.trials.run(is_over)

    @property
    def runs(self) -> int:
        return self.trials.drafting.total()

    def _in_words(self, info: PairInfo) -> str:
        params = self.params
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), f"γ {params.gamma}"])
        where = say("run.on_device", name=info.name, device=info.device_name)
        prompt = prompt_in_words(self.request.prompt)
        return say("trials.of_pair", prompt=prompt, pair=where, how=how, seed=params.seed)

    def so_far(self) -> wire.Trials:
        trials = self.trials
        on, off, runs = trials.drafting, trials.alone, self.runs
        names = {cell: trials.texts[cell] for cell in {**on, **off}}
        both = sorted(names, key=lambda cell: -(on[cell] + off[cell]))
        pooled = shares_of(on + off)
        return {
            **_counted(self.request, self.params, runs, self.most, trials.judged, trials.accepted),
            **_tested(homogeneity(on, off), runs, len(names)),
            **_compared(shares_of(on), shares_of(off), both, names),
            "by_chance": distance_by_chance(
                pooled, runs / 2
            ),  # a difference of two samples has twice the variance
        }


def trials_of(request: TrialsRequest, *pairs: AnyPair) -> OfTiny | OfPair:
    """The trials that are asked for, of which none has been run."""
    return OfPair(request, *pairs) if request.trial == "pair" else OfTiny(request)


def _counted(
    request: TrialsRequest, params: Params, runs: int, most: int, judged: int, accepted: int
) -> dict[str, Any]:
    return {
        "trial": request.trial,
        "runs": runs,
        "most": most,
        "judged": judged,
        "accepted": accepted,
        "greedy": params.temperature == 0,
        "lossy": words_of_row("rules", params.rule, "name") if is_lossy(params) else "",
    }


def _tested(test: ChiSquare, runs: int, cells: int) -> dict[str, Any]:
    return {
        "statistic": None if math.isinf(test.statistic) else test.statistic,
        "freedom": test.freedom,
        "p_value": test.p_value,
        "found": verdict_of(test, runs, cells),
    }


def verdict_of(test: ChiSquare, runs: int, cells: int) -> wire.TrialsVerdict:
    """The verdict of a test. cells: how many texts came or can come. Without a degree of freedom nothing was
    tested: there is one text only, or all others are still too rare."""
    if test.p_value < BEYOND_CHANCE:
        return "differs"
    if runs < FEWEST_RUNS or (test.freedom == 0 and cells > 1):
        return "few"
    if test.freedom == 0:
        return "alike"
    return "unclear" if test.p_value < UNSUSPICIOUS else "fits"


def _compared(
    came: Mapping[Hashable, float],
    due: Mapping[Hashable, float],
    cells: Sequence[FirstTokens],
    names: Mapping[FirstTokens, str],
) -> dict[str, Any]:
    """How often each text came and was due, and the total variation distance of the two. cells: the likeliest
    first, of which the first are shown one by one."""
    few = len(cells) <= SHOWN_CELLS
    shown = list(cells if few else cells[: SHOWN_CELLS - 1])
    rest = [cell for cell in cells if cell not in shown]
    bars: list[wire.TrialsCell] = [
        {"text": names[cell], "came": came.get(cell, 0.0), "due": due.get(cell, 0.0), "others": 0}
        for cell in shown
    ]
    if rest:
        sums = [math.fsum(one.get(cell, 0.0) for cell in rest) for one in (came, due)]
        bars.append({"text": "", "came": sums[0], "due": sums[1], "others": len(rest)})
    return {"cells": bars, "distance": total_variation(came, due)}
