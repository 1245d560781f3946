"""The adviser's measurement: first a few texts of each contender with long drafts, and what a check takes by
its rows; from these all draft lengths are estimated. Then the most promising settings of each kind of work
write whole texts in turns with the target alone, prompt by prompt, until it is clear which is best."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from time import perf_counter

from specdemo.advise.checks import check_times
from specdemo.advise.decide import (
    FEWEST_PROMPTS,
    PROBED,
    by_setting,
    called,
    estimates_of,
    finalists,
    is_clear,
    still_in,
)
from specdemo.advise.results import ALONE, Contender, Measured, Sample, Setting, sample_of
from specdemo.bench.methods import WARM_UP_TOKENS
from specdemo.events import Params, Prompt, __version__
from specdemo.loading.pair import Pair, encode
from specdemo.session import prepare, run_in_turns
from specdemo.words.message import Message, about, message, message_of

PROBES = 2  # prompts of each kind of work
OF_CHECKS, OF_PROBES = 0.15, 0.45  # the shares of the budget after which these end
LONGEST_TEXT = 32_768  # tokens
FOR_ALL = 2  # settings that are measured in every kind of work, for the one setting for all of it


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
    """The prompts that leave a text its room, and a note on those that do not. ValueError where none of a
    kind does, with what is wrong with the first."""
    kept: dict[str, list[Prompt]] = {}
    notes = []
    for work, own in prompts.items():
        refused = [(prompt, why) for prompt in own if (why := _refused(pair, prompt, params))]
        kept[work] = [prompt for prompt in own if prompt not in (one for one, _ in refused)]
        if not kept[work]:
            raise ValueError(refused[0][1])
        if refused:
            why, count = refused[0][1], len(refused)
            notes.append(message("advice_prompts_left_out", work=work, count=count, all=len(own), why=why))
    return kept, notes


def _refused(pair: Pair, prompt: Prompt, params: Params) -> Message | str | None:
    """Why a prompt cannot be used, if it cannot."""
    try:
        length = len(prepare(pair, prompt, params).prompt_ids)
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
        versions={"specdemo": __version__, **pair.versions},
        date=date.today().isoformat(),
        command=command,
        params=json.loads(json.dumps(asdict(params))),  # as a report has them
        works=tuple(prompts),
        contenders=tuple(contenders),
        prompts={work: len(some) for work, some in prompts.items()},
        notes=tuple(map(str, (*notes, *pair.notes))),
    )
    if before is None:
        return own
    for name in ("target", "device_name", "dtype", "params", "works", "contenders", "prompts"):
        if getattr(before, name) != getattr(own, name):
            raise ValueError(about("resume", "advice_other", what=name))
    known = {name: getattr(before, name) for name in ("checks", "probes", "samples", "seconds", "date")}
    return replace(own, **known)


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
        ended = course.ended
    except OutOfTime:
        ended = "interrupted" if is_stopped() else "budget"
    yield course.progress(message("advice_done"), ended)


class _Course:
    """The measurement as it goes on."""

    def __init__(self, task: Task, measured: Measured, is_stopped: Callable[[], bool]):
        self.task, self.measured, self.is_stopped = task, measured, is_stopped
        self.before, self.began = measured.seconds, perf_counter()
        self.ended = "all"
        self.contenders = {one.name: one for one in measured.contenders if one.draft_with != "none"}

    @property
    def seconds(self) -> float:
        return self.before + perf_counter() - self.began

    def is_over(self) -> bool:
        return self.is_stopped() or self.seconds > self.task.budget

    def progress(self, doing: Message, ended: str = "running") -> Progress:
        self.measured = replace(self.measured, seconds=self.seconds, ended=ended)
        return Progress(self.measured, doing, max(0.0, self.task.budget - self.seconds))

    def warm_up(self) -> Iterator[Progress]:
        """What happens at a first use: not measured."""
        work = self.measured.works[0]
        for contender in self.contenders.values():
            yield self.progress(message("advice_warming_up", name=contender.name))
            self.text(work, 0, self.longest(contender), WARM_UP_TOKENS)

    def check(self) -> Iterator[Progress]:
        if self.measured.checks:
            return
        pair = self.task.pairs[ALONE.name]
        yield self.progress(message("advice_checking"))
        seconds = OF_CHECKS * self.task.budget - self.seconds
        ids = [
            one
            for prompts in self.task.prompts.values()
            for one in encode(pair, prompts[0], self.task.params)
        ]
        for found in check_times(pair, ids, self.task.params, max(seconds, 0.0), self.is_over):
            self.measured = replace(self.measured, checks=(*self.measured.checks, *found))
            yield self.progress(message("advice_checking"))
        if self.is_over():
            raise OutOfTime

    def probe(self) -> Iterator[Progress]:
        """Texts with long drafts. What is probed of a prompt counts when all contenders have written it."""
        done = {(one.work, one.prompt) for one in self.measured.probes}
        for number in range(PROBES):
            for work in self.measured.works:
                if (work, number) in done or number >= len(self.task.prompts[work]):
                    continue
                if number and self.seconds > OF_PROBES * self.task.budget:
                    return
                found = []
                for contender in self.contenders.values():
                    setting = self.longest(contender)
                    yield self.progress(message("advice_probing", work=work, name=contender.name))
                    found.append(self.text(work, number, setting))
                self.measured = replace(self.measured, probes=(*self.measured.probes, *found))

    def compare(self) -> Iterator[Progress]:
        works = self.measured.works
        for_all = finalists(estimates_of(self.measured, works))[:FOR_ALL] if len(works) > 1 else []
        running = {
            work: list(dict.fromkeys([*finalists(estimates_of(self.measured, [work])), *for_all]))
            for work in works
            if any(one.work == work for one in self.measured.probes)
        }
        clear = set()
        for number in range(max(map(len, self.task.prompts.values()))):
            for work in running:
                if work in clear or number >= len(self.task.prompts[work]):
                    continue
                if not any((one.work, one.prompt) == (work, number) for one in self.measured.samples):
                    yield from self.turn(work, number, running[work])
                found = by_setting(self.measured.samples, work)
                left = still_in(found, running[work])
                if number + 1 >= FEWEST_PROMPTS and is_clear(found, left):
                    clear.add(work)
                running[work] = [one for one in running[work] if one in left or one in for_all]
        if clear == set(works):
            self.ended = "clear"

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
        return Setting(contender.name, min(PROBED, contender.longest or PROBED))

    def text(self, work: str, number: int, setting: Setting, most: int = LONGEST_TEXT) -> Sample:
        """One text. OutOfTime if it was not written to its end."""
        params = replace(
            self.task.params,
            draft_with=self.contenders[setting.contender].draft_with,
            gamma=setting.gamma,
            max_new_tokens=min(most, self.task.params.max_new_tokens),
        )
        pair, prompt = self.task.pairs[setting.contender], self.task.prompts[work][number]
        trace, turns = run_in_turns(pair, prompt, params, self.is_over)
        if trace.finish == "cancelled":
            raise OutOfTime
        return sample_of(work, number, setting, trace, turns)
