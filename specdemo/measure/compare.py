"""Drafters in turns on the same prompts, as a table that grows while they are measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import reduce
from statistics import fmean
from time import perf_counter

from specdemo.drafters.table import kind_in
from specdemo.errors import CannotReadTrees, LoadError
from specdemo.events import METHODS, PairInfo, Params, drafter_label, manner_of, rule_in_words
from specdemo.events.metrics import ratio, total
from specdemo.events.params import DraftTree, takes_tree, tree_text, values_of_rule
from specdemo.events.speedup import (
    FEWEST_TURNS,
    SpeedUp,
    TimedTurn,
    is_wide,
    speed_up,
    speed_up_in_turns,
    timed,
)
from specdemo.events.trace import Trace
from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.loading.pair import AnyPair, Pair
from specdemo.measure.table import WARM_UP_TOKENS, MethodRow, MethodsResult, is_untimed, usual_tree
from specdemo.measure.winner import winner
from specdemo.session import run_in_turns
from specdemo.words.catalogue import speaking
from specdemo.zero import start_run

WITH_PLAIN = 1.7  # times as long as a run takes one in turns with plain rounds, until it is known


@dataclass(frozen=True)
class Setting:
    """One row to measure. name: the row's name, which no other row has. is_extra: whether it is left out
    where it turns out that the pair's models cannot read its trees."""

    name: str
    pair: AnyPair
    params: Params
    is_extra: bool = False


Text = tuple[Setting, str | list[int]]  # to be written
Turns = dict[str, list[TimedTurn]]  # by the names of the settings


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
    in_turns: int = 0,
) -> Iterator[Comparison]:
    """Measures every setting on every prompt `repeats` times, in turns, after a warm-up of each. Yields what
    is measured so far after each generation. To stop, close the iterator; is_stopped, asked again and again,
    stops within a generation, which then does not count. in_turns: how often to measure with the rounds of
    each generation in turns with plain ones (`run_in_turns`). The speed-ups are by these turns, and only
    where a setting's are too few for that is everything measured `repeats` times.

    Raises as `stream` does, when a pair is busy or cannot take a prompt."""
    assert len({setting.name for setting in settings}) == len(settings), "each needs a name of its own"
    settings, done = list(settings), 0
    todo, once = _in_turn(settings, prompts, in_turns or repeats)
    samples: dict[str, list[Trace]] = {setting.name: [] for setting in settings}
    turns: Turns = {setting.name: [] for setting in settings} if in_turns else {}
    took: dict[str, list[float]] = {setting.name: [] for setting in settings}  # seconds, the warm-up first
    rows: list[MethodRow] = []
    while done < len(todo):
        setting, prompt = todo[done]
        begun, is_warm_up = perf_counter(), done < len(settings)
        try:
            trace, its_turns = _generate(setting, prompt, is_stopped, bool(in_turns) and not is_warm_up)
        except CannotReadTrees:
            if not setting.is_extra:
                raise
            settings = [one for one in settings if one.name != setting.name]
            todo, once = _in_turn(settings, prompts, in_turns or repeats)
            del samples[setting.name], took[setting.name]
            turns.pop(setting.name, None)
            continue
        done += 1
        if trace.finish == "cancelled":
            return
        untimed = "so there is nothing to time"
        if trace.stats.timed_tokens < 1:
            raise LoadError(f"{setting.pair.info.name} has sent one token, {untimed}")
        if not trace.stats.run_ms:
            proxy = "is there a proxy before it that collects what it sends?"
            raise LoadError(f"{setting.pair.info.name} has sent its whole text at once, {untimed}: {proxy}")
        took[setting.name].append(perf_counter() - begun)
        if not is_warm_up:
            samples[setting.name].append(trace)
            if in_turns:
                turns[setting.name] += its_turns
            if setting is settings[-1] or not all(samples.values()):
                rows = rows_of(settings, samples, turns)
        if in_turns and done == len(todo) and any(len(own) < FEWEST_TURNS for own in turns.values()):
            todo += max(0, repeats - in_turns) * once
            in_turns = 0
        following = todo[done][0].name if done < len(todo) else None
        latest = {name: own[-1] for name, own in samples.items() if own}
        left = _seconds(todo[done:], took, WITH_PLAIN if turns else 1.0)
        passes = (len(todo) - len(settings)) // len(once)
        yield Comparison(done, len(todo), left, passes, following, rows, latest)


def _seconds(todo: Sequence[Text], took: dict[str, list[float]], longer: float) -> float:
    """What these texts will take: each as long as others of its setting, and before there are any by its
    warm-up; a setting of which nothing is known is like the others. longer: how many times as long as such a
    run they take."""
    known: dict[str, float] = {}
    for setting, _ in todo:
        warm_up, *others = took[setting.name] or [0.0]
        most = setting.params.max_new_tokens
        known[setting.name] = fmean(others) if others else longer * warm_up * max(1.0, most / WARM_UP_TOKENS)
    usual = fmean([one for one in known.values() if one] or [0.0])
    warm_ups = [own[0] for own in took.values() if own]
    cold = sum(not own for own in took.values())
    full = [known[setting.name] or usual for setting, _ in todo[cold:]]
    return sum(full) + cold * fmean(warm_ups or [0.0])


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
    setting: Setting, prompt: str | list[int], is_stopped: Callable[[], bool], in_turns: bool
) -> tuple[Trace, list[TimedTurn]]:
    if in_turns:
        assert isinstance(setting.pair, Pair), "what runs here"
        return run_in_turns(setting.pair, prompt, setting.params, is_stopped)
    with start_run(setting.pair, prompt, setting.params, measure=False, is_over=is_stopped) as run:
        for _ in run:
            if is_stopped():
                break
    return run.trace, []


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
    found, plain_ms = dict[str, SpeedUp | None](), None
    if plain and turns:
        for name, own in used.items():
            rounds = [one for trace in own for one in timed(trace.rounds)]
            found[name] = speed_up_in_turns(turns[name], rounds)
        found[plain.name] = found[plain.name] and SpeedUp(1.0, 1.0, 1.0)
    speedups = {name: one for name, one in found.items() if one}
    if speedups and len(speedups) == len(used):
        # What is known best is by how many plain rounds a round lasts, so all are told at one pace: that at
        # which a plain round takes what it took on average.
        steps_ms = {}
        for name, own in used.items():
            run_ms, tokens = (sum(getattr(one.stats, part) for one in own) for part in ("run_ms", "tokens"))
            steps_ms[name] = speedups[name].value * run_ms / tokens
        plain_ms = fmean(steps_ms.values())
        used = {name: [at_pace(one, plain_ms / steps_ms[name]) for one in own] for name, own in used.items()}
    rows = []
    for setting in started:
        own, theirs = used[setting.name], used[plain.name] if plain else []
        both_greedy = plain is not None and setting.params.temperature == plain.params.temperature == 0
        by_turns = (speedups[setting.name], plain_ms) if plain_ms else None
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
