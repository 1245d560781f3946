"""Settings in turns on the same prompts, as a table that grows while they are measured: race, Gamma, Compare
and `bench --methods`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import reduce
from statistics import fmean
from time import perf_counter

from specdemo.errors import CannotReadTrees, LoadError
from specdemo.events import METHODS, PairInfo, manner_of, rule_in_words
from specdemo.events.metrics import ratio, total
from specdemo.events.params import tree_text, values_of_rule
from specdemo.events.speedup import SpeedUp, is_wide, speed_up, timed
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.measure.samples import FEWEST_TURNS, TimedTurn, measure, speed_up_in_turns, timed_text
from specdemo.measure.settings import Setting
from specdemo.measure.table import WARM_UP_TOKENS, MethodRow, MethodsResult, is_untimed, winner
from specdemo.measure.turns import run_in_turns
from specdemo.words.catalogue import speaking
from specdemo.zero import start_run

WITH_PLAIN = 1.7  # times as long as a run takes one in turns with plain rounds, until it is known

Given = str | list[int]  # a prompt
Turns = dict[str, list[Sequence[TimedTurn]]]  # of each text, by the settings' names


@dataclass(frozen=True)
class Comparison:
    """What is measured so far. A setting without a sample has no row yet."""

    done: int  # generations, warm-ups included
    total: int
    left: float  # seconds that the others will take, by what such ones have taken so far
    repeats: int  # of each setting on each prompt, as far as is known now
    measuring: str | None  # the setting whose turn it is now, None at the end
    rows: list[MethodRow]  # fastest first
    traces: dict[str, Trace]  # each setting's latest, by its name, without warm-ups


class Stopped(Exception):
    """Within a text, which then does not count."""


def compare(
    settings: Sequence[Setting],
    prompts: Sequence[Given],
    repeats: int,
    is_stopped: Callable[[], bool] = lambda: False,
    in_turns: int = 0,
) -> Iterator[Comparison]:
    """Measures every setting on every prompt `repeats` times, in turns, after a warm-up of each. Yields what
    is measured so far before each generation but the first, and at the end. To stop, close the iterator;
    is_stopped, asked again and again, stops within a generation, which then does not count. in_turns: how
    often to measure with the rounds of each generation in turns with plain ones (`run_in_turns`). The
    speed-ups are by these turns, and only where a setting's are too few for that is everything measured
    `repeats` times.

    Raises as `stream` does, when a pair is busy or cannot take a prompt."""
    course = _Course(list(settings), prompts, is_stopped, in_turns or repeats, bool(in_turns))
    try:
        yield from course.warm_up()
        yield from course.texts(course.passes, bool(in_turns))
        if in_turns and any(sum(map(len, own)) < FEWEST_TURNS for own in course.turns.values()):
            course.passes = max(repeats, in_turns)
            yield from course.texts(course.passes - in_turns, False)
    except Stopped:
        return
    yield course.so_far(None)


class _Course:
    """A comparison as it goes on. passes: over all prompts. warm_ups, took: seconds."""

    def __init__(
        self,
        settings: list[Setting],
        prompts: Sequence[Given],
        is_stopped: Callable[[], bool],
        passes: int,
        is_in_turns: bool,
    ):
        self.settings, self.prompts, self.is_stopped, self.passes = settings, prompts, is_stopped, passes
        self.traces: dict[str, list[Trace]] = {setting.name: [] for setting in settings}
        self.turns: Turns = {setting.name: [] for setting in settings}
        self.rows: list[MethodRow] = []
        self.warm_ups, self.is_in_turns = dict[str, float](), is_in_turns
        self.took: dict[str, list[float]] = {setting.name: [] for setting in settings}
        assert len(self.traces) == len(settings), "each needs a name of its own"

    def warm_up(self) -> Iterator[Comparison]:
        """What happens at a first use."""

        def short_text(setting: Setting, prompt: Given) -> None:
            most = min(WARM_UP_TOKENS, setting.params.max_new_tokens)
            short, began = (
                replace(setting, params=replace(setting.params, max_new_tokens=most)),
                perf_counter(),
            )
            try:
                self.text(short, prompt, in_turns=False)
            except CannotReadTrees:
                if not setting.is_extra:
                    raise
                self.settings = [one for one in self.settings if one.name != setting.name]
                del self.traces[setting.name], self.turns[setting.name], self.took[setting.name]
            else:
                self.warm_ups[setting.name] = perf_counter() - began

        for setting, _ in measure(lambda _: self.settings, [max(self.prompts, key=len)], short_text):
            if self.warm_ups:
                yield self.so_far(setting)

    def texts(self, passes: int, in_turns: bool) -> Iterator[Comparison]:
        self.is_in_turns = in_turns

        def text(setting: Setting, prompt: Given) -> None:
            began = perf_counter()
            trace, turns = self.text(setting, prompt, in_turns)
            self.took[setting.name].append(perf_counter() - began)
            self.traces[setting.name].append(trace)
            self.turns[setting.name].append(turns)
            counts = [len(own) for own in self.traces.values()]
            if min(counts) == max(counts) or not all(counts):
                self.rows = rows_of(self.settings, self.traces, self.turns)

        for setting, _ in measure(lambda _: self.settings, passes * list(self.prompts), text):
            yield self.so_far(setting)

    def text(self, setting: Setting, prompt: Given, in_turns: bool) -> tuple[Trace, Sequence[TimedTurn]]:
        if in_turns:
            assert isinstance(setting.pair, Pair), "what runs here"
            trace, turns = run_in_turns(setting.pair, prompt, setting.params, self.is_stopped)
        else:
            trace, turns = _generate(setting, prompt, self.is_stopped), []
        if trace.finish == "cancelled":
            raise Stopped
        untimed = "so there is nothing to time"
        if trace.stats.timed_tokens < 1:
            raise LoadError(f"{setting.pair.info.name} has sent one token, {untimed}")
        if not trace.stats.run_ms:
            proxy = "is there a proxy before it that collects what it sends?"
            raise LoadError(f"{setting.pair.info.name} has sent its whole text at once, {untimed}: {proxy}")
        return trace, turns

    def so_far(self, setting: Setting | None) -> Comparison:
        """setting: the next one."""
        texts = self.passes * len(self.prompts)
        done = len(self.warm_ups) + sum(map(len, self.took.values()))
        total = len(self.settings) * (1 + texts)
        latest = {name: own[-1] for name, own in self.traces.items() if own}
        return Comparison(done, total, self.left(), self.passes, setting and setting.name, self.rows, latest)

    def left(self) -> float:
        """Seconds that the other texts will take: each as long as others of its setting, and before there are
        any as the warm-ups tell."""
        usual, left = fmean(self.warm_ups.values() or [0.0]), 0.0
        longer = WITH_PLAIN if self.is_in_turns else 1.0
        for setting in self.settings:
            took, warm_up = self.took[setting.name], self.warm_ups.get(setting.name, usual)
            most = max(1.0, setting.params.max_new_tokens / WARM_UP_TOKENS)
            text = fmean(took) if took else longer * most * warm_up
            left += (self.passes * len(self.prompts) - len(took)) * text
        return left + (len(self.settings) - len(self.warm_ups)) * usual


def _generate(setting: Setting, prompt: Given, is_stopped: Callable[[], bool]) -> Trace:
    with start_run(setting.pair, prompt, setting.params, measure=False, is_over=is_stopped) as run:
        for _ in run:
            if is_stopped():
                break
    return run.trace


def rows_of(
    settings: Sequence[Setting], samples: dict[str, list[Trace]], turns: Turns | None = None
) -> list[MethodRow]:
    """The rows, fastest first. All of them are over the same prompts: what is measured of an unfinished turn
    waits for its end, except in the first one. turns: those of the samples, for the speed-ups where each
    setting has enough of them."""
    started = [setting for setting in settings if samples[setting.name]]
    count = max(1, min(map(len, samples.values())))
    plain = next((setting for setting in started if setting.params.draft_with == "none"), None)
    used = {setting.name: samples[setting.name][:count] for setting in started}
    found, plain_ms = dict[str, SpeedUp](), None
    if plain and turns:
        for name, own in used.items():
            texts = [timed_text(one.stats, each) for one, each in zip(own, turns[name], strict=False)]
            if one := speed_up_in_turns(texts):
                found[name] = one
    if plain and len(found) == len(used):
        found[plain.name] = SpeedUp(1.0, 1.0, 1.0)
        # What is known best is by how many plain rounds a round lasts, so all are told at one pace: that at
        # which a plain round takes what it took on average.
        steps_ms = {}
        for name, own in used.items():
            run_ms, tokens = (sum(getattr(one.stats, part) for one in own) for part in ("run_ms", "tokens"))
            steps_ms[name] = found[name].value * run_ms / tokens
        plain_ms = fmean(steps_ms.values())
        used = {name: [at_pace(one, plain_ms / steps_ms[name]) for one in own] for name, own in used.items()}
    rows = []
    for setting in started:
        own, theirs = used[setting.name], used[plain.name] if plain else []
        both_greedy = plain is not None and setting.params.temperature == plain.params.temperature == 0
        by_turns = (found[setting.name], plain_ms) if plain_ms else None
        rows.append(_row(setting, own, theirs, both_greedy, by_turns))
    return sorted(rows, key=lambda row: (is_untimed(row), -row.tokens_per_second))


def at_pace(trace: Trace, pace: float) -> Trace:
    """The trace with times so many times as long."""
    stats = trace.stats
    return replace(trace, stats=replace(stats, **{name: pace * getattr(stats, name) for name in PARTS}))


PARTS = ("draft_ms", "verify_ms")  # of a round's time


def _row(
    setting: Setting,
    samples: list[Trace],
    plain: list[Trace],
    texts_are_equal: bool,
    by_turns: tuple[SpeedUp, float] | None,
) -> MethodRow:
    """The setting's row. plain: the runs of the target alone, on the same prompts in the same order; empty if
    it is not measured. texts_are_equal: whether the texts should equal plain's. by_turns: the speed-up, and
    what a plain round takes at the pace at which the times are told; None where both are by the runs."""
    params = setting.params

    def sum_of(name: str) -> float | None:
        """The sum over all samples; None where one is unknown."""
        return reduce(total, (getattr(one.stats, name) for one in samples), 0.0)

    rounds, accepted = sum_of("rounds"), sum_of("accepted")
    draft_ms, verify_ms = (ratio(sum_of(part), rounds) for part in ("draft_ms", "verify_ms"))
    if by_turns:
        found, plain_ms = by_turns
    else:
        own_rounds, plain_rounds = ([timed(one.rounds) for one in some] for some in (samples, plain))
        found = speed_up(plain_rounds, own_rounds)
        plain_ms = ratio(sum(one.ms for some in plain_rounds for one in some), sum(map(len, plain_rounds)))
    is_told = found is not None and not is_wide(found.interval)
    is_plain, has_drafter = params.draft_with == "none", METHODS[params.draft_with].needs_drafter
    equal = [one.output_ids == other.output_ids for one, other in zip(samples, plain, strict=False)]
    return MethodRow(
        name=setting.name,
        draft_with=params.draft_with,
        manner=manner_of(params.draft_with, _kind(setting.pair.info)),
        gamma=None if is_plain or params.tree else params.gamma,
        tree=tree_text(params.tree),
        drafted_per_round=ratio(sum_of("drafted"), rounds),
        rounds_with_draft=_share_with_draft(samples),
        accepted_per_round=accepted / rounds,
        tokens_per_round=sum_of("tokens") / rounds,
        acceptance_rate=ratio(accepted, total(accepted, sum_of("rejected"))),
        draft_ms_per_round=draft_ms,
        verify_ms_per_round=verify_ms,
        plain_rounds_per_round=ratio(total(draft_ms, verify_ms), plain_ms) if is_told else None,
        tokens_per_second=1000 * sum_of("timed_tokens") / sum_of("run_ms"),
        speedup=1.0 if is_plain and found else found.value if found and is_told else None,
        speedup_interval=found.interval if found and not is_plain else None,
        drafter_bytes=setting.pair.drafter_bytes if has_drafter else None,
        texts_equal=f"{sum(equal)} of {len(equal)}" if texts_are_equal else None,
        samples=len(samples),
    )


def _share_with_draft(samples: Sequence[Trace]) -> float | None:
    if any(one.stats.drafted is None for one in samples):
        return None
    return fmean(bool(one.draft) for trace in samples for one in trace.rounds)


def _kind(info: PairInfo) -> str | None:
    """The kind of the pair's drafter; a server's drafting method, as far as it tells."""
    return info.server.method if info.server else info.drafter_kind


@speaking("en")
def result_of(
    settings: Sequence[Setting], prompts: Sequence[str], repeats: int, rows: list[MethodRow]
) -> MethodsResult:
    """The rows with how they were measured, for JSON. The first setting stands for all of them."""
    info, params = settings[0].pair.info, settings[0].params
    notes = [note for setting in settings for note in setting.pair.notes]
    rules = filter(None, (rule_in_words(setting.params) for setting in settings))  # none without drafts
    return MethodsResult(
        target=info.target,
        device=info.device,
        device_name=info.device_name,
        dtype=info.dtype.target,
        date=date.today().isoformat(),
        **{
            field.name: getattr(params, field.name)
            for field in fields(MethodsResult)
            if hasattr(params, field.name)
        },
        prompts=list(prompts),
        repeats=repeats,
        rows=rows,
        winner=winner(rows),
        of_rule=values_of_rule(params),
        notes=list(dict.fromkeys([*rules, *map(str, notes)])),
    )
