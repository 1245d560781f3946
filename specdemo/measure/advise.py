"""The adviser's measurement: first what a check takes by its rows. Then one kind of work after the other gets
its first answer: a short text of each contender with long drafts, from which all draft lengths are estimated,
and whole texts of the most promising settings, in turns with the target alone. What time is left goes on, in
all kinds of work, until it is clear which setting is best."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter

from specdemo.errors import CannotReadTrees
from specdemo.events import METHODS, Params, Prompt, __version__
from specdemo.loading.pair import Pair, encode
from specdemo.measure.checks import check_times
from specdemo.measure.decide import (
    FIRST_TEXT,
    MOST_FINALISTS,
    PROBED,
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
    Contender,
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

WARM_UP = 8  # tokens that a contender writes before it is measured
OF_CHECKS = 0.04  # of the budget
FOR_ALL = 2  # settings that are measured in every kind of work, for the one setting for all of it
LOOKS = (4, 7, 11, 15)  # prompts after which a kind of work can be clear, and settings are dropped
AT_LEAST = 2  # settings of a kind of work, before the next one's turn
LONGEST_TEXT = 32_768  # tokens
MOST_PROMPTS = 100  # of one kind of work


@dataclass(frozen=True)
class Progress:
    """What is measured so far, what is measured now, and the most seconds that it can still take."""

    measured: Measured
    doing: Message
    seconds_left: float


def fitting(
    pair: Pair, prompts: Mapping[str, Sequence[Prompt]], params: Params
) -> tuple[dict[str, list[Prompt]], list[Message]]:
    """The prompts that leave a text its room, at most MOST_PROMPTS of each kind of work, and notes on the
    others. ValueError where none of a kind does, with what is wrong with the first."""
    kept: dict[str, list[Prompt]] = {}
    notes = []
    for work, own in prompts.items():
        name, some = work_in_words(work), own[:: -(-len(own) // MOST_PROMPTS)]
        if len(some) < len(own):
            notes.append(message("advice_some_prompts", work=name, count=len(some), all=len(own)))
        whys = [_refused(pair, prompt, params) for prompt in some]
        kept[work] = [prompt for prompt, why in zip(some, whys, strict=True) if why is None]
        refused = [why for why in whys if why is not None]
        if not kept[work]:
            raise ValueError(refused[0])
        if refused:
            counts = {"count": len(refused), "all": len(some)}
            notes.append(message("advice_prompts_left_out", work=name, why=refused[0], **counts))
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
        yield from course.check()
        yield from course.answer_first()
        yield from course.go_on()
        ended: Ended = course.ended
    except Stopped:
        ended = "interrupted" if is_stopped() else "budget"
    yield course.progress(message("advice_done"), ended)


@dataclass
class _Advising:
    """The measurement as it goes on. settings: what can draft."""

    pair: Pair
    settings: Sequence[Setting]
    prompts: Mapping[str, Sequence[Prompt]]
    params: Params
    budget: float
    is_stopped: Callable[[], bool]
    measured: Measured
    ended: Ended = "all"

    def __post_init__(self):
        self.began = perf_counter()
        self.drafting = {one.name: (one, as_contender(one)) for one in self.settings}

    @property
    def share(self) -> float:
        """Of the budget that is used."""
        return (perf_counter() - self.began) / self.budget

    def is_over(self) -> bool:
        return self.is_stopped() or self.share > 1

    def progress(self, doing: Message, ended: Ended = "running") -> Progress:
        own = perf_counter() - self.began
        self.measured = replace(self.measured, seconds=own, ended=ended)
        return Progress(self.measured, doing, max(0.0, self.budget - own))

    def warm_up(self) -> Iterator[Progress]:
        """What happens at a first use: not measured."""
        work = self.measured.works[0]
        for _, contender in list(self.drafting.values()):
            yield self.progress(message("advice_warming_up", name=contender.name))
            try:
                self.text(self.longest(contender), (work, 0), WARM_UP)
            except CannotReadTrees as error:
                del self.drafting[contender.name]
                note = message("advice_left_out", name=contender.name, why=message_of(error))
                self.measured = replace(self.measured, notes=(*self.measured.notes, note))

    def check(self) -> Iterator[Progress]:
        yield self.progress(message("advice_checking"))
        params = replace(self.params, draft_with="none")
        text = [one for some in self.prompts.values() for one in encode(self.pair, some[0], params)]
        for found in check_times(self.pair, text, params, OF_CHECKS * self.budget, self.is_over):
            self.measured = replace(self.measured, checks=(*self.measured.checks, *found))
            yield self.progress(message("advice_checking"))
        if self.is_over():
            raise Stopped

    def answer_first(self) -> Iterator[Progress]:
        """One kind of work after the other, each in its part of the time that is left; the last part is for
        what comes then."""
        works = self.measured.works
        for at, work in enumerate(works):
            left = self.budget * (1 - self.share)
            end = perf_counter() + left / (len(works) - at + 1)
            yield from self.probe(work)
            self.choose(work)
            yield from self.first_texts(work, end)

    def probe(self, work: str) -> Iterator[Progress]:
        """A text with long drafts of each contender, short unless it copies from the text: that finds more in
        a longer one. They count when all have written it."""
        found = []
        for _, contender in self.drafting.values():
            yield self.progress(message("advice_probing", work=work_in_words(work), name=contender.name))
            most = LONGEST_TEXT if METHODS[contender.draft_with].manner == "copy" else FIRST_TEXT
            found.append(self.text(self.longest(contender), (work, 0), most))
        self.measured = replace(self.measured, probes=(*self.measured.probes, *found))

    def choose(self, work: str) -> None:
        """Its finalists: those that have texts, the best setting in the kinds of work before, for all of it,
        and those that the estimates leave."""
        samples = self.measured.samples
        here = [one.setting for one in samples if one.work == work]
        before = leader_of(by_setting(samples, list({one.work for one in samples})))
        own = finalists(estimates_of(self.measured, [work]))
        found = dict.fromkeys([*here, before, *own] if before and own else [*here, *own])
        chosen = tuple(found)[:MOST_FINALISTS]
        self.measured = replace(self.measured, finalists={**self.measured.finalists, work: chosen})
        if not chosen:
            self.settle(work)

    def settle(self, work: str) -> None:
        self.measured = replace(self.measured, settled=(*dict.fromkeys((*self.measured.settled, work)),))

    def first_texts(self, work: str, end: float | None = None) -> Iterator[Progress]:
        """The texts before the first look, by one finalist after the other: AT_LEAST of them, and more until
        `end`. They count when a finalist has written all. Until `end` they also tell which finalists come
        next, since the first text alone can be one that is easy to draft."""
        places = [(work, number) for number in range(len(self.prompts[work]))][: LOOKS[0]]
        done = {one.setting for one in self.measured.samples if one.work == work}
        while left := [one for one in self.measured.finalists[work] if one not in done]:
            if end is not None and len(done) >= AT_LEAST and perf_counter() > end:
                return
            found: list[Sample] = []
            yield from self.texts(
                {work: left[:1]}, places, lambda _, samples, kept=found: kept.extend(samples)
            )
            self.keep(found)
            done.add(left[0])
            if end is not None:
                self.choose(work)

    def go_on(self) -> Iterator[Progress]:
        """Whole texts of all finalists, until each kind of work is clear, and then of those for all of it,
        until that is."""
        works = self.measured.works
        for_all = finalists(estimates_of(self.measured, works))[:FOR_ALL] if len(works) > 1 else []
        both = {work: (*dict.fromkeys([*own, *for_all]),) for work, own in self.measured.finalists.items()}
        self.measured = replace(self.measured, finalists=both)
        for work in works:
            yield from self.first_texts(work)
        running = {work: list(own) for work, own in both.items() if own}
        for work in list(running):
            self.drop(running, work, for_all)
        yield from self.until(running, lambda work: self.drop(running, work, for_all))
        if running:
            return
        if for_all:
            running = {work: list(for_all) for work in works}
            self.end_if_clear(running)
            yield from self.until(running, lambda _: self.is_level() and self.end_if_clear(running))
        self.ended = "all" if running else "clear"

    def until(self, running: dict[str, list[Candidate]], look: Callable[[str], object]) -> Iterator[Progress]:
        """Prompt after prompt of each kind of work by what is in the running there, from which `look` takes
        what is out, after each prompt of a kind of work."""
        most = max((len(self.prompts[work]) for work in running), default=0)
        places = [
            (work, number)
            for number in range(most)
            for work in running
            if self.written(work) <= number < len(self.prompts[work])
        ]

        def take(place: Place, samples: list[Sample]) -> None:
            self.keep(samples)
            look(place[0])

        yield from self.texts(running, places, take)

    def drop(self, running: dict[str, list[Candidate]], work: str, for_all: Sequence[Candidate]) -> None:
        """What is out in a kind of work, but for `for_all`; and the kind of work, where it is clear."""
        written, count = self.written(work), len(self.prompts[work])
        if written not in (*LOOKS, count):
            return
        found = by_setting(self.measured.samples, [work])
        left = still_in(found, running[work])
        running[work] = [one for one in running[work] if one in left or one in for_all]
        if is_known := is_clear(found, left):
            del running[work]
        if is_known or written == count:
            self.settle(work)

    def end_if_clear(self, running: dict[str, list[Candidate]]) -> None:
        """Takes everything out, once it is clear which setting is best for all kinds of work."""
        for_all, found = next(iter(running.values())), by_setting(self.measured.samples, list(running))
        if is_clear(found, for_all):
            running.clear()

    def is_level(self) -> bool:
        """Whether it is time to look, with as many texts in each kind of work, as far as it has prompts."""
        most = max(map(self.written, self.measured.works))
        counts = {work: len(own) for work, own in self.prompts.items()}
        return most in LOOKS and all(self.written(work) == min(most, counts[work]) for work in counts)

    def written(self, work: str) -> int:
        """On how many of its prompts there are texts."""
        return max((one.prompt + 1 for one in self.measured.samples if one.work == work), default=0)

    def keep(self, samples: Sequence[Sample]) -> None:
        self.measured = replace(self.measured, samples=(*self.measured.samples, *samples))

    def texts(
        self,
        running: Mapping[str, list[Candidate]],
        places: Sequence[Place],
        take: Callable[[Place, list[Sample]], None],
    ) -> Iterator[Progress]:
        """Texts on these prompts by what is in the running in their kind of work. take: see `measure`."""
        at = measure(lambda place: running.get(place[0], []), places, self.text, take)
        for candidate, (work, number) in at:
            told = {"work": work_in_words(work), "number": number + 1, "count": len(self.prompts[work])}
            yield self.progress(message("advice_comparing", **told, name=called(candidate)))

    def longest(self, contender: Contender) -> Candidate:
        return Candidate(contender.name, 0 if contender.tree else min(PROBED, contender.longest or PROBED))

    def text(self, setting: Candidate, place: Place, most: int = LONGEST_TEXT) -> Sample:
        """One text. Stopped if it was not written to its end."""
        (own, _), (work, number) = self.drafting[setting.contender], place
        gamma = setting.gamma or own.params.gamma
        params = replace(own.params, gamma=gamma, max_new_tokens=min(most, own.params.max_new_tokens))
        text = run_in_turns(own.pair, self.prompts[work][number], params, self.is_over)
        return sample_of(work, number, setting, text)
