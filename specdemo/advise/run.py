"""The adviser's measurement: first what a check takes by its rows, and a few texts of each contender with
long drafts; from these all draft lengths are estimated. Then the most promising settings of each kind of work
write whole texts in turns with the target alone, prompt by prompt, until it is clear which is best."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from hashlib import sha256
from time import perf_counter
from typing import Any

from specdemo.advise.checks import check_times
from specdemo.advise.decide import (
    PROBED,
    by_setting,
    called,
    estimates_of,
    finalists,
    is_clear,
    still_in,
)
from specdemo.advise.results import ALONE, Contender, Ended, Measured, Sample, Setting, sample_of
from specdemo.bench.methods import WARM_UP_TOKENS
from specdemo.errors import CannotReadTrees
from specdemo.events import Params, Prompt, __version__
from specdemo.loading.pair import Pair, encode
from specdemo.session import prepare, run_in_turns
from specdemo.words.message import Message, about, message, message_of

PROBES = 2  # prompts of each kind of work
OF_CHECKS, OF_PROBES = 0.15, 0.45  # the shares of the budget after which these end
FOR_ALL = 2  # settings that are measured in every kind of work, for the one setting for all of it
LOOKS = (4, 7, 11, 15)  # prompts after which a kind of work can be clear, and settings are dropped
LONGEST_TEXT = 32_768  # tokens
MOST_PROMPTS = 100  # of one kind of work


@dataclass(frozen=True)
class Progress:
    """What is measured so far, what is measured now, and the most seconds that it can still take."""

    measured: Measured
    doing: Message
    seconds_left: float


@dataclass(frozen=True)
class Task:
    """What is to be measured. pairs: by contender; all have the same target.
    prompts: by kind of work. budget: seconds."""

    pairs: Mapping[str, Pair]
    prompts: Mapping[str, Sequence[Prompt]]
    params: Params
    budget: float


class OutOfTime(Exception):
    """The text that is being written does not count."""


def fitting(
    pair: Pair, prompts: Mapping[str, Sequence[Prompt]], params: Params
) -> tuple[dict[str, list[Prompt]], list[Message]]:
    """The prompts that leave a text its room, at most MOST_PROMPTS of each kind of work, and notes on the
    others. ValueError where none of a kind does, with what is wrong with the first."""
    kept: dict[str, list[Prompt]] = {}
    notes = []
    for work, own in prompts.items():
        some = own[:: -(-len(own) // MOST_PROMPTS)]
        if len(some) < len(own):
            notes.append(message("advice_some_prompts", work=work, count=len(some), all=len(own)))
        whys = [_refused(pair, prompt, params) for prompt in some]
        kept[work] = [prompt for prompt, why in zip(some, whys, strict=True) if why is None]
        refused = [why for why in whys if why is not None]
        if not kept[work]:
            raise ValueError(refused[0])
        if refused:
            why, count = refused[0], len(refused)
            notes.append(message("advice_prompts_left_out", work=work, count=count, all=len(some), why=why))
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


def begin(
    pair: Pair,
    contenders: Sequence[Contender],
    prompts: Mapping[str, Sequence[Prompt]],
    params: Params,
    notes: Sequence[Message | str],
    command: str,
    before: Measured | None = None,
) -> Measured:
    """What is known before anything is measured. before: of a measurement that is gone on with. ValueError
    where that was of something else."""
    info = pair.info
    own = Measured(
        target=info.target,
        device=info.device,
        device_name=info.device_name,
        dtype=info.dtype.target,
        quantize=asdict(info.quantize),
        versions={"specdemo": __version__, **pair.versions},
        date=date.today().isoformat(),
        command=command,
        params=_as_kept(params),
        works=tuple(prompts),
        contenders=tuple(contenders),
        prompts={work: tuple(map(_digest, some)) for work, some in prompts.items()},
        notes=tuple(map(str, (*notes, *pair.notes))),
    )
    if before is None:
        return own
    before = replace(before, params={**_as_kept(Params()), **before.params})  # older ones have fewer
    same = ("target", "device_name", "dtype", "quantize", "versions", "params", "works", "contenders")
    for name in (*same, "prompts"):
        if getattr(before, name) != getattr(own, name):
            raise ValueError(about("resume", "advice_other", what=name))
    known = ("checks", "probes", "finalists", "samples", "seconds", "date")
    return replace(own, **{name: getattr(before, name) for name in known})


def _as_kept(params: Params) -> dict[str, Any]:
    """What all texts are written with, as a report has it."""
    given = json.loads(json.dumps(asdict(params)))
    return {name: value for name, value in given.items() if name not in ("draft_with", "gamma")}


def _digest(prompt: Prompt) -> str:
    return sha256(json.dumps(prompt).encode()).hexdigest()[:12]


def advise(
    task: Task, measured: Measured, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Progress]:
    """Measures, and yields all that is measured so far after each text. measured: what is known before, with
    its contenders. Where is_stopped gets true, or the budget is at its end, a text that is being written does
    not count. Raises as `stream` does."""
    course = _Course(task, measured, is_stopped)
    try:
        yield from course.warm_up()
        yield from course.check()
        yield from course.probe()
        yield from course.compare()
        ended: Ended = course.ended
    except OutOfTime:
        ended = "interrupted" if is_stopped() else "budget"
    yield course.progress(message("advice_done"), ended)


class _Course:
    """The measurement as it goes on. The budget is that of this run, whatever was measured before."""

    def __init__(self, task: Task, measured: Measured, is_stopped: Callable[[], bool]):
        self.task, self.measured, self.is_stopped = task, measured, is_stopped
        self.before, self.began = measured.seconds, perf_counter()
        self.ended: Ended = "all"
        self.contenders = {one.name: one for one in measured.contenders if one.draft_with != "none"}

    @property
    def share(self) -> float:
        """Of the budget that is used."""
        return (perf_counter() - self.began) / self.task.budget

    def is_over(self) -> bool:
        return self.is_stopped() or self.share > 1

    def progress(self, doing: Message, ended: Ended = "running") -> Progress:
        own = perf_counter() - self.began
        self.measured = replace(self.measured, seconds=self.before + own, ended=ended)
        return Progress(self.measured, doing, max(0.0, self.task.budget - own))

    def warm_up(self) -> Iterator[Progress]:
        """What happens at a first use: not measured."""
        work = self.measured.works[0]
        for contender in list(self.contenders.values()):
            yield self.progress(message("advice_warming_up", name=contender.name))
            try:
                self.text(work, 0, self.longest(contender), WARM_UP_TOKENS)
            except CannotReadTrees as error:
                del self.contenders[contender.name]
                note = str(message("advice_left_out", name=contender.name, why=message_of(error)))
                self.measured = replace(self.measured, notes=(*self.measured.notes, note))

    def check(self) -> Iterator[Progress]:
        pair = self.task.pairs[ALONE.name]
        yield self.progress(message("advice_checking"))
        seconds = max(0.0, (OF_CHECKS - self.share) * self.task.budget)
        params = replace(self.task.params, draft_with="none")
        text = [one for some in self.task.prompts.values() for one in encode(pair, some[0], params)]
        known = {one.context for one in self.measured.checks}
        for found in check_times(pair, text, params, seconds, self.is_over, known):
            self.measured = replace(self.measured, checks=(*self.measured.checks, *found))
            yield self.progress(message("advice_checking"))
        if self.is_over():
            raise OutOfTime

    def probe(self) -> Iterator[Progress]:
        """Texts with long drafts: of each contender, and then of those that may be worth measuring. What is
        probed of a prompt counts when all have written it."""
        done = {(one.work, one.prompt) for one in self.measured.probes}
        for number in range(PROBES):
            for work in self.measured.works:
                if (work, number) in done or number >= len(self.task.prompts[work]):
                    continue
                if self.measured.finalists or (number and self.share > OF_PROBES):
                    return
                before = estimates_of(self.measured, [work])
                likely = {one.contender for one in finalists(before)} or set(self.contenders)
                found = []
                for contender in (self.contenders[name] for name in self.contenders if name in likely):
                    setting = self.longest(contender)
                    yield self.progress(message("advice_probing", work=work, name=contender.name))
                    found.append(self.text(work, number, setting))
                self.measured = replace(self.measured, probes=(*self.measured.probes, *found))

    def compare(self) -> Iterator[Progress]:
        """Whole texts of the settings that the estimates leave, until each kind of work is clear, and then of
        those for all of it, until that is."""
        works = self.measured.works
        for_all = finalists(estimates_of(self.measured, works))[:FOR_ALL] if len(works) > 1 else []
        if not self.measured.finalists:
            chosen = {work: finalists(estimates_of(self.measured, [work])) for work in works}
            both = {work: tuple(dict.fromkeys([*own, *for_all])) for work, own in chosen.items()}
            self.measured = replace(self.measured, finalists=both)
        running = {work: list(own) for work, own in self.measured.finalists.items() if own}
        yield from self.until_clear(running, for_all)
        if not for_all or running:
            return
        self.ended = "all"
        yield from self.until_clear({work: list(for_all) for work in works}, for_all, together=True)

    def until_clear(
        self, running: dict[str, list[Setting]], for_all: Sequence[Setting], together: bool = False
    ) -> Iterator[Progress]:
        """Prompt after prompt of each kind of work with what is in the running there. Drops what is out, and
        in the end a kind of work that is clear. together: all kinds are clear at once, by all their texts."""
        prompts = {work: len(self.task.prompts[work]) for work in running}
        for number in range(max(prompts.values(), default=0)):
            for work in [work for work in running if number < prompts[work]]:
                if not any((one.work, one.prompt) == (work, number) for one in self.measured.samples):
                    yield from self.turn(work, number, running[work])
                last = number + 1 == prompts[work]
                if together or not (number + 1 in LOOKS or last):
                    continue
                found = by_setting(self.measured.samples, [work])
                left = still_in(found, running[work])
                running[work] = [one for one in running[work] if one in left or one in for_all]
                if is_clear(found, left):
                    del running[work]
            is_look = number + 1 in LOOKS
            if together and is_look and is_clear(by_setting(self.measured.samples, list(running)), for_all):
                running.clear()
            if not running:
                self.ended = "clear"
                return

    def turn(self, work: str, number: int, settings: Sequence[Setting]) -> Iterator[Progress]:
        """A prompt with each of these settings, which begin with another one each time. It counts when all
        have written it."""
        at, found = number % len(settings), []
        count = len(self.task.prompts[work])
        for setting in (*settings[at:], *settings[:at]):
            name, place = called(setting), number + 1
            yield self.progress(message("advice_comparing", work=work, number=place, count=count, name=name))
            found.append(self.text(work, number, setting))
        self.measured = replace(self.measured, samples=(*self.measured.samples, *found))

    def longest(self, contender: Contender) -> Setting:
        return Setting(contender.name, 0 if contender.tree else min(PROBED, contender.longest or PROBED))

    def text(self, work: str, number: int, setting: Setting, most: int = LONGEST_TEXT) -> Sample:
        """One text. OutOfTime if it was not written to its end."""
        contender = self.contenders[setting.contender]
        params = replace(
            self.task.params,
            draft_with=contender.draft_with,
            gamma=setting.gamma or self.task.params.gamma,
            tree=contender.tree,
            max_new_tokens=min(most, self.task.params.max_new_tokens),
        )
        pair, prompt = self.task.pairs[setting.contender], self.task.prompts[work][number]
        trace, turns = run_in_turns(pair, prompt, params, self.is_over)
        if trace.finish == "cancelled":
            raise OutOfTime
        return sample_of(work, number, setting, trace, turns)
