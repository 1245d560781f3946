"""Tables of results: what each column shows of a row, the one writer of them for terminals, pages and files,
and the sentence on which drafter wins, and why. Without torch."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from specdemo.events import DRAFTER_KINDS, LISTED, Gamma, Manner, drafter_label
from specdemo.events.verdict import speedup_in_words
from specdemo.words.catalogue import number, numeral, say, speaker_of

R = TypeVar("R")
WIDEST = 1_000_000  # columns of a terminal, so that nothing is wrapped or cut


@dataclass(frozen=True)
class Column(Generic[R]):
    """heading, text: in the language that is spoken. text: what it shows of a row."""

    heading: str
    text: Callable[[R], str]
    is_left: bool = False  # whether its cells are flush left


@dataclass(frozen=True)
class Table(Generic[R]):
    columns: Sequence[Column[R]]
    rows: Sequence[R]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        return [[column.text(row) for column in self.columns] for row in self.rows]

    def __str__(self) -> str:
        """The table on a terminal."""
        grid = Grid(box=None, pad_edge=False, header_style="")
        for column in self.columns:
            grid.add_column(Text(column.heading), justify="left" if column.is_left else "right")
        for cells in self.cells:
            grid.add_row(*map(Text, cells))
        console = Console(width=WIDEST, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as written:
            console.print(grid)
        return "\n".join(line.rstrip() for line in written.get().rstrip("\n").split("\n"))


def shown(value: float | None, form: str = ".2f") -> str:
    """A number in the spoken language; "–" for what is unknown. form: as in `number`."""
    return "–" if value is None else number(value, form)


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    return shown(value) if interval is None else f"{shown(value)} ({'–'.join(map(shown, interval))})"


WARM_UP_TOKENS = 16  # tokens that each setting writes before it is measured


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One drafter over all prompts. Times are by the engine's clock, without prefill; a server's are by the
    arrival of its tokens, from the first one on, and without the parts of a round, which it does not tell.
    All figures are over all rounds of all prompts together, so that they follow from each other."""

    name: str
    draft_with: str
    manner: Manner | None  # how its drafts come about; None for "none", and where it is not known
    gamma: Gamma | None  # None for "none" and of a tree
    tree: str  # Params.tree with commas; "": chains
    drafted_per_round: float | None  # None where a server does not tell it
    accepted_per_round: float
    tokens_per_round: float
    acceptance_rate: float | None
    draft_ms_per_round: float | None
    verify_ms_per_round: float | None
    plain_rounds_per_round: float | None  # drafting and verifying, in rounds of the target alone; as speedup
    tokens_per_second: float
    # How many times as fast as the target alone; None if that was not measured, or the interval is wide.
    speedup: float | None
    speedup_interval: tuple[float, float] | None  # of 90%; None for "none"
    drafter_bytes: int | None  # of the drafter model's weights; None if there is none in use
    texts_equal: str | None  # how many texts equal those of the target alone: "5 of 6"; greedy only
    samples: int


def is_untimed(row: MethodRow) -> bool:
    """Whether the machine was too busy for a speed-up."""
    return row.speedup_interval is not None and row.speedup is None


def is_too_short(row: MethodRow) -> bool:
    """Whether its texts are too short for a speed-up, where the target alone is measured, too."""
    return row.draft_with != "none" and row.speedup_interval is None


def csv_of(rows: Sequence[MethodRow]) -> str:
    """The fields of the rows, unrounded, below their names. The interval has two columns; what is unknown is
    empty."""
    lines = []
    for row in rows:
        line = asdict(row)
        line["speedup_low"], line["speedup_high"] = line.pop("speedup_interval") or (None, None)
        lines.append(line)
    out = StringIO()
    writer = csv.DictWriter(out, lines[0])
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def method_columns() -> list[Column[MethodRow]]:
    texts: dict[str, Callable[[MethodRow], str]] = {
        "drafter": lambda row: row.name,
        "drafts as": _manner,
        "gamma": lambda row: "–" if row.gamma is None else str(row.gamma),
        "drafted/round": lambda row: shown(row.drafted_per_round),
        "accepted/round": lambda row: shown(row.accepted_per_round),
        "tokens/round": lambda row: shown(row.tokens_per_round),
        "acceptance": lambda row: shown(row.acceptance_rate, ".3f"),
        "draft ms/round": lambda row: shown(row.draft_ms_per_round),
        "verify ms/round": lambda row: shown(row.verify_ms_per_round),
        "plain rounds/round": lambda row: shown(row.plain_rounds_per_round),
        "tokens/s": lambda row: shown(row.tokens_per_second, ".1f"),
        "speed-up (90%)": _speedup,
        "memory": lambda row: "–" if row.drafter_bytes is None else _size(row.drafter_bytes),
        "same text": _same,
    }
    return [Column(say(f"compare.columns.{name}"), text, name == "drafter") for name, text in texts.items()]


def _manner(row: MethodRow) -> str:
    """How its drafts come about; trees of what else drafts token after token by depth."""
    manner = "depth" if row.tree and row.manner == "chain" else row.manner
    return "–" if manner is None else say(f"compare.manners.{manner}")


def _speedup(row: MethodRow) -> str:
    if is_untimed(row):
        return say("compare.untimed")
    return with_interval(row.speedup, row.speedup_interval)


def _size(count: int) -> str:
    return f"{number(count / 1e9, ',.2f')} GB" if count >= 1e9 else f"{number(count / 1e6, ',.1f')} MB"


def _same(row: MethodRow) -> str:
    if row.texts_equal is None:
        return "–"
    equal, of = row.texts_equal.split(" of ")
    return say("compare.same", equal=equal, of=of)


def head_in_words(name: str, result: Mapping[str, Any], prompts: str, tokens: str) -> str:
    """How a result was measured (`how_measured`), for what has this name, on these prompts."""
    return (
        f"{name} on {result['device']} ({result['device_name']}), {result['dtype']}, "
        f"temperature {result['temperature']:g}, {prompts} x {result['repeats']}, "
        f"{tokens} tokens each, {result['date']}"
    )


def methods_text(result: Mapping[str, Any]) -> str:
    """A line for each drafter, fastest first, then the notes and who wins."""
    prompts, tokens = f"{len(result['prompts'])} prompts", f"at most {result['max_new_tokens']}"
    head = head_in_words(result["target"], result, prompts, tokens)
    notes = "\n".join(f"note: {note}" for note in result["notes"])
    table = str(Table(method_columns(), result["rows"]))
    clock = "by the engine's clock, without prefill"
    return "\n\n".join(filter(None, (f"{head}; {clock}", table, notes, result["winner"])))


_speak = speaker_of("said.winner")


def winner(rows: Sequence[MethodRow]) -> str:
    """A few sentences. rows: fastest first. Nobody has won before the target alone is measured."""
    drafters = [row for row in rows if row.draft_with != "none"]
    if not rows:
        return _speak("nothing")
    if len(rows) == 1:
        return _sentence("only", rows[0])
    if len(drafters) == len(rows):
        return _sentence("so_far", rows[0])
    if all(map(is_too_short, drafters)):
        return f"{_sentence('so_far', drafters[0])} {_speak('too_short')}"
    timed = [row for row in drafters if row.speedup is not None]
    if not timed:
        return _sentence("untimed", max(drafters, key=lambda row: row.tokens_per_round))
    sure = [row for row in timed if _ends(row)[0] > 1]
    if not sure and any(_ends(row)[1] >= 1 for row in timed):
        return _sentence("like_plain", timed[0])
    leader = [*sure, *timed][0]
    alike = [row for row in timed if row is not leader and _overlap(row, leader)] if sure else []
    if alike:
        sentence = _sentence("tied", leader, rival=_called(alike[0]), count=len(alike))
    else:
        sentence = _sentence("fastest" if sure else "slower", leader)
    # A server does not tell what a round takes.
    return sentence if leader.plain_rounds_per_round is None else f"{sentence} {_sentence('brings', leader)}"


def _sentence(key: str, row: MethodRow, **more: object) -> str:
    """What is said of a row, by its figures."""
    figures = {"tokens": row.tokens_per_round, "cost": row.plain_rounds_per_round}
    more |= {name: numeral(value, ".2f") for name, value in figures.items() if value is not None}
    if row.speedup is not None and row.speedup_interval is not None:
        form = "as_fast_as_it" if key in ("like_plain", "slower") else "as_fast"  # these name the target
        more["speed"] = speedup_in_words(row.speedup_interval, row.speedup, form)
    text = _speak(key, who=_called(row), rate=numeral(row.tokens_per_second, ".1f"), **more)
    return f"{text[0].upper()}{text[1:]}"


def _called(row: MethodRow) -> str:
    methods = [drafter_label(name, None) for name, method in LISTED.items() if method.takes_the]
    labels = (*methods, *(drafter_label("model", kind) for kind in DRAFTER_KINDS))
    return _speak("the", name=row.name) if row.name.startswith(labels) else row.name


def _overlap(one: MethodRow, other: MethodRow) -> bool:
    (low, high), (other_low, other_high) = _ends(one), _ends(other)
    return low <= other_high and other_low <= high


def _ends(row: MethodRow) -> tuple[float, float]:
    assert row.speedup_interval is not None
    low, high = row.speedup_interval
    return round(low, 2), round(high, 2)
