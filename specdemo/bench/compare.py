"""Drafters in turns on the same prompts, as a table that grows while they are measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from random import Random
from statistics import median, quantiles
from typing import NamedTuple

from specdemo.bench.methods import FEWEST_SAMPLES, METHODS, winner
from specdemo.bench.results import MethodRow, MethodsResult
from specdemo.errors import LoadError
from specdemo.events import Params, Stats
from specdemo.events.metrics import ratio, total
from specdemo.events.trace import Trace
from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.loading.fetch import is_speculator
from specdemo.loading.pair import AnyPair, Pair
from specdemo.vllm.pair import ServedPair
from specdemo.zero import stream

WARM_UP = 48  # tokens that each setting writes before it is measured
RESAMPLES = 1000  # of the samples, for an interval


@dataclass(frozen=True)
class Setting:
    """One row to measure. Its name is the row's, and no other's."""

    name: str
    pair: AnyPair
    params: Params


@dataclass(frozen=True)
class Comparison:
    """What is measured so far. A setting without a sample has no row yet."""

    done: int  # generations, warm-ups included
    total: int
    measuring: str | None  # the setting whose turn it is now, None at the end
    rows: list[MethodRow]  # fastest first
    traces: dict[str, Trace]  # each setting's latest, by its name, without warm-ups


class Sample(NamedTuple):
    """What the table needs of one generation."""

    stats: Stats
    ids: list[int]

    @property
    def ms_per_token(self) -> float:
        """By the engine's clock, without prefill; of a server by arrival, from the first token on."""
        return self.stats.run_ms / max(1, self.stats.timed_tokens)


def methods_of(pair: Pair, names: Sequence[str], params: Params) -> list[Setting]:
    """One setting for each name of DRAFT_WITH. ValueError for what the pair cannot have."""
    if "model" in names and pair.drafter is None:
        raise ValueError('methods must not include "model" for this pair: it has no drafter')
    chosen = [replace(params, draft_with=name) for name in names]
    return [Setting(METHODS[each.draft_with], pair, each) for each in chosen]


def settings_for(pairs: Sequence[Pair], names: Sequence[str], params: Params) -> list[Setting]:
    """Pairs with the same target: "model" gives a setting for each of them, the other methods use the first
    pair. Raises as `methods_of` does."""
    settings = methods_of(pairs[0], names, params)
    if "model" not in names or len(pairs) == 1:
        return settings
    models = [
        replace(setting, name=f"{setting.name} ({pair.info.name})")
        for pair in pairs
        for setting in methods_of(pair, ["model"], params)
    ]
    return models + [setting for setting in settings if setting.params.draft_with != "model"]


def others_at_hand(name: str) -> list[str]:
    """The other catalogue pairs with the same target whose models come with the project."""
    target = CATALOGUE[name].target if name in CATALOGUE else None
    return [
        other
        for other, entry in CATALOGUE.items()
        if entry.target == target and other != name and (ROOT / entry.drafter).is_dir()
    ]


def has_head(name: str) -> bool:
    """Whether the drafter of a pair that comes with the project is a head, which cannot be quantised."""
    return is_speculator(ROOT / CATALOGUE[name].drafter)


def compare(
    settings: Sequence[Setting],
    prompts: Sequence[str | list[int]],
    repeats: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Measures every setting on every prompt `repeats` times, in turns, after a warm-up of each. Yields what
    is measured so far after each generation. To stop, close the iterator; is_stopped, asked again and again,
    stops within a generation, which then does not count.

    Raises as `stream` does, when a pair is busy or cannot take a prompt."""
    assert len({setting.name for setting in settings}) == len(settings), "each needs a name of its own"
    longest = max(prompts, key=len)
    warm_ups = [(setting, longest, min(WARM_UP, setting.params.max_new_tokens)) for setting in settings]
    counted = [
        (setting, prompt, setting.params.max_new_tokens)
        for _ in range(repeats)
        for prompt in prompts
        for setting in settings
    ]
    todo = warm_ups + counted
    samples: dict[str, list[Sample]] = {setting.name: [] for setting in settings}
    traces: dict[str, Trace] = {}
    rows: list[MethodRow] = []
    for done, (setting, prompt, new_tokens) in enumerate(todo, start=1):
        params = replace(setting.params, max_new_tokens=new_tokens)
        trace = _generate(setting.pair, prompt, params, is_stopped)
        if trace.finish == "cancelled":
            return
        if trace.stats.timed_tokens < 1:
            raise LoadError(f"{setting.pair.info.name} has sent one token, so there is nothing to time")
        if not trace.stats.run_ms:
            raise LoadError(
                f"{setting.pair.info.name} has sent its whole text at once, so there is nothing to time: is "
                "there a proxy before it that collects what it sends?"
            )
        if done > len(warm_ups):
            traces[setting.name] = trace
            samples[setting.name].append(Sample(trace.stats, trace.output_ids))
            if setting is settings[-1] or not all(samples.values()):
                rows = rows_of(settings, samples)
        following = todo[done][0].name if done < len(todo) else None
        yield Comparison(done, len(todo), following, rows, dict(traces))


def _generate(
    pair: AnyPair, prompt: str | list[int], params: Params, is_stopped: Callable[[], bool]
) -> Trace:
    with stream(pair, prompt, params, measure=False, is_over=is_stopped) as run:
        for _ in run:
            if is_stopped():
                break
    return run.trace


def rows_of(settings: Sequence[Setting], samples: dict[str, list[Sample]]) -> list[MethodRow]:
    """Fastest first. All rows are over the same prompts: what is measured of an unfinished turn waits for its
    end, except in the first one."""
    started = [setting for setting in settings if samples[setting.name]]
    count = max(1, min(map(len, samples.values())))
    plain = next((setting for setting in started if setting.params.draft_with == "none"), None)
    rows = []
    for setting in started:
        own, theirs = samples[setting.name][:count], samples[plain.name][:count] if plain else []
        both_greedy = plain is not None and setting.params.temperature == plain.params.temperature == 0
        rows.append(_row(setting, own, theirs, both_greedy))
    return sorted(rows, key=lambda row: row.tokens_per_second, reverse=True)


def _row(setting: Setting, samples: list[Sample], plain: list[Sample], texts_are_equal: bool) -> MethodRow:
    """plain: of the target alone, on the same prompts in the same order; empty if it is not measured.
    texts_are_equal: whether they should be."""
    params, stats = setting.params, [sample.stats for sample in samples]
    rounds = sum(each.rounds for each in stats)
    accepted, rejected = sum(each.accepted for each in stats), sum_of(each.rejected for each in stats)
    ms, plain_ms = ([one.ms_per_token for one in some] for some in (samples, plain))
    is_plain = params.draft_with == "none"
    equal = [one.ids == other.ids for one, other in zip(samples, plain, strict=False)]
    return MethodRow(
        name=setting.name,
        draft_with=params.draft_with,
        gamma=None if is_plain else params.gamma,
        drafted_per_round=ratio(sum_of(each.drafted for each in stats), rounds),
        accepted_per_round=accepted / rounds,
        tokens_per_round=sum(each.tokens for each in stats) / rounds,
        acceptance_rate=ratio(accepted, total(accepted, rejected)),
        draft_ms_per_round=ratio(sum_of(each.draft_ms for each in stats), rounds),
        verify_ms_per_round=ratio(sum_of(each.verify_ms for each in stats), rounds),
        tokens_per_second=1000 / median(ms),
        speedup=median(plain_ms) / median(ms) if plain else None,
        speedup_interval=speedup_interval(plain_ms, ms) if plain and not is_plain else None,
        drafter_bytes=_drafter_bytes(setting),
        texts_equal=f"{sum(equal)} of {len(equal)}" if texts_are_equal else None,
        samples=len(samples),
    )


def sum_of(values: Iterable[float | None]) -> float | None:
    """None where one is unknown."""
    return reduce(total, values, 0.0)


def _drafter_bytes(setting: Setting) -> int | None:
    if setting.params.draft_with != "model" or isinstance(setting.pair, ServedPair):
        return None
    return setting.pair.bytes_held.drafter


def speedup_interval(plain_ms: list[float], ms: list[float]) -> tuple[float, float] | None:
    """90 % of the speed-ups of random resamples of the pairs (Efron's bootstrap), and the speed-up itself.
    None for fewer than FEWEST_SAMPLES pairs."""
    pairs = list(zip(plain_ms, ms, strict=True))
    if len(pairs) < FEWEST_SAMPLES:
        return None
    random = Random(0)

    def speedup(some: list[tuple[float, float]]) -> float:
        return median(plain for plain, _ in some) / median(own for _, own in some)

    cuts = quantiles((speedup(random.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES)), n=20)
    return min(cuts[0], speedup(pairs)), max(cuts[-1], speedup(pairs))


def result_of(
    settings: Sequence[Setting], prompts: Sequence[str], repeats: int, rows: list[MethodRow]
) -> MethodsResult:
    """The rows with how they were measured, for JSON. The first setting stands for all of them."""
    info, params = settings[0].pair.info, settings[0].params
    return MethodsResult(
        target=info.target,
        device=info.device,
        device_name=info.device_name,
        dtype=info.dtype.target,
        date=date.today().isoformat(),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        rule=params.rule,
        lenience=params.lenience,
        confidence=params.confidence,
        exit_layer=params.exit_layer,
        seed=params.seed,
        max_new_tokens=params.max_new_tokens,
        prompts=list(prompts),
        repeats=repeats,
        rows=rows,
        winner=winner(rows),
        notes=list(dict.fromkeys(note for setting in settings for note in setting.pair.notes)),
    )
