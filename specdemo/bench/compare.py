"""Drafters in turns on the same prompts, as a table that grows while they are measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import reduce
from statistics import fmean

from specdemo.bench.methods import WARM_UP_TOKENS, MethodRow, MethodsResult, usual_tree, winner
from specdemo.drafters.kinds import kind_in
from specdemo.errors import CannotReadTrees, LoadError
from specdemo.events import METHODS, PairInfo, Params, drafter_label, manner_of, rule_in_words
from specdemo.events.metrics import ratio, total
from specdemo.events.params import DraftTree, takes_tree, tree_text, values_of_rule
from specdemo.events.speedup import SpeedUp, speed_up, timed
from specdemo.events.trace import Trace
from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.loading.pair import AnyPair, Pair
from specdemo.words.catalogue import speaking
from specdemo.zero import start_run

ENOUGH = 1.03  # where the interval's ends differ by less than this factor, timing in turns ends early


@dataclass(frozen=True)
class Setting:
    """One row to measure. name: the row's name, which no other row has. is_extra: whether it is left out
    where it turns out that the pair's models cannot read its trees."""

    name: str
    pair: AnyPair
    params: Params
    is_extra: bool = False


Text = tuple[Setting, str | list[int]]  # to be written


@dataclass(frozen=True)
class Comparison:
    """What is measured so far. A setting without a sample has no row yet."""

    done: int  # generations, warm-ups included
    total: int
    repeats: int  # of each setting on each prompt, as far as is known now
    measuring: str | None  # the setting whose turn it is now, None at the end
    rows: list[MethodRow]  # fastest first
    traces: dict[str, Trace]  # each setting's latest, by its name, without warm-ups


def methods_at_hand(pair: Pair) -> list[str]:
    """The names in METHODS of those that the pair can have."""
    return [name for name in METHODS if pair.lacks(name) is None]


def methods_of(pair: Pair, names: Sequence[str], params: Params) -> list[Setting]:
    """One setting, which drafts chains, for each of these names in METHODS. ValueError for what the pair
    cannot have."""
    own = {name: replace(params, draft_with=name, tree=()) for name in names}
    for name in names:
        if why := pair.lacks(name):
            raise ValueError(f'methods must not include "{name}" for this pair: {why}')
    kind = pair.info.drafter_kind
    return [Setting(drafter_label(name, kind), pair, params) for name, params in own.items()]


def settings_for(pairs: Sequence[Pair], names: Sequence[str], params: Params) -> list[Setting]:
    """The settings for pairs with the same target. A method that needs a drafter gives a setting for each of
    them, the others one for the first. Raises as `methods_of` does."""
    settings = methods_of(pairs[0], names, params)
    by_drafter = [name for name in names if METHODS[name].needs_drafter]
    if not by_drafter or len(pairs) == 1:
        return settings
    of_each = [
        replace(setting, name=f"{setting.name} ({pair.info.name})")
        for pair in pairs
        for setting in methods_of(pair, by_drafter, params)
    ]
    return of_each + [one for one in settings if one.params.draft_with not in by_drafter]


def with_trees(settings: Sequence[Setting], params: Params, trees: Sequence[DraftTree] = ()) -> list[Setting]:
    """The settings, each followed by those with trees in place of its chains, as far as its pair drafts trees
    with such Params: the given ones (where there are none, the usual tree of a model) and that of `params`.
    ValueError for one of `trees` that nothing drafts, and for that of `params` where each pair that could
    draft it refuses it."""
    asked = list(dict.fromkeys([*trees, *([params.tree] if params.tree else [])]))
    found: list[Setting] = []
    refused: dict[DraftTree, ValueError] = {}
    for setting in settings:
        found.append(setting)
        method = setting.params.draft_with
        usual = [usual_tree(params)] if METHODS[method].is_by_drafter and not trees else []
        for tree in dict.fromkeys([*usual, *asked]):
            if not takes_tree(method, tree):
                continue
            try:
                own = setting.pair.check(replace(setting.params, tree=tree))
            except ValueError as error:
                refused[tree] = error
            else:
                name = f"{setting.name}, tree {tree_text(tree)}"
                found.append(replace(setting, name=name, params=own, is_extra=tree not in asked))
    for tree in asked:
        if any(one.params.tree == tree for one in found):
            continue
        if tree in refused:
            raise refused[tree]
        if tree in trees:
            able = ", ".join(name for name in METHODS if takes_tree(name, tree))
            why = f"none of these methods drafts it (only {able} can)"
            raise ValueError(f"trees must not include {tree_text(tree)} here: {why}")
    return found


def has_head(name: str) -> bool:
    """Whether the drafter of a pair that comes with the project is a head, which cannot be quantised."""
    return kind_in(ROOT / CATALOGUE[name].drafter).is_head


def compare(
    settings: Sequence[Setting],
    prompts: Sequence[str | list[int]],
    repeats: int,
    is_stopped: Callable[[], bool] = lambda: False,
    seconds: float = 0.0,
) -> Iterator[Comparison]:
    """Measures every setting on every prompt `repeats` times, in turns, after a warm-up of each. Yields what
    is measured so far after each generation. To stop, close the iterator; is_stopped, asked again and again,
    stops within a generation, which then does not count. seconds: for which each generation is then made
    again in turns with plain rounds (`Run.time_in_turns`); there is a single prompt then. Where this could be
    done with all settings, the speed-ups are by that, and nothing is generated a second time.

    Raises as `stream` does, when a pair is busy or cannot take a prompt."""
    assert len({setting.name for setting in settings}) == len(settings), "each needs a name of its own"
    assert not seconds or len(prompts) == 1, "what is timed in turns is told of one prompt"
    settings, done = list(settings), 0
    todo, once = _in_turn(settings, prompts, 1 if seconds else repeats)
    samples: dict[str, list[Trace]] = {setting.name: [] for setting in settings}
    rows: list[MethodRow] = []
    while done < len(todo):
        setting, prompt = todo[done]
        try:
            trace = _generate(setting, prompt, is_stopped, seconds if done >= len(settings) else 0.0)
        except CannotReadTrees:
            if not setting.is_extra:
                raise
            settings = [one for one in settings if one.name != setting.name]
            todo, once = _in_turn(settings, prompts, 1 if seconds else repeats)
            del samples[setting.name]
            continue
        done += 1
        if trace.finish == "cancelled" or (seconds and is_stopped()):
            return
        untimed = "so there is nothing to time"
        if trace.stats.timed_tokens < 1:
            raise LoadError(f"{setting.pair.info.name} has sent one token, {untimed}")
        if not trace.stats.run_ms:
            proxy = "is there a proxy before it that collects what it sends?"
            raise LoadError(f"{setting.pair.info.name} has sent its whole text at once, {untimed}: {proxy}")
        if done > len(settings):
            samples[setting.name].append(trace)
            if setting is settings[-1] or not all(samples.values()):
                rows = rows_of(settings, samples)
        if seconds and done == len(todo) and not are_in_turns(samples.values()):
            seconds = 0.0
            todo += (repeats - 1) * once
        following = todo[done][0].name if done < len(todo) else None
        latest = {name: own[-1] for name, own in samples.items() if own}
        yield Comparison(done, len(todo), (len(todo) - len(settings)) // len(once), following, rows, latest)


def _in_turn(
    settings: Sequence[Setting], prompts: Sequence[str | list[int]], repeats: int
) -> tuple[list[Text], list[Text]]:
    """All texts: a warm-up of each setting, and each prompt with each `repeats` times. And these once."""
    longest, warm_ups = max(prompts, key=len), []
    for setting in settings:
        most = min(WARM_UP_TOKENS, setting.params.max_new_tokens)
        warm_ups.append((replace(setting, params=replace(setting.params, max_new_tokens=most)), longest))
    once = [(setting, prompt) for prompt in prompts for setting in settings]
    return warm_ups + repeats * once, once


def _generate(
    setting: Setting, prompt: str | list[int], is_stopped: Callable[[], bool], seconds: float
) -> Trace:
    with start_run(setting.pair, prompt, setting.params, measure=False, is_over=is_stopped) as run:
        for _ in run:
            if is_stopped():
                break
        if seconds:
            for _ in run.time_in_turns(seconds, is_stopped, ENOUGH):
                pass
    return run.trace


def rows_of(settings: Sequence[Setting], samples: dict[str, list[Trace]]) -> list[MethodRow]:
    """The rows, fastest first. All of them are over the same prompts: what is measured of an unfinished turn
    waits for its end, except in the first one."""
    started = [setting for setting in settings if samples[setting.name]]
    count = max(1, min(map(len, samples.values())))
    plain = next((setting for setting in started if setting.params.draft_with == "none"), None)
    used = {setting.name: samples[setting.name][:count] for setting in started}
    if in_turns := plain is not None and are_in_turns(used.values()):
        steps_ms = [one.stats.target_step_ms for own in used.values() for one in own]
        used = {name: [at_pace(one, fmean(steps_ms)) for one in own] for name, own in used.items()}
    rows = []
    for setting in started:
        own, theirs = used[setting.name], used[plain.name] if plain else []
        both_greedy = plain is not None and setting.params.temperature == plain.params.temperature == 0
        rows.append(_row(setting, own, theirs, both_greedy, in_turns))
    return sorted(rows, key=lambda row: row.tokens_per_second, reverse=True)


def are_in_turns(samples: Iterable[list[Trace]]) -> bool:
    """Whether all of them were timed in turns with plain rounds: nothing else tells a target's step here."""
    return all(one.stats.target_step_ms is not None for own in samples for one in own)


def at_pace(trace: Trace, step_ms: float) -> Trace:
    """The trace with its times as they would be where a plain round takes `step_ms`, which is what is known
    best of runs that were timed in turns with plain rounds. So figures of different runs follow from each
    other."""
    stats, is_plain = trace.stats, trace.params.draft_with == "none"
    assert stats.target_step_ms is not None
    pace = stats.tokens * step_ms / stats.run_ms if is_plain else step_ms / stats.target_step_ms
    times = {name: pace * getattr(stats, name) for name in ("draft_ms", "verify_ms")}
    return replace(trace, stats=replace(stats, **times, target_step_ms=step_ms))


def _row(
    setting: Setting, samples: list[Trace], plain: list[Trace], texts_are_equal: bool, in_turns: bool
) -> MethodRow:
    """The setting's row. plain: the runs of the target alone, on the same prompts in the same order; empty if
    it is not measured. texts_are_equal: whether the texts should equal plain's. in_turns: whether all were
    timed in turns with plain rounds, and are at one pace."""
    params = setting.params

    def sum_of(name: str) -> float | None:
        """The sum over all samples; None where one is unknown."""
        return reduce(total, (getattr(one.stats, name) for one in samples), 0.0)

    rounds, accepted = sum_of("rounds"), sum_of("accepted")
    draft_ms, verify_ms = (ratio(sum_of(part), rounds) for part in ("draft_ms", "verify_ms"))
    if in_turns:
        (stats,) = (one.stats for one in samples)
        found, plain_ms = SpeedUp(stats.speedup, *stats.speedup_interval), stats.target_step_ms
    else:
        own_rounds, plain_rounds = ([timed(one.rounds) for one in some] for some in (samples, plain))
        found = speed_up(plain_rounds, own_rounds)
        plain_ms = ratio(sum(one.ms for some in plain_rounds for one in some), sum(map(len, plain_rounds)))
    is_plain, has_drafter = params.draft_with == "none", METHODS[params.draft_with].needs_drafter
    equal = [one.output_ids == other.output_ids for one, other in zip(samples, plain, strict=False)]
    return MethodRow(
        name=setting.name,
        draft_with=params.draft_with,
        manner=manner_of(params.draft_with, _kind(setting.pair.info)),
        gamma=None if is_plain or params.tree else params.gamma,
        tree=tree_text(params.tree),
        drafted_per_round=ratio(sum_of("drafted"), rounds),
        accepted_per_round=accepted / rounds,
        tokens_per_round=sum_of("tokens") / rounds,
        acceptance_rate=ratio(accepted, total(accepted, sum_of("rejected"))),
        draft_ms_per_round=draft_ms,
        verify_ms_per_round=verify_ms,
        plain_rounds_per_round=ratio(total(draft_ms, verify_ms), plain_ms),
        tokens_per_second=1000 * sum_of("timed_tokens") / sum_of("run_ms"),
        speedup=found and (1.0 if is_plain else found.value),
        speedup_interval=found.interval if found and not is_plain else None,
        drafter_bytes=setting.pair.drafter_bytes if has_drafter else None,
        texts_equal=f"{sum(equal)} of {len(equal)}" if texts_are_equal else None,
        samples=len(samples),
    )


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
