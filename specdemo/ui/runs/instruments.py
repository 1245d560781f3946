"""The instruments that the server measures for, and the three that are comparisons (measure/compare.py) of
settings on prompts: a race, draft lengths, drafters. Without Gradio.

A measurement waits in the same line as any run, and what is measured before it is stopped stays.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from random import SystemRandom
from typing import Any, Literal

from specdemo.errors import PairError
from specdemo.events import (
    DRAFTER_KINDS,
    METHODS,
    Params,
    check_prompt,
    drafter_label,
    is_lossy,
    words_of_row,
)
from specdemo.events.params import as_text
from specdemo.events.speedup import after_plain_rounds, timed
from specdemo.events.trace import Trace, round_objects
from specdemo.events.verdict import speedup_in_words, verdict
from specdemo.loading.catalog import others_at_hand
from specdemo.loading.pair import AnyPair, Pair
from specdemo.measure.compare import Comparison, compare, result_of
from specdemo.measure.prompts import prompts_for
from specdemo.measure.settings import Setting, has_head, methods_at_hand, settings_for, with_trees
from specdemo.measure.table import MethodRow, Table, csv_of, method_columns, spoken_of, winner
from specdemo.servers.software import ServedPair
from specdemo.ui.runs.advise import advise_request
from specdemo.ui.runs.guess import guess_request
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import Link, MeasurementRequest, Wanted, in_thread, prompt_in_words
from specdemo.ui.runs.trials import trials_request, worlds_request
from specdemo.ui.view import feed, wire
from specdemo.ui.view.settings import judging_in_words, length_in_words, sampler_in_words
from specdemo.ui.view.texts import drafter_in_words, number_texts, whose
from specdemo.ui.view.wire import MEASUREMENT_KINDS, MeasurementKind
from specdemo.words.catalogue import number, say
from specdemo.words.message import message
from specdemo.zero import can_be_timed_in_turns


@dataclass(frozen=True)
class ComparisonRequest(MeasurementRequest):
    """A comparison. prompts: what is run, "this" prompt or a "set"."""

    prompts: Literal["this", "set"]

    async def choices(self, models: Models) -> list[Choice]:
        return [self.choice, *await _others(models, self)]

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        plan_of = PLANS[self.kind] if pairs[0].runs_here else plan_of_servers
        plan = plan_of(self, list(pairs))
        told: dict[str, Any] = {"whose": plan.whose, "text": say("run.warming_up"), "share": 0.0}
        yield told
        how = {"is_stopped": lambda: ticket.is_over, "in_turns": plan.in_turns}
        for so_far in compare(plan.settings, plan.prompts, plan.repeats, **how):
            told = told | {"share": so_far.share} | found(self, plan, so_far)
            if plan.repeated and so_far.repeats > plan.in_turns[-1]:
                told["whose"] = plan.repeated
            if so_far.rows and so_far.measuring:
                name = plan.names.get(so_far.measuring, so_far.measuring)
                told["text"] = say("run.measuring", name=name)
            yield told
            if ticket.is_over:
                return


@dataclass(frozen=True)
class MeasurementPlan:
    """What is compared. whose: what is compared, in words. in_turns: see `compare`. repeated: what is said in
    place of `whose` where runs were too short to be timed in turns. names: what the page calls a setting,
    where that is not the setting's own name, which files have. abouts: by the settings' names, what they do.
    firsts: the names of those that are shown at first; empty: all."""

    settings: list[Setting]
    prompts: Sequence[str]
    repeats: int
    whose: str
    in_turns: Sequence[int] = ()
    repeated: str = ""
    names: dict[str, str] = field(default_factory=dict)
    abouts: dict[str, str] = field(default_factory=dict)
    firsts: Sequence[str] = ()


def comparison(wanted: Wanted, choice: Choice, prompt: str, params: Params, link: Link) -> ComparisonRequest:
    """The comparison that the page's script asks for, by its kind and prompts."""
    prompts = wanted.get("prompts", "this")
    if prompts == "this":
        check_prompt(prompt)
    if wanted["kind"] != "compare" and params.draft_with == "none":
        raise ValueError(message("nothing_to_measure"))
    return ComparisonRequest(wanted["kind"], choice, prompt, params, link, prompts)


# What makes a request of each kind of what the page's script sends and the fields of MeasurementRequest. It
# raises ValueError with one sentence. The kind's panel is the tab of the same name.
INSTRUMENTS: dict[MeasurementKind, Callable[[Wanted, Choice, str, Params, Link], MeasurementRequest]] = {
    "race": comparison,
    "gamma": comparison,
    "compare": comparison,
    "advise": advise_request,
    "guess": guess_request,
    "trials": trials_request,
    "worlds": worlds_request,
}


def measurement_request(
    wanted: object, choice: Choice, prompt: str, params: Params, link: Link = lambda *_: ""
) -> MeasurementRequest:
    """The measurement that the page's script asks for. wanted: what the script sends. Where no seed is set,
    one is drawn. Raises ValueError with one sentence."""
    sent = wanted if isinstance(wanted, dict) else {}
    if sent.get("kind") not in MEASUREMENT_KINDS or sent.get("prompts", "this") not in ("this", "set"):
        raise ValueError(
            f"a measurement must be one of {', '.join(MEASUREMENT_KINDS)}, not {ascii(wanted)[:60]}"
        )
    if params.seed is None:
        params = replace(params, seed=SystemRandom().randrange(2**32))
    return INSTRUMENTS[sent["kind"]](sent, choice, prompt, params, link)


async def _others(models: Models, request: ComparisonRequest) -> list[Choice]:
    """The other choices that are measured, besides the choice itself."""
    if models.is_server(request.choice):
        if request.kind == "gamma":
            raise PairError(message("servers_length"))
        return await in_thread(models.beside, request.choice)
    if request.kind != "compare":
        return []
    others = others_at_hand(request.choice.pair or models.default)
    quantize = {name: "none" if has_head(name) else request.choice.quantize_drafter for name in others}
    return [replace(request.choice, pair=name, quantize_drafter=kind) for name, kind in quantize.items()]


def _race(request: ComparisonRequest, pairs: list[Pair]) -> MeasurementPlan:
    params = request.params
    drafting = [_method(params.draft_with), *length_in_words(params), *judging_in_words(params)]
    settings = [_alone(pairs[0], params), Setting(", ".join(drafting), pairs[0], params)]
    whose = f"{_in_words(pairs, request)}, {drafter_in_words(params, pairs[0].info)}"
    return _plan(settings, pairs, request, whose)


def _alone(pair: Pair, params: Params) -> Setting:
    return Setting(_method("none"), pair, replace(params, draft_with="none"))


def _method(name: str) -> str:
    return words_of_row("methods", name, "label")


def _gammas(request: ComparisonRequest, pairs: list[Pair]) -> MeasurementPlan:
    params = request.params
    gammas = sorted({*feed.GAMMAS, params.gamma} - {"auto"})
    settings = [_alone(pairs[0], params)]
    settings += [Setting(f"γ {gamma}", pairs[0], replace(params, gamma=gamma, tree=())) for gamma in gammas]
    whose = f"{_in_words(pairs, request, with_tree=False)}, {drafter_in_words(params, pairs[0].info)}"
    return _plan(settings, pairs, request, whose)


def _drafters(request: ComparisonRequest, pairs: list[Pair]) -> MeasurementPlan:
    params = request.params
    if "exit_layer" not in METHODS[params.draft_with].fields:
        # The control of exit_layer is hidden, and can hold what another target allows.
        params = replace(params, exit_layer=0)
    settings = with_trees(settings_for(pairs, methods_at_hand(pairs[0]), params), params)
    whose = _in_words(pairs, request, with_tree=False)  # each row has its own length or tree
    names = {one.name: _name_on_page(one) for one in settings}
    abouts = {one.name: _about(one) for one in settings}
    own = [one for one in settings if one.pair is pairs[0] and not one.params.tree]
    firsts = [one.name for one in own if one.params.draft_with in FIRST]
    return replace(_plan(settings, pairs, request, whose), names=names, abouts=abouts, firsts=firsts)


# The methods that are shown at first, of the pair's own: one of each kind of drafter.
FIRST = ("model", "mtp", "lookup", "ngram", "suffix", "none")


def _about(setting: Setting) -> str:
    method, kind = setting.params.draft_with, setting.pair.info.drafter_kind
    how = feed.how_in_words(method, kind) or say("compare.alone")
    return f"{how} {say('compare.in_trees')}" if setting.params.tree else how


def _name_on_page(setting: Setting) -> str:
    """The setting's name with the words for what drafts in place of its label, with which the name begins."""
    method, kind = setting.params.draft_with, setting.pair.info.drafter_kind
    label = _method(method)
    if METHODS[method].is_by_drafter and kind in DRAFTER_KINDS:
        label = words_of_row("kinds", kind, "label")
    name = label + setting.name.removeprefix(drafter_label(method, kind))
    if not (tree := as_text(setting.params.tree)):
        return name
    return f"{name.removesuffix(f', tree {tree}')}, {say('said.tree', value=tree)}"


PLANS: dict[MeasurementKind, Callable[[ComparisonRequest, list[Pair]], MeasurementPlan]] = {
    "race": _race,
    "gamma": _gammas,
    "compare": _drafters,
}


def plan_of_servers(request: ComparisonRequest, pairs: list[ServedPair]) -> MeasurementPlan:
    """What is compared on servers. pairs: the chosen server, and the others with the same model. Raises
    PairError with what is lacking."""
    alone, drafting = ([pair for pair in pairs if pair.drafts is drafts] for drafts in (False, True))
    if not alone or not drafting:
        key = "no_drafting_server" if drafting == [] else "no_plain_server"
        raise PairError(message(key, name=pairs[0].server.model))
    params = request.params
    used = [pairs[0] if pairs[0].drafts else drafting[0]] if request.kind == "race" else drafting
    settings = [Setting(_method("none"), alone[0], alone[0].check(params))]
    settings += [
        Setting(say("run.drafting_pair", name=pair.info.name), pair, pair.check(params)) for pair in used
    ]
    return _plan(settings, pairs, request, _in_words(pairs, request))


def _plan(
    settings: list[Setting], pairs: Sequence[AnyPair], request: ComparisonRequest, whose: str
) -> MeasurementPlan:
    if request.kind == "race":
        return MeasurementPlan(settings, [request.prompt], 1, say("run.one_each", whose=whose))
    in_turns = all(map(can_be_timed_in_turns, pairs))
    turns = say("run.in_turns", whose=whose)
    if request.prompts == "set":
        prompts = prompts_for(pairs[0], feed.SET_SIZE)
        return MeasurementPlan(settings, prompts, 1, turns if in_turns else whose, (1,) if in_turns else ())
    repeated = say("run.times", whose=whose, repeats=feed.REPEATS)
    if not in_turns:
        return MeasurementPlan(settings, [request.prompt], feed.REPEATS, repeated)
    return MeasurementPlan(settings, [request.prompt], feed.REPEATS, turns, feed.IN_TURNS, repeated)


def _in_words(pairs: Sequence[AnyPair], request: ComparisonRequest, with_tree: bool = True) -> str:
    info, params = pairs[0].info, request.params if with_tree else replace(request.params, tree=())
    where = info.name if info.server else say("run.on_device", name=info.name, device=info.device_name)
    seed = f", {say('said.seed', seed=params.seed)}" if params.temperature else ""
    judging = "".join(f"{words}, " for words in judging_in_words(params))
    is_set = request.prompts == "set"
    prompts = say("run.prompt_set", size=feed.SET_SIZE) if is_set else prompt_in_words(request.prompt)
    return f"{prompts}, {where}, {judging}{sampler_in_words(params)}{seed}"


def found(request: ComparisonRequest, plan: MeasurementPlan, so_far: Comparison) -> dict[str, Any]:
    result: dict[str, Any] = {}
    drafted = [trace for trace in so_far.traces.values() if trace.params.draft_with != "none"]
    if request.kind == "race" and len(so_far.traces) == 2:
        result["race"] = race_of([so_far.traces[each.name] for each in plan.settings], plan.settings)
    elif request.kind == "gamma" and drafted:
        result["conditions"] = feed.conditions_of(drafted[0])
        result["gammas"] = [gamma_point(row) for row in sorted(so_far.rows, key=lambda row: row.gamma or 0)]
    elif request.kind == "compare" and so_far.rows:
        rows = result_of(plan.settings, plan.prompts, so_far.repeats, so_far.rows)
        result["comparison"] = comparison_of(rows, plan)
    return result


def race_of(traces: Sequence[Trace], settings: Sequence[Setting]) -> wire.Race:
    alone, drafted = traces
    of_race, plain_ms = copy(drafted), [one.ms for one in timed(alone.rounds)]
    of_race.stats = after_plain_rounds(drafted.stats, drafted.rounds, plain_ms)
    stats, speedup = of_race.stats, ""
    if stats.speedup is not None and stats.speedup_interval is not None:
        speedup = speedup_in_words(stats.speedup_interval, stats.speedup)
    return {
        "lanes": [_lane(trace, setting.name) for trace, setting in zip(traces, settings, strict=True)],
        "verdict": same_text(alone, drafted),
        "speedup": speedup,
        "head": _head(of_race),
    }


def _head(of_race: Trace) -> wire.Head:
    """What stands over the panel while it shows the race. It describes the race's own run with drafts, whose
    plain rounds are those of the target alone."""
    result = verdict(of_race, of_race.finish, _of_race_in_words)
    return {
        "whose": say("run.this_race", whose=whose(of_race)),
        "numbers": number_texts(of_race),
        "verdict": result.text,
        "tone": result.tone,
    }


def _of_race_in_words(key: str, **values: object) -> str:
    """The words of a race's verdict. They are like those of a run's verdict, but what was measured was
    measured in the race, where the target alone may have written a text of another length."""
    return say(
        f"said.{'race' if key in ('counted', 'unclear', 'faster', 'busy') else 'verdict'}.{key}", **values
    )


def _lane(trace: Trace, title: str) -> wire.Lane:
    rounds = round_objects(trace.rounds)
    feed.cut_output(rounds, trace.text)
    for one in rounds:
        for token in feed.tokens_of(one):
            # What a token without a text stands for is told by its own row.
            token["top"] = [] if token["text"] else [row for row in token["top"] if row[0] == token["id"]]
    stats = trace.stats
    before_ms = stats.prefill_ms if trace.pair.server is None else stats.ttft_ms
    return {
        "title": title,
        "tokens": stats.tokens,
        "ms": sum(one.ms for one in trace.rounds),  # of a server from the request on
        "prefill_ms": before_ms,
        "rounds": rounds,
    }


def same_text(alone: Trace, drafted: Trace) -> str:
    """The sense in which the two texts of a race are the same, in words."""
    if is_lossy(drafted.params):
        return say("run.texts.lossy", rule=words_of_row("rules", drafted.params.rule, "name"))
    if alone.params.temperature and alone.pair.server is not None:
        return say("run.texts.served")
    if alone.params.temperature:
        lengths = {"alone": len(alone.output_ids), "drafted": len(drafted.output_ids)}
        if lengths["alone"] != lengths["drafted"]:
            return say("run.texts.sampled_lengths", **lengths)
        return say("run.texts.sampled")
    pairs = list(zip(alone.output_ids, drafted.output_ids, strict=False))
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    length = max(len(alone.output_ids), len(drafted.output_ids))
    if equal == length:
        return say("run.texts.identical", equal=number(equal), length=number(length))
    place = number(equal + 1)
    if alone.pair.server is not None:
        return say("run.texts.differ_served", place=place)
    return say("run.texts.differ", place=place, dtype=alone.pair.dtype.target)


def gamma_point(row: MethodRow) -> wire.GammaPoint:
    low, high = (row.speedup and row.speedup_interval) or (None, None)
    return {
        "gamma": row.gamma or 0,
        "speedup": row.speedup,
        "low": low,
        "high": high,
        "tokens_per_round": row.tokens_per_round,
        "runs": row.samples,
    }


def comparison_of(result: dict[str, Any], plan: MeasurementPlan) -> wire.ComparisonTable:
    own: list[MethodRow] = result["rows"]
    rows = [replace(row, name=plan.names.get(row.name, row.name)) for row in own]
    firsts = {*plan.firsts, *(row.name for row in spoken_of(own))}
    table = Table(method_columns(), rows)
    return {
        "columns": table.headings,
        "rows": table.cells,
        "abouts": [plan.abouts.get(row.name, "") for row in own],
        "firsts": [not plan.firsts or row.name in firsts for row in own],
        "winner": winner(rows),
        "csv": csv_of(own),
        "json": json.dumps(result, indent=1, default=asdict),
    }
