"""The advice as text, as JSON, and as a page that keeps all that was measured. Without torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment

from specdemo.events.params import depth_of
from specdemo.events.speedup import SpeedUp, is_wide
from specdemo.measure.decide import (
    FIRST_TEXT,
    PROBED,
    SettingRow,
    called,
    contender_of,
    recommendations,
    rows_of,
)
from specdemo.measure.pictures import Curve, Interval, curves, intervals
from specdemo.measure.results import (
    ALL,
    CheckTime,
    Measured,
    Recommendation,
    Together,
    to_object,
)
from specdemo.measure.table import aligned
from specdemo.measure.typed import Typed
from specdemo.words.catalogue import Numeral, number, numeral, say

TEMPLATE = Path(__file__).with_name("report.html")
TOLD_ROWS = (2, 5, 9, 17)  # of checks
PLACES = (1, 2, 3, 4, 6, 8)  # in a draft, of which the first texts tell
COLUMNS = ("work", "setting", "speedup", "beside", "accepted", "tokens", "cost", "prompts")


@dataclass(frozen=True)
class Advice:
    """What was measured, and what to set for each kind of work."""

    measured: Measured
    recommended: list[Recommendation]


def advice_of(measured: Measured) -> Advice:
    return Advice(measured, recommendations(measured))


def work_in_words(work: str) -> str:
    return say(f"advice.works.{work}")


def setting_in_words(one: Recommendation) -> str:
    """What to set, where that is known."""
    if one.best is None:
        is_reached = one.prompts or not one.is_provisional
        return say("advice.not_known" if is_reached else "advice.not_measured")
    setting = say("advice.no_speculation") if one.draft_with == "none" else called(one.best)
    return say("advice.provisional", setting=setting) if one.is_provisional else setting


def speedup_cell(speedup: SpeedUp | None) -> str:
    if speedup is None:
        return "–"
    if is_wide(speedup.interval):
        return say("advice.too_wide")
    low, high = (numeral(end, ".2f") for end in speedup.interval)
    return f"{numeral(speedup.value, '.2f')} ({low}–{high})"


def cells(work: str, row: SettingRow) -> dict[str, str]:
    """The row's texts by their columns."""
    rate = row.acceptance_rate
    cost = None if row.speedup is None or is_wide(row.speedup.interval) else row.cost
    return {
        "work": work_in_words(work),
        "setting": called(row.setting),
        "speedup": speedup_cell(row.speedup),
        "beside": say(f"advice.beside.{row.beside}") if row.beside else "–",
        "accepted": Numeral("–") if rate is None else numeral(rate, ".0%"),
        "tokens": numeral(row.tokens_per_round, ".2f"),
        "cost": Numeral("–") if cost is None else numeral(cost, ".2f"),
        "prompts": numeral(row.prompts),
    }


def advice_table(advice: Advice) -> str:
    """For each kind of work what to set and why; then what a check takes, and all that was measured."""
    measured = advice.measured
    head = say("advice.head", **_how(measured))
    width = max(len(work_in_words(one.work)) for one in advice.recommended)
    advised = [
        f"{work_in_words(one.work).ljust(width)}  {setting_in_words(one)}\n{' ' * width}  {one.reason}"
        for one in advice.recommended
    ]
    lines = _lines(advice)
    table = aligned([[say(f"advice.columns.{name}") for name in COLUMNS], *lines], left=2)
    probed = probe_lines(measured)
    tables = [f"{table}\n{say('advice.dropped')}"] if lines else []
    tables += (
        [f"{say('advice.probes', most=PROBED, tokens=FIRST_TEXT)}\n{aligned(probed, left=2)}"]
        if len(probed) > 1
        else []
    )
    notes = [f"note: {note}" for note in measured.notes]
    parts = [head, "\n".join(advised), "\n".join(checks_in_words(measured.checks)), *tables]
    return "\n\n".join(part for part in (*parts, "\n".join(notes), ended_in_words(measured)) if part)


def _lines(advice: Advice) -> list[list[str]]:
    """All that was measured, as lines of cells."""
    rows = [cells(one.work, row) for one in advice.recommended for row in rows_of(advice.measured, one.work)]
    return [[row[name] for name in COLUMNS] for row in rows]


def probe_lines(measured: Measured) -> list[list[str]]:
    """What the first texts say of each contender and kind of work, below a line with what each cell is."""
    heads = [say(f"advice.probe_columns.{name}") for name in ("work", "drafter")]
    heads += [say("advice.probe_columns.place", place=place) for place in PLACES]
    lines = [[*heads, say("advice.probe_columns.cost")]]
    for work in measured.works:
        for contender in measured.contenders:
            of_work = [one for one in measured.probes if one.work == work and one.turns]
            if own := tuple(one for one in of_work if one.setting.contender == contender.name):
                together = Together(own)
                shares = together.share_above("accepted", max(PLACES))
                told = [number(shares[place - 1], ".0%") for place in PLACES]
                cost = number(together.draft_cost, ".2f")
                lines.append([work_in_words(work), contender.name, *told, cost])
    return lines


def typed_text(typed: Sequence[Typed]) -> str:
    """What to type into servers: each command, and below it what the server means otherwise."""
    lines = [say("advice.typed") + ":"]
    for one in typed:
        lines += ["", f"{one.server} {one.version}", *(one.command or "").splitlines()]
        lines += [f"note: {note}" for note in one.notes]
    return "\n".join(lines)


def _how(measured: Measured) -> dict[str, str]:
    return {
        "target": measured.target,
        "device": measured.device,
        "name": measured.device_name,
        "dtype": ", ".join(filter(None, (measured.dtype, measured.quantize.get("target")))),
        "sampler": _sampler(measured.params),
        "tokens": number(measured.params.get("max_new_tokens", 0)),
        "date": measured.date,
    }


def _sampler(params: Mapping[str, Any]) -> str:
    """The sampler by the names of Params, without what is off."""
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    filters = [name for name, value in off.items() if params["temperature"] and params[name] != value]
    return ", ".join(f"{name} {number(params[name], 'g')}" for name in ("temperature", *filters))


def ended_in_words(measured: Measured) -> str:
    """Why the measurement ended, and after how long."""
    return say(f"advice.ended.{measured.ended}", seconds=number(measured.seconds, ",.0f"))


def by_context(checks: Sequence[CheckTime]) -> dict[int, list[CheckTime]]:
    """The times by the text's length, each by their rows."""
    known = sorted(checks, key=lambda one: (one.context, one.rows))
    return {context: list(group) for context, group in groupby(known, key=lambda one: one.context)}


def checks_in_words(checks: Sequence[CheckTime]) -> list[str]:
    """A sentence for each length of text."""
    return [
        say(
            "advice.checks",
            context=number(context),
            ms=number(times[0].ms, ".2f"),
            rows=", ".join(str(one.rows) for one in times if one.rows in TOLD_ROWS),
            times=", ".join(_ratio(one) for one in times if one.rows in TOLD_ROWS),
        )
        for context, times in by_context(checks).items()
    ]


def _ratio(one: CheckTime) -> str:
    return f"{number(one.ratio, '.2f')} ({number(one.low, '.2f')}–{number(one.high, '.2f')})"


def advice_object(advice: Advice) -> dict[str, Any]:
    """The last line of the command: what is recommended, and the rows behind it."""
    measured = advice.measured
    return {
        "recommendation": {
            **{one.work: recommended_object(one) for one in advice.recommended},
            ALL: recommended_object(advice.recommended[-1]),
        },
        "rows": [
            {"work": one.work, **asdict(row)}
            for one in advice.recommended
            for row in rows_of(measured, one.work)
        ],
        **{name: value for name, value in to_object(measured).items() if name not in ("samples", "probes")},
    }


def recommended_object(one: Recommendation) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "work"}


def html_report(advice: Advice, typed: Sequence[Typed] = ()) -> str:
    """The page. typed: what to type into servers."""
    measured = advice.measured
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        how=say("advice.head", **_how(measured)),
        advised=[(work_in_words(one.work), setting_in_words(one), one.reason) for one in advice.recommended],
        pictures={
            say("advice.pictures.speedups"): speedup_picture(advice),
            say("advice.pictures.checks"): checks_picture(measured.checks),
            say("advice.pictures.by_place"): acceptance_picture(advice),
        },
        sentences=checks_in_words(measured.checks),
        columns=[say(f"advice.columns.{name}") for name in COLUMNS],
        rows=_lines(advice),
        dropped=say("advice.dropped"),
        probes=say("advice.probes", most=PROBED, tokens=FIRST_TEXT),
        probed=probe_lines(measured),
        typed=typed,
        notes=measured.notes,
        ended=ended_in_words(measured),
        command=measured.command,
        versions=measured.versions,
        measured=json.dumps(to_object(measured)).replace("<", "\\u003c"),
        words={
            "title": say("advice.title"),
            "typed": say("advice.typed"),
            "measured": say("advice.measured"),
            "how": say("advice.how"),
        },
    )


def speedup_picture(advice: Advice) -> str:
    rows = [
        Interval(
            f"{work_in_words(one.work)}: {called(one.best)}",
            f"{speedup_cell(SpeedUp(one.speedup, *one.interval))} ×",
            one.speedup,
            *one.interval,
        )
        for one in advice.recommended
        if one.best and one.speedup and one.interval
    ]
    return intervals(say("advice.pictures.speedups"), rows) if rows else ""


def checks_picture(checks: Sequence[CheckTime]) -> str:
    found = [
        Curve(say("advice.pictures.after", context=number(context)), [(one.rows, one.ms) for one in times])
        for context, times in by_context(checks).items()
    ]
    return curves(say("advice.pictures.checks"), found, say("advice.pictures.rows")) if found else ""


def acceptance_picture(advice: Advice) -> str:
    """The share of rounds in which the drafts up to each place were accepted, by kind of work, of the
    setting that is best over all of it."""
    best = advice.recommended[-1].best
    if best is None:
        return ""
    found = []
    for work in advice.measured.works:
        texts = (one for one in advice.measured.samples if one.work == work)
        if own := [one for one in texts if one.setting == best]:
            tree = contender_of(advice.measured, best).tree
            places = depth_of(tree) or max(max(one.drafted) for one in own)
            shares = Together(tuple(own)).share_above("accepted", places)
            found.append(Curve(work_in_words(work), list(enumerate(shares, start=1))))
    found = [curve for curve in found if curve.points]
    title = say("advice.pictures.acceptance", name=called(best))
    return curves(title, found, say("advice.pictures.places"), form=".0%") if found else ""
