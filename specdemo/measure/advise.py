"""The adviser's measurement: one kind of work after the other, each in its part of the time. A short text of
each contender with long drafts, from which all draft lengths are estimated; whole texts of the most promising
settings, in turns with the target alone; then more of them, prompt after prompt, until it is clear which is
best. What time is left goes to the kinds that are not clear."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from time import perf_counter
from typing import Any, NamedTuple

from specdemo.events import METHODS, Params, Prompt, __version__
from specdemo.loading.pair import Pair
from specdemo.measure.decide import (
    MOST_FINALISTS,
    by_setting,
    called,
    estimates_of,
    finalists,
    is_clear,
    leader_of,
    still_in,
)
from specdemo.measure.results import (
    ALONE,
    Candidate,
    Ended,
    Measured,
    Sample,
    sample_of,
    work_in_words,
)
from specdemo.measure.samples import Place, measure
from specdemo.measure.settings import Setting, as_contender, field_of, how_measured
from specdemo.measure.turns import Stopped, run_in_turns
from specdemo.session import prepare
from specdemo.words.message import Message, about, message, message_of

WARM_UP, FIRST_TEXT = 8, 32  # tokens that a contender writes before it is measured, and at first
LOOKS = (4, 7, 11, 15)  # prompts after which a kind of work can be clear, and settings are dropped
AT_LEAST = 2  # settings of a kind of work, before the next one's turn
LONGEST_TEXT = 32_768  # tokens
MOST_PROMPTS = 100  # of one kind of work


class Progress(NamedTuple):
    """What is measured so far, and what is measured now."""

    measured: Measured
    doing: Message


def fitting(
    pair: Pair, prompts: Mapping[str, Sequence[Prompt]], params: Params
) -> tuple[dict[str, list[Prompt]], list[Message]]:
    """The prompts that leave a text its room, of the first MOST_PROMPTS of each kind of work, and notes on
    the others. ValueError where none of a kind does, with what is wrong with the first."""
    kept: dict[str, list[Prompt]] = {}
    notes = []
    for work, own in prompts.items():
        whys = {at: _refused(pair, prompt, params) for at, prompt in enumerate(own[:MOST_PROMPTS])}
        kept[work] = [own[at] for at, why in whys.items() if why is None]
        refused = [why for why in whys.values() if why is not None]
        if not kept[work]:
            raise ValueError(refused[0])
        if refused:
            counts = {"count": len(refused), "all": len(whys), "why": refused[0]}
            notes.append(message("advice_prompts_left_out", work=work_in_words(work), **counts))
    return kept, notes


def _refused(pair: Pair, prompt: Prompt, params: Params) -> Message | str | None:
    """Why a prompt cannot be used, if it cannot."""
    try:
        length = len(prepare(pair, prompt, replace(params, draft_with="none")).prompt_ids)
    except ValueError as error:
        return message_of(error)
    if length + params.max_new_tokens <= pair.context:
        return None
    tokens, context = params.max_new_tokens, int(pair.context)
    return about("prompts", "advice_too_long", length=length, tokens=tokens, context=context)


def advise(
    pair: Pair,
    asked: Sequence[str],
    prompts: Mapping[str, Sequence[Prompt]],
    params: Params,
    budget: float,
    command: str,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:
    """Measures, and yields all that is measured so far before each text and at the end: first nothing but
    notes on what is left out. Where is_stopped gets true, or the budget is at its end, a text that is being
    written does not count.

    pair: with the target. asked: see `field_of`. prompts: by kind of work. budget: seconds. command: what
    measures the same. Raises as `field_of`, `fitting` and `stream` do."""
    settings, cannot_draft = field_of(pair, asked, params)
    prompts, left_out = fitting(pair, prompts, params)
    kind, shared = pair.info.quantize.target, asdict(params)
    del shared["draft_with"], shared["gamma"]
    quantized = [message("advice_quantized", kind=kind)] if kind else []
    measured = Measured(
        **how_measured(pair, params),
        quantize=asdict(pair.info.quantize),
        versions={"specdemo": __version__, **pair.versions},
        command=command,
        params=shared,
        works=tuple(prompts),
        contenders=(ALONE, *map(as_contender, settings)),
        notes=(*cannot_draft, *left_out, *quantized, *pair.notes),
    )
    course = _Advising(pair, settings, prompts, params, budget, is_stopped, measured)
    try:
        yield from course.warm_up()
        yield from course.answers()
        ended: Ended = course.ended
    except Stopped:
        ended = "interrupted" if is_stopped() else "budget"
    yield course.progress(message("advice_done"), ended)


@dataclass
class _Advising:
    """The measurement as it goes on. settings: what can draft. running: what may still be the best of a kind
    of work."""

    pair: Pair
    settings: Sequence[Setting]
    prompts: Mapping[str, Sequence[Prompt]]
    params: Params
    budget: float
    is_stopped: Callable[[], bool]
    measured: Measured
    ended: Ended = "clear"

    def __post_init__(self):
        self.began = perf_counter()
        self.drafting = {one.name: (one, as_contender(one)) for one in self.settings}
        self.running: dict[str, Sequence[Candidate]] = {}

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    def is_over(self) -> bool:
        return self.is_stopped() or self.seconds > self.budget

    def progress(self, doing: Message, ended: Ended = "running") -> Progress:
        self.measured = replace(self.measured, seconds=self.seconds, ended=ended)
        return Progress(self.measured, doing)

    def add(self, **more: Sequence[Any]) -> None:
        """What comes to these fields of `measured`."""
        self.measured = replace(
            self.measured, **{name: (*getattr(self.measured, name), *some) for name, some in more.items()}
        )

    def warm_up(self) -> Iterator[Progress]:
        """What happens at a first use: not measured."""
        work = self.measured.works[0]
        for _, contender in self.drafting.values():
            yield self.progress(message("advice_warming_up", name=contender.name))
            self.text(Candidate(contender.name, contender.probed), (work, 0), WARM_UP)

    def answers(self) -> Iterator[Progress]:
        """All kinds of work, and again those that are not clear yet, while there is time. What one does not
        need of its part goes to the next ones."""
        while left := [work for work in self.measured.works if work not in self.measured.settled]:
            for at, work in enumerate(left):
                yield from self.answer(work, self.seconds + (self.budget - self.seconds) / (len(left) - at))

    def answer(self, work: str, end: float) -> Iterator[Progress]:
        """Goes on with a kind of work, until it is clear, or `end`."""
        if self.is_over():
            raise Stopped
        if not any(one.work == work for one in self.measured.probes):
            yield from self.probe(work)
        if self.written(work) <= LOOKS[0]:
            yield from self.first_texts(work, end)
            if self.seconds > end:
                return
            self.look(work)

        def take(place: Place, samples: list[Sample]) -> None:
            self.add(samples=samples)
            self.look(work)

        numbers = range(self.written(work), len(self.prompts[work]))
        places = takewhile(
            lambda _: work not in self.measured.settled and self.seconds < end,
            ((work, number) for number in numbers),
        )
        for candidate, place in measure(lambda _: self.running[work], places, self.text, take):
            yield self.comparing(candidate, place)

    def probe(self, work: str) -> Iterator[Progress]:
        """A text with long drafts of each contender, short unless it copies from the text: that finds more in
        a longer one. They count when all have written it."""
        samples = []
        for _, contender in self.drafting.values():
            yield self.progress(message("advice_probing", work=work_in_words(work), name=contender.name))
            most = LONGEST_TEXT if METHODS[contender.draft_with].manner == "copy" else FIRST_TEXT
            samples.append(self.text(Candidate(contender.name, contender.probed), (work, 0), most))
        self.add(probes=samples)

    def first_texts(self, work: str, end: float) -> Iterator[Progress]:
        """The texts before the first look, by one finalist after the other: AT_LEAST of them, and more until
        `end`. They count when a finalist has written all, and then tell which one comes next, since the first
        text alone can be one that is easy to draft. What leads in the other kinds is measured in any case,
        for all of it."""
        numbers = range(min(LOOKS[0], len(self.prompts[work])))
        others = {one.work for one in self.measured.samples} - {work}
        leader = leader_of(by_setting(self.measured.samples, list(others)))
        while True:
            done = dict.fromkeys(one.setting for one in self.measured.samples if one.work == work)
            estimated = finalists(estimates_of(self.measured, [work]))
            also = [leader] if leader else []
            chosen = tuple(dict.fromkeys([*also, *done, *estimated]))[:MOST_FINALISTS] if estimated else ()
            self.running[work] = chosen
            self.measured = replace(self.measured, finalists={**self.measured.finalists, work: chosen})
            left = [one for one in chosen if one not in done]
            if not left or (len(done) >= AT_LEAST and self.seconds > end):
                return
            samples = list[Sample]()
            for number in numbers:
                yield self.comparing(left[0], (work, number))
                samples.append(self.text(left[0], (work, number)))
            self.add(samples=samples)

    def look(self, work: str) -> None:
        """Takes out what is out, once there are so many texts that it is time to look. What is clear is
        settled, and so is what has no prompts left, or no finalists."""
        written, count = self.written(work), len(self.prompts[work])
        if written not in (*LOOKS, count) and self.running[work]:
            return
        found = by_setting(self.measured.samples, [work])
        self.running[work] = left = still_in(found, self.running[work])
        is_known = is_clear(found, left) or not left
        if is_known or written == count:
            self.ended = self.ended if is_known else "all"
            self.add(settled=[work])

    def written(self, work: str) -> int:
        """On how many of its prompts there are texts."""
        return max((one.prompt + 1 for one in self.measured.samples if one.work == work), default=0)

    def comparing(self, candidate: Candidate, place: Place) -> Progress:
        name, (work, number) = called(candidate), place
        told = {"work": work_in_words(work), "number": number + 1, "count": len(self.prompts[work])}
        return self.progress(message("advice_comparing", **told, name=name))

    def text(self, setting: Candidate, place: Place, most: int = LONGEST_TEXT) -> Sample:
        """One text. Stopped if it was not written to its end."""
        (own, _), (work, number) = self.drafting[setting.contender], place
        most = min(most, own.params.max_new_tokens)
        params = replace(own.params, gamma=setting.gamma, max_new_tokens=most)
        text = run_in_turns(own.pair, self.prompts[work][number], params, self.is_over)
        return sample_of(work, number, setting, text)
