"""Two worlds: one prompt and one set of random numbers, with a drafter that goes from noise over the pair's
own to the target itself. Without Gradio.

At each stop the engine runs the prompt, sampled and greedily, and the tiny pair many times. What is rejected
changes; the tiny pair's distribution and the greedy text do not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from specdemo import zero
from specdemo.errors import PairError
from specdemo.events import Params, Round, check_prompt
from specdemo.events.params import GRAMMARS
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair, Pair
from specdemo.trials.runs import TinyTrials, tiny_params
from specdemo.trials.worlds import STOPS, mixed, world
from specdemo.ui.runs.measuring import Link, MeasurementRequest, Work, prompt_in_words
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.trials import tiny_counts
from specdemo.ui.view import wire
from specdemo.ui.view.settings import sampler_in_words
from specdemo.words.catalogue import say
from specdemo.words.message import message, refusal

TOKENS = 44  # of each text, at the most
TINY_RUNS = 1_000  # at each stop
AT_ONCE = 50  # of them, before the next stop has its turn


@dataclass(frozen=True)
class WorldsRequest(MeasurementRequest):
    """All stops, that one first. Where others wait, it gives its turn back as trials do, and goes on after
    them."""

    stop: int

    def work(self, ticket: Ticket) -> Work:
        worlds: Worlds | None = None

        def ran(pair: AnyPair) -> Iterator[dict[str, Any]]:
            nonlocal worlds
            worlds = worlds or Worlds(self, pair)
            while worlds.share < 1 and not (ticket.is_over or ticket.give_way()):
                worlds.go_on(pair, lambda: ticket.is_over)
                yield {"whose": worlds.whose, "share": worlds.share, "worlds": worlds.so_far()}

        return ran


def worlds_request(
    wanted: dict[str, Any], choice: Choice, prompt: str, params: Params, link: Link
) -> WorldsRequest:
    """What the page's script asks for, by the stop that it shows."""
    check_prompt(prompt)
    stop = wanted.get("stop")
    if type(stop) is not int or not 0 <= stop < STOPS:
        raise ValueError(refusal("worlds", "worlds_stop", stop))
    return WorldsRequest("worlds", choice, prompt, params_of(params), link, stop)


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


class Worlds:
    """All stops, as the page is told of them. most: runs of the tiny pair at each. texts: by stop, what has
    been run."""

    def __init__(self, request: WorldsRequest, pair: AnyPair, most: int = TINY_RUNS):
        if not isinstance(pair, Pair):
            raise PairError(message("worlds_server"))
        if zero.GPU is not None:
            raise PairError(message("worlds_zero"))
        self.request, self.params, self.most = request, pair.check(request.params), most
        self.texts: dict[int, wire.WorldsTexts] = {}
        self.trials: dict[int, TinyTrials] = {}
        self.whose = self._in_words(pair)

    def go_on(self, pair: AnyPair, is_over: Callable[[], bool] = lambda: False) -> None:
        """Does the next piece. What was cut short does not count."""
        assert isinstance(pair, Pair)
        stops = sorted(range(STOPS), key=lambda stop: (stop != self.request.stop, stop))
        if untold := [stop for stop in stops if stop not in self.texts]:
            self._run(pair, untold[0], is_over)
        else:
            self._try(min(stops, key=lambda stop: self._tried(stop)), is_over)

    def _run(self, pair: Pair, stop: int, is_over: Callable[[], bool]) -> None:
        greedy = replace(self.params, temperature=0.0)
        sampled, greedily = (
            world(pair, self.request.prompt, params, stop, is_over) for params in (self.params, greedy)
        )
        if not is_over():
            self.texts[stop] = {"sampled": _rounds(sampled), "greedy": _rounds(greedily)}

    def _try(self, stop: int, is_over: Callable[[], bool]) -> None:
        if stop not in self.trials:
            self.trials[stop] = TinyTrials(tiny_params(self.params), alter=mixed(stop))
        for _ in range(min(AT_ONCE, self.most - self._tried(stop))):
            if is_over():
                return
            self.trials[stop].run()

    def _tried(self, stop: int) -> int:
        return self.trials[stop].seen.total() if stop in self.trials else 0

    @property
    def share(self) -> float:
        """Of its time, about; the tiny pair's runs take most of it."""
        tried = sum(map(self._tried, range(STOPS))) / (STOPS * self.most)
        return (len(self.texts) / STOPS + 9 * tried) / 10

    def _in_words(self, pair: Pair) -> str:
        params = self.params
        how = f"{sampler_in_words(params)}, γ {params.gamma}"
        where = say("run.on_device", name=pair.info.name, device=pair.info.device_name)
        return say(
            "worlds.of", prompt=prompt_in_words(self.request.prompt), pair=where, how=how, seed=params.seed
        )

    def so_far(self) -> wire.Worlds:
        return {"most": self.most, "stops": [self._stop(stop) for stop in range(STOPS)]}

    def _stop(self, stop: int) -> wire.WorldsStop:
        trials = self.trials.get(stop)
        return {"texts": self.texts.get(stop), "counts": trials and tiny_counts(trials)}


def _rounds(trace: Trace) -> list[wire.WorldsRound]:
    """The rounds with what is drawn of them."""
    return [_round(one) for one in trace.rounds]


def _round(one: Round) -> wire.WorldsRound:
    return {
        "draft": [{"id": each.id, "text": each.text, "fate": each.fate} for each in one.draft],
        "next": one.next and {"id": one.next.id, "text": one.next.text, "source": one.next.source},
    }
