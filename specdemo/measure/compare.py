"""Settings in turns on the same prompts, as a table that grows while they are measured: race, Gamma, Compare
and `bench --methods`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import fmean
from typing import Any, NamedTuple

from specdemo.errors import LoadError
from specdemo.events import METHODS, Prompt, manner_of, ratio, total
from specdemo.events.params import as_text, rule_in_words, values_of_rule
from specdemo.events.speedup import SpeedUp, is_wide, speed_up, timed
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.measure.samples import FEWEST_TURNS, Text, measure, speed_up_in_turns, timed_text
from specdemo.measure.settings import Setting, how_measured
from specdemo.measure.table import WARM_UP_TOKENS, MethodRow, is_too_short, is_untimed, winner
from specdemo.measure.turns import Stopped, run_in_turns
from specdemo.words.catalogue import speaking
from specdemo.zero import start_run


@dataclass(frozen=True)
class Comparison:
    """What is measured so far. A setting without a sample has no row yet."""

    done: int  # generations, without warm-ups
    total: int
    repeats: int  # of each setting on each prompt, as far as is known now
    measuring: str | None  # the setting whose turn it is now, None at the end
    rows: list[MethodRow]  # fastest first
    traces: dict[str, Trace]  # each setting's latest, by its name, without warm-ups

    @property
    def share(self) -> float:
        return self.done / self.total

    @property
    def is_too_short(self) -> bool:
        """Whether a speed-up is missing at the end, because the texts are too short for one."""
        return self.measuring is None and any(map(is_too_short, self.rows))


def compare(
    settings: Sequence[Setting],
    prompts: Sequence[Prompt],
    most: int,
    least: int,
    in_turns: bool,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Measures every setting on every prompt, in turns, after a warm-up of each. Yields what is measured so
    far before each generation but the first, and at the end. To stop, close the iterator; is_stopped, asked
    again and again, stops within a generation, which then does not count. in_turns: the rounds of what drafts
    are in turns with plain ones (`run_in_turns`), and the speed-ups are by these turns. There are `least`
    passes over the prompts, and up to `most` until each setting has enough turns.

    Raises as `stream` does, when a pair is busy or cannot take a prompt."""
    course = _Comparing(settings, prompts, is_stopped, in_turns, least)
    try:
        yield from course.warm_up()
        yield from course.measured(least)
        while course.passes < most and not course.has_turns:
            course.passes += 1
            yield from course.measured(1)
    except Stopped:
        return
    yield course.so_far(None)


@dataclass
class _Comparing:
    """A comparison as it goes on. passes: over all prompts."""

    settings: Sequence[Setting]
    prompts: Sequence[Prompt]
    is_stopped: Callable[[], bool]
    is_in_turns: bool
    passes: int

    def __post_init__(self):
        self.texts: dict[str, list[Text]] = {setting.name: [] for setting in self.settings}
        self.rows = list[MethodRow]()
        assert len(self.texts) == len(self.settings), "each needs a name of its own"

    def warm_up(self) -> Iterator[Comparison]:
        """What happens at a first use."""
        for at, setting in enumerate(self.settings):
            if at:
                yield self.so_far(setting)
            most = min(WARM_UP_TOKENS, setting.params.max_new_tokens)
            short = replace(setting, params=replace(setting.params, max_new_tokens=most))
            self.text(short, max(self.prompts, key=len), in_turns=False)

    @property
    def has_turns(self) -> bool:
        """Whether everything that drafts has enough turns for a speed-up, or none: a text that is too short
        for one stays so, however often it is written."""
        drafting = [self.texts[one.name] for one in self.settings if one.params.draft_with != "none"]
        counts = [sum(len(text.turns) for text in own) for own in drafting]
        return all(count == 0 or count >= FEWEST_TURNS for count in counts)

    def measured(self, passes: int) -> Iterator[Comparison]:
        def text(setting: Setting, prompt: Prompt) -> None:
            self.texts[setting.name].append(self.text(setting, prompt, self.is_in_turns))
            counts = [len(own) for own in self.texts.values()]
            if min(counts) == max(counts) or not all(counts):
                self.rows = rows_of(self.settings, self.texts, self.is_in_turns)

        for setting, _ in measure(lambda _: self.settings, passes * list(self.prompts), text):
            yield self.so_far(setting)

    def text(self, setting: Setting, prompt: Prompt, in_turns: bool) -> Text:
        pair, params = setting.pair, setting.params
        if in_turns and params.draft_with != "none":
            assert isinstance(pair, Pair), "what runs here"
            text = run_in_turns(pair, prompt, params, self.is_stopped)
        else:
            with start_run(pair, prompt, params, measure=False, is_over=self.is_stopped) as run:
                for _ in run:
                    if self.is_stopped():
                        break
            text = Text(run.trace)
            if run.trace.finish == "cancelled":
                raise Stopped
        untimed = "so there is nothing to time"
        if text.trace.stats.timed_tokens < 1:
            raise LoadError(f"{pair.info.name} has sent one token, {untimed}")
        if not text.trace.stats.run_ms:
            proxy = "is there a proxy before it that collects what it sends?"
            raise LoadError(f"{pair.info.name} has sent its whole text at once, {untimed}: {proxy}")
        return text

    def so_far(self, setting: Setting | None) -> Comparison:
        """setting: the next one."""
        return Comparison(
            done=sum(map(len, self.texts.values())),
            total=len(self.settings) * self.passes * len(self.prompts),
            repeats=self.passes,
            measuring=setting and setting.name,
            rows=self.rows,
            traces={name: own[-1].trace for name, own in self.texts.items() if own},
        )


class Timing(NamedTuple):
    """How a setting's times compare with those of the target alone. plain_ms: a plain round. pace: so many
    times as long as they were are all times told."""

    speedup: SpeedUp | None
    plain_ms: float | None
    pace: float = 1.0


def rows_of(
    settings: Sequence[Setting], texts: Mapping[str, Sequence[Text]], in_turns: bool
) -> list[MethodRow]:
    """The rows, fastest first. All of them are over the same prompts: what is measured of an unfinished turn
    waits for its end, except in the first one. in_turns: as `compare` has it."""
    count = max(1, min(map(len, texts.values())))
    used = [(one, texts[one.name][:count]) for one in settings if texts[one.name]]
    alone = next((own for one, own in used if one.params.draft_with == "none"), [])
    timings = _by_turns(used) if in_turns and alone else [_by_rounds(own, alone) for _, own in used]
    rows = [_row(*one, alone, timing) for one, timing in zip(used, timings, strict=True)]
    return sorted(rows, key=lambda row: (is_untimed(row), -row.tokens_per_second))


def _by_turns(used: Sequence[tuple[Setting, Sequence[Text]]]) -> list[Timing]:
    """No speed-up where a setting has too few turns. What is known best is by how many plain rounds a round
    lasts, so all others are told at one pace: that at which a plain round takes what it took on average."""
    found = list[tuple[SpeedUp | None, float]]()
    for setting, own in used:
        speedup = speed_up_in_turns([timed_text(one.trace.stats, one.turns) for one in own])
        if setting.params.draft_with == "none":
            speedup = SpeedUp(1.0, 1.0, 1.0)
        stats = [one.trace.stats for one in own]
        ms_per_token = sum(one.run_ms for one in stats) / sum(one.tokens for one in stats)
        found.append((speedup, speedup.value * ms_per_token if speedup else 0.0))
    plain_ms = fmean(step_ms for speedup, step_ms in found if speedup)
    return [Timing(one, plain_ms, plain_ms / step_ms if one else 1.0) for one, step_ms in found]


def _by_rounds(own: Sequence[Text], alone: Sequence[Text]) -> Timing:
    rounds, plain_rounds = ([timed(one.trace.rounds) for one in texts] for texts in (own, alone))
    plain_ms = ratio(sum(one.ms for some in plain_rounds for one in some), sum(map(len, plain_rounds)))
    return Timing(speed_up(plain_rounds, rounds), plain_ms)


def _row(setting: Setting, own: Sequence[Text], alone: Sequence[Text], timing: Timing) -> MethodRow:
    """alone: the texts of the target alone, on the same prompts in the same order; empty if it is not
    measured."""
    params, speedup = setting.params, timing.speedup

    def sum_of(name: str) -> float | None:
        """The sum over all texts; None where one is unknown."""
        return reduce(total, (getattr(one.trace.stats, name) for one in own), 0.0)

    rounds, accepted = sum_of("rounds"), sum_of("accepted")
    parts = (ratio(sum_of(part), rounds) for part in ("draft_ms", "verify_ms"))
    draft_ms, verify_ms = (part and part * timing.pace for part in parts)
    is_told = speedup is not None and not is_wide(speedup.interval)
    is_plain, has_drafter = params.draft_with == "none", METHODS[params.draft_with].needs_drafter
    info = setting.pair.info
    is_compared = bool(alone) and params.temperature == 0
    equal = [one.trace.output_ids == other.trace.output_ids for one, other in zip(own, alone, strict=False)]
    return MethodRow(
        name=setting.name,
        draft_with=params.draft_with,
        manner=manner_of(params.draft_with, info.server.method if info.server else info.drafter_kind),
        gamma=None if is_plain or params.tree else params.gamma,
        tree=as_text(params.tree),
        drafted_per_round=ratio(sum_of("drafted"), rounds),
        accepted_per_round=accepted / rounds,
        tokens_per_round=sum_of("tokens") / rounds,
        acceptance_rate=ratio(accepted, total(accepted, sum_of("rejected"))),
        draft_ms_per_round=draft_ms,
        verify_ms_per_round=verify_ms,
        plain_rounds_per_round=ratio(total(draft_ms, verify_ms), timing.plain_ms) if is_told else None,
        tokens_per_second=1000 * sum_of("timed_tokens") / (timing.pace * sum_of("run_ms")),
        speedup=1.0 if is_plain and speedup else speedup.value if speedup and is_told else None,
        speedup_interval=speedup.interval if speedup and not is_plain else None,
        drafter_bytes=setting.pair.drafter_bytes if has_drafter else None,
        texts_equal=f"{sum(equal)} of {len(equal)}" if is_compared else None,
        samples=len(own),
    )


FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "rule",
    "confidence",
    "exit_layer",
    "seed",
    "max_new_tokens",
)


@speaking("en")
def result_of(
    settings: Sequence[Setting], prompts: Sequence[str], repeats: int, rows: list[MethodRow]
) -> dict[str, Any]:
    """The rows with how they were measured, for JSON. The first setting stands for all of them."""
    params = settings[0].params
    notes = [str(note) for setting in settings for note in setting.pair.notes]
    rules = filter(None, (rule_in_words(setting.params) for setting in settings))  # none without drafts
    return {
        **how_measured(settings[0].pair, params, *FIELDS),
        "of_rule": values_of_rule(params),
        "prompts": list(prompts),
        "repeats": repeats,
        "rows": rows,
        "winner": winner(rows),
        "notes": list(dict.fromkeys([*rules, *notes])),
    }
