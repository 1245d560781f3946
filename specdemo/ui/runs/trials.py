"""Many short runs of the real engine, counted by their first two tokens, with a chi-square test; and two
worlds. Without Gradio.

The runs are of the tiny pair, as the engine is or with one of the mistakes, against the target's own
distribution, which is enumerated; or of the chosen pair and this prompt, with drafting on and off.

Two worlds: one prompt and one set of random numbers, with a drafter that goes from noise over the pair's own
to the target itself. At each stop the engine runs the prompt, sampled and greedily, and the tiny pair many
times. What is rejected changes; the tiny pair's distribution and the greedy text do not.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from specdemo.events import Params, Round, check_prompt, is_lossy, words_of_row
from specdemo.events.params import GRAMMARS
from specdemo.loading.pair import AnyPair
from specdemo.trials import chi_square
from specdemo.trials.alterations import IN_TREES, MISTAKES, STOPS, mixed, world
from specdemo.trials.runs import TINY_PROMPT, TINY_WORDS, FirstTokens, PairTrials, TinyTrials, tiny_params
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import MeasurementRequest, Wanted, pair_here, prompt_in_words
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
# Of two worlds: tokens of each text at the most, runs of the tiny pair at each stop, and how many of these
# before the next stop has its turn.
TOKENS, WORLDS_RUNS, AT_ONCE = 44, 1_000, 50


class MeasuredInPieces(MeasurementRequest):
    """What is measured in short pieces. Where others wait, it gives its turn back every TURN_PIECE seconds
    and goes on after them, with pairs that may have been loaded again. It keeps no pair that others may need
    the memory of. whose: what is measured, in words, from the first turn on. share: of its time that is over,
    about."""

    whose, share = "", 0.0

    def begin(self, *pairs: AnyPair) -> str:
        """Makes ready for the first piece. Returns what is measured, in words."""
        raise NotImplementedError

    def go_on(self, is_over: Callable[[], bool], *pairs: AnyPair) -> float:
        """Measures a piece more, unless is_over gets true before its end. Returns the share from then on."""
        raise NotImplementedError

    def so_far(self) -> dict[str, Any]:
        raise NotImplementedError

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        self.whose, shown = self.whose or self.begin(*pairs), -math.inf
        yield {"whose": self.whose, "share": self.share}
        while self.share < 1 and not (ticket.is_over or ticket.give_way()):
            self.share = self.go_on(lambda: ticket.is_over, *pairs)
            if time.monotonic() - shown >= (self.period or 0.0):
                yield {"whose": self.whose, "share": self.share, self.kind: self.so_far()}
                shown = time.monotonic()
        yield {"whose": self.whose, "share": self.share, self.kind: self.so_far()}


class TrialsRequest(MeasuredInPieces):
    """The trials that a visitor asks for. trial: one of TRIALS: "none" is the tiny pair without a mistake,
    "pair" the chosen one. guesses: of the tiny pair, how many are drafted at each place. most: runs."""

    most: int
    trials: TinyTrials | PairTrials

    def __post_init__(self) -> None:
        self.trial, self.guesses = self.wanted.get("trial"), 2 if self.wanted.get("guesses") == 2 else 1
        possible = TRIALS if self.guesses == 1 else ("none", *IN_TREES)
        if self.trial not in possible:
            raise ValueError(refusal("trial", "choice", self.trial, names=", ".join(possible)))

    def counts(self) -> dict[str, Any]:
        raise NotImplementedError

    def so_far(self) -> dict[str, Any]:
        params = self.trials.params
        return {
            "trial": self.trial,
            "guesses": self.guesses,
            "most": self.most,
            "greedy": params.temperature == 0,
            "lossy": words_of_row("rules", params.rule, "name") if is_lossy(params) else "",
            **self.counts(),
        }


class TrialsOfTiny(TrialsRequest):
    most = TINY_RUNS

    async def choices(self, models: Models) -> list[Choice]:
        return []

    def begin(self, *pairs: AnyPair) -> str:
        mistake = self.trial if self.trial in MISTAKES else None
        params = tiny_params(self.params, mistake, self.guesses)
        self.trials = TinyTrials(params, MISTAKES.get(self.trial, lambda loop: loop))
        prompt = " ".join(TINY_WORDS[token_id] for token_id in TINY_PROMPT)
        its = "trials.own_gamma" if self.params.gamma != params.gamma else "trials.gamma"
        length = [] if params.tree else [say(its, gamma=params.gamma)]
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), *length])
        return say("trials.of_tiny", prompt=prompt, how=how, seed=self.params.seed)

    def go_on(self, is_over: Callable[[], bool], *pairs: AnyPair) -> float:
        self.trials.run()
        return self.trials.seen.total() / self.most

    def counts(self) -> dict[str, Any]:
        return tiny_counts(self.trials)


class TrialsOfPair(TrialsRequest):
    """Runs of the chosen pair with drafting on and off."""

    most = PAIR_RUNS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt)
        if self.params.draft_with == "none":
            raise ValueError(message("off_already"))

    def begin(self, *pairs: AnyPair) -> str:
        pair = pair_here(pairs[0], "trials")
        params = pair.check(self.params)
        self.trials = PairTrials(self.prompt, params)
        how = ", ".join([*judging_in_words(params), sampler_in_words(params), *length_in_words(params)])
        where = say("run.on_device", name=pair.info.name, device=pair.info.device_name)
        prompt = prompt_in_words(self.prompt)
        return say("trials.of_pair", prompt=prompt, pair=where, how=how, seed=params.seed)

    def go_on(self, is_over: Callable[[], bool], *pairs: AnyPair) -> float:
        self.trials.run(pair_here(pairs[0], "trials"), is_over)
        return self.trials.drafting.total() / self.most

    def counts(self) -> dict[str, Any]:
        trials = self.trials
        on, off, runs = trials.drafting, trials.alone, trials.drafting.total()
        cells = sorted({**on, **off}, key=lambda cell: -(on[cell] + off[cell]))
        names = {cell: trials.texts[cell] for cell in cells}
        # A difference of two samples has twice the variance.
        by_chance = chi_square.distance_by_chance(chi_square.shares_of(on + off), runs / 2)
        shares, test = (chi_square.shares_of(on), chi_square.shares_of(off)), chi_square.homogeneity(on, off)
        return _counts(trials, runs, test, *shares, names, by_chance)


def trials_request(wanted: Wanted, *asked: Any) -> TrialsRequest:
    return (TrialsOfPair if wanted.get("trial") == "pair" else TrialsOfTiny)(wanted, *asked)


def tiny_counts(trials: TinyTrials) -> dict[str, Any]:
    """What the runs of the tiny pair have counted, beside the target's own distribution."""
    seen, p = trials.seen, trials.expected
    cells = sorted({**p, **seen}, key=lambda cell: -p.get(cell, 0.0))
    names = {cell: " ".join(TINY_WORDS[token_id] for token_id in cell) for cell in cells}
    by_chance = chi_square.distance_by_chance(p, seen.total())
    share, test = chi_square.shares_of(seen), chi_square.goodness_of_fit(seen, p)
    return _counts(trials, seen.total(), test, share, p, names, by_chance)


def _counts(
    trials: TinyTrials | PairTrials,
    runs: int,
    test: chi_square.ChiSquare,
    came: Mapping[Hashable, float],
    due: Mapping[Hashable, float],
    names: Mapping[FirstTokens, str],
    by_chance: float,
) -> dict[str, Any]:
    """came, due: the share of the runs in which each text came, and in which it is due. names: the texts, the
    likeliest first, of which the first are shown one by one."""
    cells = list(names)
    shown = cells if len(cells) <= SHOWN_CELLS else cells[: SHOWN_CELLS - 1]
    bars: list[dict[str, Any]] = [
        {"text": names[cell], "came": came.get(cell, 0.0), "due": due.get(cell, 0.0), "others": 0}
        for cell in shown
    ]
    if rest := cells[len(shown) :]:
        sums = [math.fsum(one.get(cell, 0.0) for cell in rest) for one in (came, due)]
        bars.append({"text": "", "came": sums[0], "due": sums[1], "others": len(rest)})
    return {
        "runs": runs,
        "judged": trials.judged,
        "accepted": trials.accepted,
        "cells": bars,
        "distance": chi_square.total_variation(came, due),
        "by_chance": by_chance,
        "statistic": None if math.isinf(test.statistic) else test.statistic,
        "freedom": test.freedom,
        "p_value": test.p_value,
        "found": verdict_of(test, runs, len(cells)),
    }


def verdict_of(test: chi_square.ChiSquare, runs: int, cells: int) -> dict[str, Any]:
    """The verdict of a test. cells: how many texts came or can come. Without a degree of freedom nothing was
    tested: there is one text only, or all others are still too rare."""
    if test.p_value < BEYOND_CHANCE:
        return "differs"
    if runs < FEWEST_RUNS or (test.freedom == 0 and cells > 1):
        return "few"
    if test.freedom == 0:
        return "alike"
    return "unclear" if test.p_value < UNSUSPICIOUS else "fits"


def params_of(params: Params) -> Params:
    """The Params at every stop: sampler, seed and draft length are the visitor's. Greedy runs are made
    anyway, so those beside them have the usual temperature then."""
    usual = Params()
    return replace(
        params,
        draft_with="model",
        draft_temperature=None,
        tree=(),
        gamma=usual.gamma if params.gamma == "auto" else params.gamma,
        confidence=0.0,
        rule="speculative",
        temperature=params.temperature or usual.temperature,
        max_new_tokens=min(params.max_new_tokens, TOKENS),
        alternatives=0,
        **dict.fromkeys(GRAMMARS),  # mixed drafters know none
    )


class WorldsRequest(MeasuredInPieces):
    """Two worlds: all stops, that one first. most: runs of the tiny pair at each. texts: by stop, what has
    been run."""

    most = WORLDS_RUNS

    def __post_init__(self) -> None:
        check_prompt(self.prompt)
        self.stop = self.wanted.get("stop")
        if type(self.stop) is not int or not 0 <= self.stop < STOPS:
            raise ValueError(refusal("worlds", "worlds_stop", self.stop))
        self.params = params_of(self.params)
        self.order = sorted(range(STOPS), key=lambda stop: (stop != self.stop, stop))
        self.texts: dict[int, dict[str, list[dict[str, Any]]]] = {}
        self.trials: dict[int, TinyTrials] = {}

    def begin(self, *pairs: AnyPair) -> str:
        pair = pair_here(pairs[0], "worlds")
        self.params = params = pair.check(self.params)
        where = say("run.on_device", name=pair.info.name, device=pair.info.device_name)
        how, prompt = f"{sampler_in_words(params)}, γ {params.gamma}", prompt_in_words(self.prompt)
        return say("worlds.of", prompt=prompt, pair=where, how=how, seed=params.seed)

    def go_on(self, is_over: Callable[[], bool], *pairs: AnyPair) -> float:
        """First the texts of each stop, then runs of the tiny pair at that which has the fewest."""
        pair = pair_here(pairs[0], "worlds")
        if left := [stop for stop in self.order if stop not in self.texts]:
            runs = {"sampled": self.params, "greedy": replace(self.params, temperature=0.0)}
            traces = {name: world(pair, self.prompt, how, left[0], is_over) for name, how in runs.items()}
            if not is_over():
                self.texts[left[0]] = {name: [*map(_round, one.rounds)] for name, one in traces.items()}
        else:
            stop = min(self.order, key=self._tried)
            if stop not in self.trials:
                self.trials[stop] = TinyTrials(tiny_params(self.params), alter=partial(mixed, stop))
            for _ in range(min(AT_ONCE, self.most - self._tried(stop))):
                if not is_over():
                    self.trials[stop].run()
        tried = sum(map(self._tried, self.order)) / (STOPS * self.most)
        return (len(self.texts) / STOPS + 9 * tried) / 10  # the tiny pair's runs take most of the time

    def _tried(self, stop: int) -> int:
        return self.trials[stop].seen.total() if stop in self.trials else 0

    def so_far(self) -> dict[str, Any]:
        counts = {stop: tiny_counts(trials) for stop, trials in self.trials.items()}
        stops = [{"texts": self.texts.get(stop), "counts": counts.get(stop)} for stop in range(STOPS)]
        return {"most": self.most, "stops": stops}


def _round(one: Round) -> dict[str, Any]:
    """What is drawn of a round."""
    return {
        "draft": [{"id": each.id, "text": each.text, "fate": each.fate} for each in one.draft],
        "next": one.next and {"id": one.next.id, "text": one.next.text, "source": one.next.source},
    }
