"""The advice as text, as JSON, and as a page that keeps all that was measured. Without torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from math import log2
from pathlib import Path
from typing import Any

from jinja2 import Environment

from specdemo.events import Params
from specdemo.measure.decide import (
    SettingRow,
    called,
    concurrent,
    contender_of,
    is_told,
    recommendations,
    rows_of,
)
from specdemo.measure.results import (
    ALL,
    CheckTime,
    Measured,
    Recommendation,
    to_object,
    work_in_words,
)
from specdemo.measure.table import Column, Table, shown, with_interval
from specdemo.measure.typed import ServerCommand, typed_into
from specdemo.words.catalogue import number, say, spoken

TEMPLATE = Path(__file__).with_name("report.html")
TOLD_ROWS = (2, 5, 9, 17)  # of checks


@dataclass(frozen=True)
class AdviceReport:
    """What was measured, and what to set for each kind of work."""

    measured: Measured
    recommended: list[Recommendation]


def advice_of(measured: Measured) -> AdviceReport:
    return AdviceReport(measured, recommendations(measured))


def setting_in_words(one: Recommendation) -> str:
    """What to set, where that is known."""
    if one.best is None:
        is_reached = one.prompts or not one.is_provisional
        return say("advice.not_known" if is_reached else "advice.not_measured")
    setting = say("advice.no_speculation") if one.draft_with == "none" else called(one.best)
    return say("advice.provisional", setting=setting) if one.is_provisional else setting


def settings_table(advice: AdviceReport) -> Table[SettingRow]:
    """All settings that were measured, by kinds of work."""
    texts: dict[str, Callable[[SettingRow], str]] = {
        "work": lambda row: work_in_words(row.work),
        "setting": lambda row: called(row.setting),
        "speedup": _speedup,
        "beside": lambda row: say(f"advice.beside.{row.beside}") if row.beside else "–",
        "accepted": lambda row: shown(row.acceptance_rate, ".0%"),
        "tokens": lambda row: shown(row.tokens_per_round),
        "cost": lambda row: shown(row.cost if _is_told(row) else None),
        "prompts": lambda row: number(row.prompts),
    }
    left = ("work", "setting")
    columns = [Column(say(f"advice.columns.{name}"), text, name in left) for name, text in texts.items()]
    return Table(columns, [row for one in advice.recommended for row in rows_of(advice.measured, one.work)])


def _is_told(row: SettingRow) -> bool:
    return row.speedup is not None and is_told(row.speedup)


def _speedup(row: SettingRow) -> str:
    if row.speedup is None:
        return "–"
    return with_interval(row.speedup.value, row.speedup.interval) if _is_told(row) else say("advice.too_wide")


def advice_text(advice: AdviceReport) -> str:
    """For each kind of work what to set and why; then what a check takes, all that was measured, and what to
    type into servers."""
    measured = advice.measured
    width = max(len(work_in_words(one.work)) for one in advice.recommended)
    advised = [
        f"{work_in_words(one.work).ljust(width)}  {setting_in_words(one)}\n{' ' * width}  {one.reason}"
        for one in advice.recommended
    ]
    told = [*checks_in_words(measured.checks), *requests_in_words(advice)]
    parts = [head_in_words(measured), "\n".join(advised), "\n".join(told)]
    if (settings := settings_table(advice)).rows:
        parts.append(f"{settings}\n{say('advice.dropped')}")
    parts += ["\n".join(f"note: {note}" for note in measured.notes), ended_in_words(measured)]
    if typed := typed_of(advice):
        parts.append(f"{say('advice.typed')}:")
    for one in typed:
        notes = [f"note: {note}" for note in one.notes]
        parts.append("\n".join(filter(None, [one.server, one.command, *notes])))
    return "\n\n".join(filter(None, parts)) + ("\n" if typed else "")


def typed_of(advice: AdviceReport) -> list[ServerCommand]:
    """The one setting for all of the work, as what is typed into servers; nothing where none is known."""
    measured, one = advice.measured, advice.recommended[-1]
    if one.best is None:
        return []
    contender = contender_of(measured, one.best)
    draft_with = "none" if one.draft_with == "none" else contender.draft_with
    how = {"draft_with": draft_with, "tree": contender.tree, "gamma": one.best.gamma or 1}
    params = Params(**(measured.params | how))
    return typed_into(measured.target, contender.drafter, contender.drafter_kind, params)


def head_in_words(measured: Measured) -> str:
    """How it was measured: the sampler by the names of Params, without what is off."""
    params, off = measured.params, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    filters = [name for name, value in off.items() if params["temperature"] and params[name] != value]
    sampler = ", ".join(f"{name} {number(params[name], 'g')}" for name in ("temperature", *filters))
    dtype = ", ".join(filter(None, (measured.dtype, measured.quantize.get("target"))))
    where = {"device": measured.device, "name": measured.device_name, "dtype": dtype}
    most = {"tokens": number(params["max_new_tokens"]), "date": measured.date}
    return say("advice.head", target=measured.target, sampler=sampler, **where, **most)


def ended_in_words(measured: Measured) -> str:
    """Why the measurement ended, and after how long."""
    return say(f"advice.ended.{measured.ended}", seconds=number(measured.seconds, ",.0f"))


def by_context(checks: Sequence[CheckTime]) -> dict[int, list[CheckTime]]:
    """The times by the text's length, each by their rows."""
    known = sorted(checks, key=lambda one: (one.context, one.rows))
    return {context: list(group) for context, group in groupby(known, key=lambda one: one.context)}


def checks_in_words(checks: Sequence[CheckTime]) -> list[str]:
    """A sentence for each length of text."""
    sentences = []
    for context, times in by_context(checks).items():
        more = [one for one in times if one.rows in TOLD_ROWS]
        ratios = ", ".join(with_interval(one.ratio, (one.low, one.high)) for one in more)
        rows, ms = ", ".join(str(one.rows) for one in more), number(times[0].ms, ".2f")
        sentences.append(say("advice.checks", context=number(context), ms=ms, rows=rows, times=ratios))
    return sentences


def requests_in_words(advice: AdviceReport) -> list[str]:
    """What the best setting for all of the work brings with several requests at once."""
    best = advice.recommended[-1]
    found, even = concurrent(advice.measured, best)
    if even is None:
        return [say("advice.concurrent_unknown")] if best.best and advice.measured.checks else []
    if not found or best.best is None:
        return []
    alone, *more = found
    each = []
    for one in more:
        speedup, rows = number(one.speedup, ".1f"), number(one.rows, ",.0f")
        each.append(say("advice.requests", requests=number(one.requests), speedup=speedup, rows=rows))
    of = {"setting": called(best.best), "measured": shown(alone.speedup), "each": ", ".join(each)}
    counted = say("advice.concurrent", **of)
    why = say("advice.concurrent_why", even=number(even, ",.0f"))
    return [f"{counted[0].upper()}{counted[1:]}", why]


def advice_object(advice: AdviceReport) -> dict[str, Any]:
    """The last line of the command: what is recommended, and the rows behind it."""
    best = advice.recommended[-1]
    recommended = {one.work: asdict(one) for one in advice.recommended} | {ALL: asdict(best)}
    for one in recommended.values():
        del one["work"]
    requests, even = concurrent(advice.measured, best)
    counted = {"setting": best.best and asdict(best.best), "break_even_rows": even}
    counted["requests"] = list(map(asdict, requests))
    rows = list(map(asdict, settings_table(advice).rows))
    kept = to_object(replace(advice.measured, samples=(), probes=()))
    del kept["samples"], kept["probes"]
    return {"recommendation": recommended, "rows": rows, "concurrent": counted, **kept}


def page_of(advice: AdviceReport) -> str:
    """The page, in the language that is spoken."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    called_by_template = (say, head_in_words, work_in_words, setting_in_words, ended_in_words)
    called_by_template += (checks_in_words, requests_in_words, typed_of, settings_table, speedups_picture)
    environment.globals.update({function.__name__: function for function in called_by_template})
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    kept = json.dumps(to_object(advice.measured)).replace("<", "\\u003c")
    return template.render(advice=advice, measured=advice.measured, kept=kept, language=spoken())


WIDTH = 640  # px, of the picture that report.html draws


def speedups_picture(advice: AdviceReport) -> tuple[list[tuple[str, str, float, float, float]], float]:
    """Factors on one logarithmic axis: what each is, its value in words, where it and its ends are; and where
    1 is."""
    found = [one for one in advice.recommended if one.best and one.speedup and one.interval]
    ends = [1.0, *(end for one in found for end in one.interval)]
    low, high = log2(min(ends)), log2(max(ends))

    def x(factor: float) -> float:
        return round(6 + (WIDTH - 12) * (log2(factor) - low) / (high - low or 1.0), 1)

    rows = []
    for one in found:
        label = f"{work_in_words(one.work)}: {called(one.best)}"
        words = f"{with_interval(one.speedup, one.interval)} ×"
        rows.append((label, words, x(one.speedup), *map(x, one.interval)))
    return rows, x(1.0)
