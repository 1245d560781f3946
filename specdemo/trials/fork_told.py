"""Where plain and speculative greedy text part, and why, in words: for the page and for the command line."""

from dataclasses import dataclass

from specdemo.trials.fork import Candidate, Fork, ForkReport
from specdemo.words.catalogue import number, say

COLUMNS = ("forward", "plain", "speculative", "margin", "likeliest", "apart")


@dataclass(frozen=True)
class ForkTold:
    """place: both candidates; empty where the texts are equal. columns, rows: what each forward says there.
    notes: what was measured, and what could not be. In the language that is spoken."""

    sentence: str
    place: str
    columns: list[str]
    rows: list[list[str]]
    notes: str


def told(report: ForkReport) -> ForkTold:
    columns = [say(f"exactness.fork.columns.{name}") for name in COLUMNS]
    sentence, fork = report.sentence.said(), report.fork
    if fork is None:
        return ForkTold(sentence, "", columns, [], "")
    return ForkTold(sentence, _place(fork), columns, _rows(fork), _notes(fork))


def _place(fork: Fork) -> str:
    plain, speculative = map(_named, (fork.plain, fork.speculative))
    values = {"place": number(fork.place + 1), "before": _on_one_line(fork.before)}
    return say("exactness.fork.place", **values, plain=plain, speculative=speculative)


def _named(candidate: Candidate | None) -> str:
    if candidate is None:
        return say("exactness.fork.nothing")
    return say("exactness.fork.token", text=_on_one_line(candidate.text), id=candidate.id)


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\N{RETURN SYMBOL}")


def _rows(fork: Fork) -> list[list[str]]:
    names = {name: say(f"exactness.fork.forwards.{name.replace(' ', '_')}") for name in ("one row", "own")}
    names |= {"float32": "float32", "several rows": say("exactness.fork.several", count=fork.rows)}
    return [
        [
            names[said.forward],
            *(number(value, ".4f") for value in (said.plain, said.speculative, said.margin)),
            _named(said.likeliest),
            number(said.apart, ".2g"),
        ]
        for said in fork.said
    ]


def _notes(fork: Fork) -> str:
    rounding = fork.rounding
    if rounding is None:
        return ""
    values = {"places": rounding.places, "rows": number(rounding.rows, ".2g")}
    if rounding.not_float32:
        why = rounding.not_float32.said()
        return say("exactness.fork.not_compared", **values, why=why)
    return say("exactness.fork.measured", **values, float32=number(rounding.float32 or 0.0, ".2g"))
