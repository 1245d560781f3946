"""The advice in words, as text, as JSON, and as a page. Without torch."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
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
    Measured,
    Recommendation,
    work_in_words,
)
from specdemo.measure.table import Column, Table, shown, with_interval
from specdemo.measure.typed import ServerCommand, typed_into
from specdemo.words.catalogue import number, say, spoken
from specdemo.words.message import Message

TEMPLATE = Path(__file__).with_name("report.html")


def advice_in_words(measured: Measured) -> dict[str, Any]:
    """In the language that is spoken: what to set for each kind of work and why, what several requests
    at once bring, what to type into servers, and the table of all that was measured."""
    recommended, table = recommendations(measured), settings_table(measured)
    return {
        "advised": [
            {
                "work": work_in_words(one.work),
                "setting": _setting(one),
                "reason": one.reason,
                "pays": one.draft_with not in (None, "none"),
            }
            for one in recommended
        ],
        "ended": say(f"advice.ended.{measured.ended}", seconds=number(measured.seconds, ",.0f")),
        "requests": _requests(measured, recommended[-1]),
        "typed": [asdict(one) | {"notes": said(one.notes)} for one in _typed(measured, recommended[-1])],
        "columns": table.headings,
        "rows": table.cells,
    }


def said(notes: Sequence[Message | str]) -> list[str]:
    return [note.said() if isinstance(note, Message) else note for note in notes]


def _setting(one: Recommendation) -> str:
    """What to set, where that is known."""
    if one.best is None:
        is_reached = one.prompts or not one.is_provisional
        return say("advice.not_known" if is_reached else "advice.not_measured")
    setting = say("advice.no_speculation") if one.draft_with == "none" else called(one.best)
    return say("advice.provisional", setting=setting) if one.is_provisional else setting


def settings_table(measured: Measured) -> Table[SettingRow]:
    """All settings that were measured, by kinds of work."""
    texts: dict[str, Callable[[SettingRow], str]] = {
        "work": lambda row: work_in_words(row.work),
        "setting": lambda row: called(row.setting),
        "speedup": _speedup,
        "beside": lambda row: say(f"advice.beside.{row.beside}") if row.beside else "–",
        "accepted": lambda row: shown(row.acceptance_rate, ".0%"),
        "tokens": lambda row: shown(row.tokens_per_round),
        "cost": lambda row: shown(row.cost if row.speedup and is_told(row.speedup) else None),
        "prompts": lambda row: number(row.prompts),
    }
    left = ("work", "setting")
    columns = [Column(say(f"advice.columns.{name}"), text, name in left) for name, text in texts.items()]
    return Table(columns, [row for work in measured.answered for row in rows_of(measured, work)])


def _dropped(measured: Measured) -> str:
    """Why some settings have fewer prompts than others in one kind of work; empty where none has."""
    rows = settings_table(measured).rows
    counts = {(row.work, row.prompts) for row in rows}
    return say("advice.dropped") if len(counts) > len({row.work for row in rows}) else ""


def _speedup(row: SettingRow) -> str:
    if row.speedup is None:
        return "–"
    if not is_told(row.speedup):
        return say("advice.too_wide")
    return with_interval(row.speedup.value, row.speedup.interval)


def advice_text(measured: Measured) -> str:
    """For each kind of work what to set and why; then what several requests at once bring, all that was
    measured, and what to type into servers."""
    words = advice_in_words(measured)
    width = max(len(one["work"]) for one in words["advised"])
    advised = [
        f"{one['work'].ljust(width)}  {one['setting']}\n{' ' * width}  {one['reason']}"
        for one in words["advised"]
    ]
    parts = [head_in_words(measured), "\n".join(advised), "\n".join(words["requests"])]
    if words["rows"]:
        parts.append("\n".join(filter(None, [str(settings_table(measured)), _dropped(measured)])))
    parts += ["\n".join(f"note: {note}" for note in said(measured.notes)), words["ended"]]
    if typed := words["typed"]:
        parts.append(f"{say('advice.typed')}:")
    for one in typed:
        notes = [f"note: {note}" for note in one["notes"]]
        parts.append("\n".join(filter(None, [one["server"], one["command"], *notes])))
    return "\n\n".join(filter(None, parts)) + ("\n" if typed else "")


def _typed(measured: Measured, one: Recommendation) -> list[ServerCommand]:
    """What is recommended, as what is typed into servers; nothing where none is known."""
    if one.best is None:
        return []
    contender = contender_of(measured, one.best)
    draft_with = "none" if one.draft_with == "none" else contender.draft_with
    how = {"draft_with": draft_with, "gamma": one.best.gamma}
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


def _requests(measured: Measured, best: Recommendation) -> list[str]:
    """What the best setting for all of the work brings with several requests at once."""
    found, even = concurrent(measured, best)
    if not any(sum(one.drafted) for one in (*measured.probes, *measured.samples)):
        return []
    if even is None:
        return [say("advice.concurrent_unknown")] if best.best else []
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


def advice_object(measured: Measured) -> dict[str, Any]:
    """The last line of the command: what is recommended, and the rows behind it."""
    recommended = recommendations(measured)
    of_all = recommended[-1]
    by_work = {one.work: asdict(one) for one in recommended} | {ALL: asdict(of_all)}
    for one in by_work.values():
        del one["work"]
    requests, even = concurrent(measured, of_all)
    counted = {"setting": of_all.best and asdict(of_all.best), "break_even_rows": even}
    counted["requests"] = list(map(asdict, requests))
    rows = list(map(asdict, settings_table(measured).rows))
    how = asdict(replace(measured, samples=(), probes=()))
    del how["samples"], how["probes"]
    return {"recommendation": by_work, "rows": rows, "concurrent": counted, **how}


def page_of(measured: Measured) -> str:
    """The page, in the language that is spoken."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        advice_in_words(measured),
        head=head_in_words(measured),
        dropped=_dropped(measured),
        notes=said(measured.notes),
        measured=measured,
        language=spoken(),
        say=say,
    )
