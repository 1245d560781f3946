"""The instruments that the server measures for: a race, draft lengths and drafters, which are comparisons
(measure/compare.py) of settings on prompts, the adviser, and those of other modules. Without Gradio.

A measurement waits in the same line as any run, and what is measured before it is stopped stays.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, replace
from random import SystemRandom
from typing import Any

from specdemo import zero
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
from specdemo.loading.catalog import WORKS, others_at_hand
from specdemo.loading.pair import AnyPair
from specdemo.measure import report
from specdemo.measure.advise import advise
from specdemo.measure.compare import Comparison, compare, result_of
from specdemo.measure.prompts import prompts_for, prompts_of
from specdemo.measure.results import work_in_words
from specdemo.measure.settings import EVERY, Setting, has_head, methods_at_hand, settings_for, with_trees
from specdemo.measure.table import MethodRow, Table, csv_of, method_columns, winner
from specdemo.ui.runs.guess import GuessRequest
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import Link, MeasurementRequest, in_thread, prompt_in_words
from specdemo.ui.runs.trials import WorldsRequest, trials_request
from specdemo.ui.view import feed
from specdemo.ui.view.feed import MEASUREMENT_KINDS
from specdemo.ui.view.settings import in_words, judging_in_words, length_in_words, sampler_in_words
from specdemo.ui.view.texts import drafter_in_words
from specdemo.words.catalogue import number, say
from specdemo.words.message import message
from specdemo.zero import can_be_timed_in_turns

ADVISE_SECONDS = 120.0
ADVISE_TOKENS = 96  # of a text, at most
SAVED_EVERY = 5.0  # s, after which the adviser's report is made anew


class ComparisonRequest(MeasurementRequest):
    """A race, draft lengths or drafters: settings on this prompt or on a set of prompts."""

    def __post_init__(self) -> None:
        self.is_set = self.wanted.get("prompts") == "set" and self.kind != "race"
        if self.is_set:
            most = min(self.params.max_new_tokens, feed.SET_TOKENS)
            self.params = replace(self.params, max_new_tokens=most)
        else:
            check_prompt(self.prompt)
        if self.kind != "compare" and self.params.draft_with == "none":
            raise ValueError(message("nothing_to_measure"))

    async def choices(self, models: Models) -> list[Choice]:
        others = []
        if models.is_server(self.choice):
            if self.kind == "gamma":
                raise PairError(message("servers_length"))
            others = await in_thread(models.beside, self.choice)
        elif self.kind == "compare":
            for name in others_at_hand(self.choice.pair or models.default):
                kind = "none" if has_head(name) else self.choice.quantize_drafter
                others.append(replace(self.choice, pair=name, quantize_drafter=kind))
        return [self.choice, *others]

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        settings, is_race = self.settings(pairs), self.kind == "race"
        prompts = prompts_for(pairs[0], feed.SET_SIZE) if self.is_set else [self.prompt]
        in_turns = not is_race and all(map(can_be_timed_in_turns, pairs))
        most = 1 if is_race else feed.REPEATS
        least = 1 if in_turns or self.is_set else most
        whose = self.whose(pairs, least, in_turns)
        news: dict[str, Any] = {"whose": whose, "text": say("run.warming_up"), "share": 0.0}
        yield news
        how = (most if in_turns else least, least, in_turns, lambda: ticket.is_over)
        for so_far in compare(settings, prompts, *how):
            share = max(news["share"], so_far.share)  # another pass can make it smaller
            news = news | {"share": share} | self._measured(settings, prompts, so_far)
            if in_turns and so_far.is_too_short:
                news["whose"] = say("run.too_short", whose=whose)
            if so_far.rows and so_far.measuring:
                measuring = next(one for one in settings if one.name == so_far.measuring)
                name = _name_on_page(measuring) if self.kind == "compare" else measuring.name
                news["text"] = say("run.measuring", name=name)
            yield news
            if ticket.is_over:
                return

    def settings(self, pairs: Sequence[AnyPair]) -> list[Setting]:
        """What is compared. pairs: as loaded by `choices`. Raises PairError with what is lacking."""
        params, (pair, *_) = self.params, pairs
        if not pair.runs_here:
            return settings_of_servers(self.kind, pairs, params)
        alone = Setting(words_of_row("methods", "none", "label"), pair, replace(params, draft_with="none"))
        if self.kind == "race":
            drafting = words_of_row("methods", params.draft_with, "label")
            name = ", ".join([drafting, *length_in_words(params), *judging_in_words(params)])
            return [alone, Setting(name, pair, params)]
        if self.kind == "gamma":
            gammas = sorted({*feed.GAMMAS, params.gamma} - {"auto"})
            lengths = {f"γ {gamma}": replace(params, gamma=gamma, tree=()) for gamma in gammas}
            return [alone, *(Setting(name, pair, length) for name, length in lengths.items())]
        if "exit_layer" not in METHODS[params.draft_with].fields:
            # The control of exit_layer is hidden, and can hold what another target allows.
            params = replace(params, exit_layer=0)
        return with_trees(settings_for(pairs, methods_at_hand(pair), params), params)

    def whose(self, pairs: Sequence[AnyPair], repeats: int, in_turns: bool) -> str:
        """What is compared and how often, in words."""
        info, params = pairs[0].info, self.params
        if self.kind != "race" and not info.server:  # each row has its own length or tree
            params = replace(params, tree=())
        where = info.name if info.server else say("run.on_device", name=info.name, device=info.device_name)
        of_set = {"size": feed.SET_SIZE, "most": params.max_new_tokens}
        prompts = say("run.prompt_set", **of_set) if self.is_set else prompt_in_words(self.prompt)
        parts = [prompts, where, *judging_in_words(params), sampler_in_words(params)]
        if params.temperature:
            parts.append(say("said.seed", seed=params.seed))
        if self.kind != "compare" and not info.server:
            parts.append(drafter_in_words(params, info))
        whose = ", ".join(parts)
        if self.kind == "race":
            return say("run.one_each", whose=whose)
        if in_turns:
            return say("run.in_turns", whose=whose)
        return whose if repeats == 1 else say("run.times", whose=whose, repeats=repeats)

    def _measured(
        self, settings: Sequence[Setting], prompts: Sequence[str], so_far: Comparison
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        drafted = [trace for trace in so_far.traces.values() if trace.params.draft_with != "none"]
        if self.kind == "race" and len(so_far.traces) == 2:
            result["race"] = race_of([so_far.traces[each.name] for each in settings], settings)
        elif self.kind == "gamma" and drafted:
            result["conditions"] = feed.conditions_of(drafted[0])
            rows = sorted(so_far.rows, key=lambda row: row.gamma or 0)
            result["gammas"] = [gamma_point(row) for row in rows]
        elif self.kind == "compare" and so_far.rows:
            as_file = result_of(settings, prompts, so_far.repeats, so_far.rows)
            result["comparison"] = comparison_of(settings, so_far.rows, as_file)
        return result


class AdviseRequest(MeasurementRequest):
    """The adviser: what pays for kinds of work, with the chosen pair and whatever else is at hand for its
    target."""

    def __post_init__(self) -> None:
        works = str(self.wanted.get("works", "")).split(",")
        if any(work not in WORKS for work in works):
            raise ValueError(message("advice_works", names=", ".join(map(work_in_words, WORKS))))
        self.works = tuple(dict.fromkeys(works))

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        pair = pairs[0]
        if zero.GPU is not None or not pair.runs_here:
            raise PairError(message("advise_not_here"))
        where = say("run.on_device", name=pair.info.target, device=pair.info.device_name)
        whose = f"{where}, {sampler_in_words(self.params)}"
        news: dict[str, Any] = {"whose": whose, "text": say("run.warming_up"), "share": 0.0}
        yield news
        most = min(ADVISE_TOKENS, self.params.max_new_tokens)
        params = replace(self.params, max_new_tokens=most, alternatives=0, tree=())
        command, saved = _command(self.works, params), 0.0
        how = (prompts_of(self.works), params, ADVISE_SECONDS, command, lambda: ticket.is_over)
        for progress in advise(pair, [EVERY], *how):
            measured = progress.measured
            is_over = measured.ended != "running"
            is_whole = is_over and measured.ended != "interrupted"
            left, spent = max(0.0, ADVISE_SECONDS - measured.seconds), ticket.seconds
            share = 1.0 if is_whole else min(0.99, spent / (spent + left or 1.0))
            news |= {"text": in_words(progress.doing), "share": share}
            if measured.samples or is_over:
                news |= {"advice": report.advice_in_words(measured)}
                if is_over or measured.seconds > saved + SAVED_EVERY:
                    saved = measured.seconds
                    self.report.append(report.page_of(measured))
            yield news


# What makes a request of each kind of what the page's script sends and the other fields of
# MeasurementRequest. The kind's panel is the tab of the same name.
INSTRUMENTS: dict[str, Callable[..., MeasurementRequest]] = {
    "race": ComparisonRequest,
    "gamma": ComparisonRequest,
    "compare": ComparisonRequest,
    "advise": AdviseRequest,
    "guess": GuessRequest,
    "trials": trials_request,
    "worlds": WorldsRequest,
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


def settings_of_servers(kind: str, pairs: Sequence[AnyPair], params: Params) -> list[Setting]:
    """pairs: the chosen server, and the others with the same model. Raises PairError with what is lacking."""
    alone, drafting = ([pair for pair in pairs if pair.drafts is drafts] for drafts in (False, True))
    if not alone or not drafting:
        key = "no_plain_server" if drafting else "no_drafting_server"
        raise PairError(message(key, name=pairs[0].server.model))
    used = [pairs[0] if pairs[0].drafts else drafting[0]] if kind == "race" else drafting
    names = [words_of_row("methods", "none", "label")]
    names += [say("run.drafting_pair", name=pair.info.name) for pair in used]
    compared = zip(names, [alone[0], *used], strict=True)
    return [Setting(name, pair, pair.check(params)) for name, pair in compared]


def _name_on_page(setting: Setting) -> str:
    """The name with the words for what drafts in place of its label, with which the name begins; that of a
    server as it is."""
    if not setting.pair.runs_here:
        return setting.name
    method, kind = setting.params.draft_with, setting.pair.info.drafter_kind
    label = words_of_row("methods", method, "label")
    if METHODS[method].is_by_drafter and kind in DRAFTER_KINDS:
        label = words_of_row("kinds", kind, "label")
    name = label + setting.name.removeprefix(drafter_label(method, kind))
    if not (tree := as_text(setting.params.tree)):
        return name
    return f"{name.removesuffix(f', tree {tree}')}, {say('said.tree', value=tree)}"


def race_of(traces: Sequence[Trace], settings: Sequence[Setting]) -> dict[str, Any]:
    """The target alone and the run with drafts. What is said is said of the latter, whose plain rounds are
    those of the former."""
    alone, drafted = traces
    of_race, plain_ms = copy(drafted), [one.ms for one in timed(alone.rounds)]
    of_race.stats = after_plain_rounds(drafted.stats, drafted.rounds, plain_ms)
    stats, speedup, result = of_race.stats, "", verdict(of_race, of_race.finish, _of_race_in_words)
    if stats.speedup is not None and stats.speedup_interval is not None:
        speedup = speedup_in_words(stats.speedup_interval, stats.speedup)
    return {
        "lanes": [_lane(trace, setting.name) for trace, setting in zip(traces, settings, strict=True)],
        "verdict": f"{result.text} {same_text(alone, drafted)}",
        "speedup": speedup,
        "tone": result.tone,
    }


def _of_race_in_words(key: str, **values: object) -> str:
    """The words of a race's verdict. They are like those of a run's verdict, but what was measured was
    measured in the race, where the target alone may have written a text of another length."""
    return say(
        f"said.{'race' if key in ('counted', 'unclear', 'faster', 'busy') else 'verdict'}.{key}", **values
    )


def _lane(trace: Trace, title: str) -> dict[str, Any]:
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


def gamma_point(row: MethodRow) -> dict[str, Any]:
    low, high = (row.speedup and row.speedup_interval) or (None, None)
    return {
        "gamma": row.gamma or 0,
        "speedup": row.speedup,
        "low": low,
        "high": high,
        "tokens_per_round": row.tokens_per_round,
        "runs": row.samples,
    }


def comparison_of(
    settings: Sequence[Setting], rows: Sequence[MethodRow], as_file: dict[str, Any]
) -> dict[str, Any]:
    by_name = {one.name: one for one in settings}
    on_page = [replace(row, name=_name_on_page(by_name[row.name])) for row in rows]
    table = Table(method_columns(), on_page)
    return {
        "columns": table.headings,
        "rows": table.cells,
        "winner": winner(on_page),
        "csv": csv_of(rows),
        "json": json.dumps(as_file, indent=1, default=asdict),
    }


def _command(works: tuple[str, ...], params: Params) -> str:
    """What would measure the same, but for the pair, which the report names."""
    options = [f"--work={','.join(works)}", f"--budget={ADVISE_SECONDS:g}s"]
    for name in ("temperature", "top_k", "top_p", "min_p", "rule", "seed", "max_new_tokens"):
        options.append(f"--{name.replace('_', '-')}={getattr(params, name)}")
    if params.chat:
        options.append("--chat")
    return shlex.join(["python", "-m", "specdemo", "advise", *options])
