"""Many short runs of the real engine, counted by their first two tokens, with a chi-square test. Without
Gradio.

The runs are of the tiny pair, as the engine is or with one of the mistakes, against the target's own
distribution, which is enumerated; or of the chosen pair and this prompt, with drafting on and off.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdemo import zero
from specdemo.errors import PairError
from specdemo.events import PairInfo, Params, check_prompt, is_lossy, words_of_row
from specdemo.loading.pair import AnyPair, Pair
from specdemo.trials.chi_square import (
    ChiSquare,
    distance_by_chance,
    goodness_of_fit,
    homogeneity,
    shares_of,
    total_variation,
)
from specdemo.trials.mistakes import IN_TREES, MISTAKES
from specdemo.trials.runs import FirstTokens, PairTrials, TinyTrials, tiny_params
from specdemo.trials.tiny import TINY_PROMPT, TINY_WORDS
from specdemo.ui.runs.measuring import Link, MeasurementRequest, Work, prompt_in_words
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.view import wire
from specdemo.ui.view.settings import judging_in_words, length_in_words, sampler_in_words
from specdemo.words.catalogue import say
from specdemo.words.message import message, refusal

TRIALS = ("none", *MISTAKES, "pair")
TINY_RUNS = 10_000
PAIR_RUNS = 2_000  # of each kind
SHOWN_CELLS = 16  # bars; the rarer cells are shown as one
BEYOND_CHANCE = 1e-6  # the p-value below which a difference is called found, however often it is looked at
UNSUSPICIOUS = 1e-3  # and the one from which nothing is said against being equal
FEWEST_RUNS = 100  # of which something is said


@dataclass(frozen=True)
class TrialsRequest(MeasurementRequest):
    """The trials that a visitor asks for. Where others wait, they give their turn back every TURN_PIECE
    seconds and go on after them. trial: one of TRIALS: "none" is the tiny pair without a mistake, "pair" the
    chosen one. guesses: of the tiny pair, how many are drafted at each place."""

    trial: str
    guesses: int = 1

    @property
    def mistake(self) -> str | None:
        return self.trial if self.trial in MISTAKES else None

    async def choices(self, models: Models) -> list[Choice]:
        return [self.choice] if self.trial == "pair" else []

    def work(self, ticket: Ticket) -> Work:
        trials: OfTiny | OfPair | None = None

        def tried(*pairs: AnyPair) -> Iterator[dict[str, Any]]:
            nonlocal trials
            trials = trials_of(self, *pairs) if trials is None else trials.with_pair(*pairs)
            yield {"whose": trials.whose, "share": trials.runs / trials.most}
            told = -math.inf
            while trials.runs < trials.most and not (ticket.is_over or ticket.give_way()):
                trials.run(lambda: ticket.is_over)
                if time.monotonic() - told >= (self.period or 0.0):
                    yield _known(trials)
                    told = time.monotonic()
            yield _known(trials)
            trials.rest()

        return tried


def _known(trials: "OfTiny | OfPair") -> dict[str, Any]:
    return {"whose": trials.whose, "share": trials.runs / trials.most, "trials": trials.so_far()}


def trials_request(
    wanted: dict[str, Any], choice: Choice, prompt: str, params: Params, link: Link
) -> TrialsRequest:
    """The trials that the page's script asks for, by its trial."""
    trial, guesses = wanted.get("trial"), 2 if wanted.get("guesses") == 2 else 1
    possible = TRIALS if guesses == 1 else ("none", *IN_TREES)
    if trial not in possible:
        raise ValueError(refusal("trial", "choice", trial, names=", ".join(possible)))
    if trial == "pair":
        check_prompt(prompt)
        if params.draft_with == "none":
            raise ValueError(message("off_already"))
    return TrialsRequest("trials", choice, prompt, params, link, trial, guesses)


class OfTiny:
    """Trials of the tiny pair, as the page is told of them."""

    most = TINY_RUNS

    def __init__(self, request: TrialsRequest):
        self.request = request
        params = tiny_params(request.params, request.mistake, request.guesses)
        self.trials = TinyTrials(params, request.mistake)

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
        its = "trials.own_gamma" if self.request.params.gamma != params.gamma else "trials.gamma"
        length = [] if params.tree else [say(its, gamma=params.gamma)]
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), *length])
        return say("trials.of_tiny", prompt=prompt, how=how, seed=self.request.params.seed)

    def so_far(self) -> wire.Trials:
        return _so_far(self, self.trials.params, tiny_counts(self.trials))


def tiny_counts(trials: TinyTrials) -> wire.Counts:
    """What the runs of the tiny pair have counted, beside the target's own distribution."""
    seen, p = trials.seen, trials.expected
    names = {cell: " ".join(TINY_WORDS[token_id] for token_id in cell) for cell in {**p, **seen}}
    compared = _compared(shares_of(seen), p, sorted(names, key=lambda cell: -p.get(cell, 0.0)), names)
    by_chance = distance_by_chance(p, seen.total())
    return _counts(trials, seen.total(), goodness_of_fit(seen, p), len(names), compared, by_chance)


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
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), *length_in_words(params)])
        where = say("run.on_device", name=info.name, device=info.device_name)
        prompt = prompt_in_words(self.request.prompt)
        return say("trials.of_pair", prompt=prompt, pair=where, how=how, seed=params.seed)

    def so_far(self) -> wire.Trials:
        trials = self.trials
        on, off = trials.drafting, trials.alone
        names = {cell: trials.texts[cell] for cell in {**on, **off}}
        both = sorted(names, key=lambda cell: -(on[cell] + off[cell]))
        compared = _compared(shares_of(on), shares_of(off), both, names)
        # A difference of two samples has twice the variance.
        by_chance = distance_by_chance(shares_of(on + off), self.runs / 2)
        counts = _counts(trials, self.runs, homogeneity(on, off), len(names), compared, by_chance)
        return _so_far(self, self.params, counts)


def trials_of(request: TrialsRequest, *pairs: AnyPair) -> OfTiny | OfPair:
    """The trials that are asked for, of which none has been run."""
    return OfPair(request, *pairs) if request.trial == "pair" else OfTiny(request)


def _so_far(of: OfTiny | OfPair, params: Params, counts: wire.Counts) -> wire.Trials:
    return {
        "trial": of.request.trial,
        "guesses": of.request.guesses,
        "most": of.most,
        "greedy": params.temperature == 0,
        "lossy": words_of_row("rules", params.rule, "name") if is_lossy(params) else "",
        **counts,
    }


def _counts(
    trials: TinyTrials | PairTrials,
    runs: int,
    test: ChiSquare,
    cells: int,
    compared: dict[str, Any],
    by_chance: float,
) -> wire.Counts:
    return {
        "runs": runs,
        "judged": trials.judged,
        "accepted": trials.accepted,
        **compared,
        "by_chance": by_chance,
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
