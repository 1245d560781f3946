"""The advice as text, as JSON, and as a page that keeps all that was measured. Without torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment

from specdemo.events import Params
from specdemo.events.params import depth_of
from specdemo.measure.decide import (
    FIRST_TEXT,
    PROBED,
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
    Together,
    to_object,
    work_in_words,
)
from specdemo.measure.table import Column, Table, shown, with_interval
from specdemo.measure.typed import Typed, typed_into
from specdemo.words.catalogue import number, say, spoken

TEMPLATE = Path(__file__).with_name("report.html")
TOLD_ROWS = (2, 5, 9, 17)  # of checks
PLACES = (1, 2, 3, 4, 6, 8)  # in a draft, of which the first texts tell


@dataclass(frozen=True)
class Advice:
    """What was measured, and what to set for each kind of work."""

    measured: Measured
    recommended: list[Recommendation]


def advice_of(measured: Measured) -> Advice:
    return Advice(measured, recommendations(measured))


def setting_in_words(one: Recommendation) -> str:
    """What to set, where that is known."""
    if one.best is None:
        is_reached = one.prompts or not one.is_provisional
        return say("advice.not_known" if is_reached else "advice.not_measured")
    setting = say("advice.no_speculation") if one.draft_with == "none" else called(one.best)
    return say("advice.provisional", setting=setting) if one.is_provisional else setting


def settings_table(advice: Advice) -> Table[SettingRow]:
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


def probes_table(measured: Measured) -> Table[Together]:
    """What the first texts of each contender say in a kind of work."""

    def accepted(place: int) -> Column[Together]:
        heading = say("positions.place", place=place)
        return Column(heading, lambda texts: shown(texts.share_above("accepted", place)[-1], ".0%"))

    work, drafter, cost = (say(f"advice.{name}") for name in ("columns.work", "probe_drafter", "probe_cost"))
    columns = [
        Column[Together](work, lambda texts: work_in_words(texts.samples[0].work), is_left=True),
        Column[Together](drafter, lambda texts: texts.samples[0].setting.contender, is_left=True),
        *map(accepted, PLACES),
        Column[Together](cost, lambda texts: shown(texts.draft_cost)),
    ]
    found = []
    for work, contender in product(measured.works, measured.contenders):
        of_work = [one for one in measured.probes if one.work == work and one.turns]
        if own := tuple(one for one in of_work if one.setting.contender == contender.name):
            found.append(Together(own))
    return Table(columns, found)


def probes_in_words() -> str:
    return say("advice.probes", most=PROBED, tokens=FIRST_TEXT)


def advice_text(advice: Advice) -> str:
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
    if (probes := probes_table(measured)).rows:
        parts.append(f"{probes_in_words()}\n{probes}")
    parts += ["\n".join(f"note: {note}" for note in measured.notes), ended_in_words(measured)]
    if typed := typed_of(advice):
        parts.append(f"{say('advice.typed')}:")
    for one in typed:
        notes = [f"note: {note}" for note in one.notes]
        parts.append("\n".join(filter(None, [one.server, one.command, *notes])))
    return "\n\n".join(filter(None, parts)) + ("\n" if typed else "")


def typed_of(advice: Advice) -> list[Typed]:
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


def requests_in_words(advice: Advice) -> list[str]:
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


def advice_object(advice: Advice) -> dict[str, Any]:
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


def page_of(advice: Advice) -> str:
    """The page, in the language that is spoken."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    called_by_template = (say, head_in_words, work_in_words, setting_in_words, ended_in_words)
    called_by_template += (checks_in_words, requests_in_words, probes_in_words, typed_of)
    called_by_template += (settings_table, probes_table, speedups_picture, curves_pictures)
    environment.globals.update({function.__name__: function for function in called_by_template})
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    kept = json.dumps(to_object(advice.measured)).replace("<", "\\u003c")
    return template.render(advice=advice, measured=advice.measured, kept=kept, language=spoken())


# The pictures, which report.html draws: what is where, in px.
WIDTH, FLOOR, TOP, LEFT = 440, 182, 12, 42  # LEFT: of a curve's axis


class Curves(NamedTuple):
    """Curves over one x axis, from 0 up. label: for those who do not see it. levels, places: numbers at the
    axes, by where they are. lines: points of polylines, by what they show."""

    caption: str
    label: str
    x_label: str
    levels: dict[float, str]
    places: dict[float, str]
    lines: dict[str, str]


def speedups_picture(advice: Advice) -> tuple[list[tuple[str, str, float, float, float]], float]:
    """Factors on one logarithmic axis: what each is, its value in words, where it and its ends are; and where
    1 is."""
    found = [one for one in advice.recommended if one.best and one.speedup and one.interval]
    ends = [1.0, *(end for one in found for end in one.interval)]
    x = _axis(log2(min(ends)), log2(max(ends)), 6, WIDTH - 6)
    rows = []
    for one in found:
        label = f"{work_in_words(one.work)}: {called(one.best)}"
        value, low, high = (x(log2(factor)) for factor in (one.speedup, *one.interval))
        rows.append((label, f"{with_interval(one.speedup, one.interval)} ×", value, low, high))
    return rows, x(0.0)


def curves_pictures(advice: Advice) -> list[Curves]:
    """What checks take; and of the setting that is best over all of the work, the share of rounds in which
    the drafts up to each place were accepted, by kind of work."""
    measured, best = advice.measured, advice.recommended[-1].best
    caption, x_label = say("advice.pictures.checks"), say("advice.pictures.rows")
    checks = {
        say("advice.pictures.after", context=number(context)): [(one.rows, one.ms) for one in times]
        for context, times in by_context(measured.checks).items()
    }
    found = [_curves(caption, caption, x_label, checks, ".1f")] if checks else []
    accepted = {}
    for work in measured.works if best else ():
        if own := tuple(one for one in measured.samples if (one.work, one.setting) == (work, best)):
            places = depth_of(contender_of(measured, best).tree) or max(max(one.drafted) for one in own)
            shares = Together(own).share_above("accepted", places)
            accepted[work_in_words(work)] = list(enumerate(shares, start=1))
    if best and any(accepted.values()):
        label = say("advice.pictures.acceptance", name=called(best))
        caption, x_label = say("advice.pictures.by_place"), say("advice.pictures.places")
        found.append(_curves(caption, label, x_label, accepted, ".0%"))
    return found


def _curves(
    caption: str, label: str, x_label: str, found: Mapping[str, Sequence[tuple[int, float]]], form: str
) -> Curves:
    """found: points (x, y), by x, of each curve."""
    points = [point for curve in found.values() for point in curve]
    across, top = sorted({x for x, _ in points}), max(y for _, y in points)
    x, y = _axis(across[0], across[-1], LEFT, WIDTH - 14), _axis(0.0, top, FLOOR, TOP)
    levels = {y(level): number(level, form) for level in (0.0, top / 2, top)}
    places = {x(at): str(at) for at in across}
    lines = {name: " ".join(f"{x(at)},{y(value)}" for at, value in own) for name, own in found.items() if own}
    return Curves(caption, label, x_label, levels, places, lines)


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Puts values from low to high between two places."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low or 1.0), 1)
