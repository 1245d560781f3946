"""The table of drafters: its rows, how they read as text and as CSV, and who wins and why. Without torch."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO

from specdemo.events import DRAFTER_KINDS, METHODS, Gamma, Manner, Params, drafter_label
from specdemo.events.metrics import ratio
from specdemo.events.params import DraftTree
from specdemo.events.speedup import SHORTEST
from specdemo.events.verdict import speedup_in_words
from specdemo.words.catalogue import Numeral, numeral, speaker_of

WARM_UP_TOKENS = 48  # tokens that each setting writes before it is measured


def usual_tree(params: Params) -> DraftTree:
    """The tree that is measured beside the chains of a drafter that is a model. When greedy the one that
    grows brought most tokens; else one whose children are drawn, as deep as a usual chain (engine/README)."""
    return (2, 1, 1, 1) if params.temperature else "auto"


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
    rounds_with_draft: float | None  # share of the rounds in which anything was drafted; None as before
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


@dataclass(frozen=True, kw_only=True)
class MethodsResult:
    """The drafters of one target, fastest first, and how they were measured."""

    target: str
    device: str
    device_name: str
    dtype: str | None
    date: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    rule: str
    of_rule: dict[str, float]  # the fields of Params that the rule uses
    confidence: float
    exit_layer: int  # of early exit; 0: as Params has it
    seed: int | None  # None: another one for each run
    max_new_tokens: int
    prompts: list[str]
    repeats: int
    rows: list[MethodRow]
    winner: str  # a sentence on who wins and why
    notes: list[str]  # what a user should know of the pairs


UNTIMED = "too busy to time"


def is_untimed(row: MethodRow) -> bool:
    """Whether the machine was too busy for a speed-up."""
    return row.speedup_interval is not None and row.speedup is None


def drafted_as(row: MethodRow) -> str | None:
    """How its drafts come about: as row.manner, and trees of what else drafts token after token by depth."""
    return "depth" if row.tree and row.manner == "chain" else row.manner


COLUMNS: dict[str, Callable[[MethodRow], str]] = {
    "drafter": lambda row: row.name,
    "drafts as": lambda row: drafted_as(row) or "–",
    "gamma": lambda row: "–" if row.gamma is None else str(row.gamma),
    "drafted/round": lambda row: rounded(row.drafted_per_round),
    "accepted/round": lambda row: rounded(row.accepted_per_round),
    "tokens/round": lambda row: rounded(row.tokens_per_round),
    "acceptance": lambda row: rounded(row.acceptance_rate, 3),
    "draft ms/round": lambda row: rounded(row.draft_ms_per_round),
    "verify ms/round": lambda row: rounded(row.verify_ms_per_round),
    "plain rounds/round": lambda row: rounded(row.plain_rounds_per_round),
    "tokens/s": lambda row: rounded(row.tokens_per_second, 1),
    "speed-up (90%)": lambda row: _speedup(row),
    "memory": lambda row: "–" if row.drafter_bytes is None else size(row.drafter_bytes),
    "same text": lambda row: row.texts_equal or "–",
}


def cells(row: MethodRow) -> dict[str, str]:
    """The row's texts by the names of their columns."""
    return {column: text(row) for column, text in COLUMNS.items()}


def rounded(value: float | None, digits: int = 2) -> Numeral:
    return Numeral("–") if value is None else numeral(value, f".{digits}f")


def size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _speedup(row: MethodRow) -> str:
    if row.speedup_interval is None:
        return rounded(row.speedup)
    if is_untimed(row):
        return UNTIMED
    return f"{rounded(row.speedup)} ({'–'.join(map(rounded, row.speedup_interval))})"


def methods_table(result: MethodsResult) -> str:
    """A line for each drafter, fastest first, then the notes and who wins."""
    head = (
        f"{result.target} on {result.device} ({result.device_name}), {result.dtype}, "
        f"temperature {result.temperature:g}, {len(result.prompts)} prompts x {result.repeats}, "
        f"at most {result.max_new_tokens} tokens each, {result.date}; by the engine's clock, without prefill"
    )
    table = aligned([tuple(COLUMNS), *(tuple(cells(row).values()) for row in result.rows)])
    notes = "\n".join(f"note: {note}" for note in result.notes)
    return "\n\n".join(part for part in (head, table, notes, result.winner) if part)


def aligned(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """The cells in columns: the first `left` ones flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust if at < left else str.rjust for at in range(len(widths))]
    return "\n".join(
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    )


def comparison_csv(rows: Sequence[MethodRow]) -> str:
    """CSV of all fields, unrounded, below their names. The interval has two columns; what is unknown is
    empty."""
    names = [field.name for field in fields(MethodRow)]
    at = names.index("speedup_interval")
    names[at : at + 1] = ["speedup_low", "speedup_high"]
    out = StringIO()
    writer = csv.DictWriter(out, names)
    writer.writeheader()
    for row in rows:
        values = asdict(row)
        values["speedup_low"], values["speedup_high"] = values.pop("speedup_interval") or (None, None)
        writer.writerow(values)
    return out.getvalue()


_speak = speaker_of("said.winner")


def winner(rows: Sequence[MethodRow], goes_on: bool = False) -> str:
    """Who wins and why, in at most two sentences, from the numbers as the table rounds them. rows: fastest
    first. goes_on: whether more rows may come, so that nobody has won yet."""
    if not rows:
        return _speak("nothing")
    drafters = [row for row in rows if row.draft_with != "none"]
    plain = next((row for row in rows if row.draft_with == "none"), None)
    if len(rows) == 1:
        return _sentence(_speak("only", who=_called(rows[0]), speed=_tokens(rows[0])))
    if plain is None and goes_on:
        return _so_far(rows[0])
    if plain is None:
        return _without_plain(*rows[:2])
    if any(row.speedup_interval is None for row in drafters):
        return _without_intervals(drafters[0])
    untimed = sum(map(is_untimed, drafters))
    if untimed == len(drafters):
        best = max(drafters, key=lambda row: row.tokens_per_round)
        return _speak("untimed", who=_called(best), tokens=rounded(best.tokens_per_round))
    left_out = f" {_speak('untimed_others', count=untimed)}" if untimed else ""
    timed = [row for row in drafters if not is_untimed(row)]
    return f"{_among_the_timed(timed, plain)}{left_out}{_few_copies(drafters)}"


def _among_the_timed(drafters: list[MethodRow], plain: MethodRow) -> str:
    faster = [row for row in drafters if _low(row) > 1]
    if faster:
        return _among_the_faster(faster, drafters)
    if any(_high(row) >= 1 for row in drafters):
        best = drafters[0]
        return _speak("like_plain", who=_called(best), speed=_speed(best, "as_fast_as_it"))
    return _slower(drafters[0], plain)


def _without_plain(best: MethodRow, second: MethodRow) -> str:
    who = {"best": _called(best), "second": _called(second)}
    sentence = _speak("without_plain", **who, speed=_tokens(best), other=_tokens(second))
    return f"{_sentence(sentence)} {_speak('no_interval')}"


def _without_intervals(best: MethodRow) -> str:
    return f"{_so_far(best)} {_speak('needs_tokens', shortest=SHORTEST)}"


def _so_far(best: MethodRow) -> str:
    return _sentence(_speak("so_far", who=_called(best), speed=_tokens(best)))


def _among_the_faster(faster: list[MethodRow], drafters: list[MethodRow]) -> str:
    leader = faster[0]
    said = {"who": _called(leader), "speed": _speed(leader, "as_fast")}
    others = [row for row in drafters if row is not leader and _overlap(row, leader)]
    if not others:
        return _sentence(_speak("fastest", **said)) + _why(leader)
    if len(others) == 1:
        tied = _speak("tied", **said, rival=_called(others[0]))
    else:
        tied = _speak("tied_with", **said, count=len(others))
    return f"{tied}{_surely_faster([leader, *others])}{_why(leader)}"


def spoken_of(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """What the sentence on who wins names or counts, and the two fastest rows."""
    timed = [row for row in rows if row.speedup_interval and not is_untimed(row)]
    likely = [row for row in timed if _overlap(row, timed[0])]
    return [*rows[:2], *(likely or sorted(rows, key=lambda row: -row.tokens_per_round)[:1])]


def _surely_faster(tied: list[MethodRow]) -> str:
    """A sentence that says which of the drafters that are about equally fast are surely faster than the
    target alone; empty if all are."""
    sure = [row for row in tied if _low(row) > 1]
    if len(sure) == len(tied):
        return ""
    if len(sure) == 1:
        return f" {_speak('one_sure', all=len(tied), who=_called(sure[0]))}"
    return f" {_speak('some_sure', all=len(tied), sure=len(sure))}"


def _slower(best: MethodRow, plain: MethodRow) -> str:
    """The sentences for the case that all drafters are slower than the target alone, `best` the least."""
    said = {"who": _called(best), "speed": _speed(best, "as_fast_as_it")}
    sentence = _speak("slower", **said)
    longer = ratio(_round_ms(best), _round_ms(plain))
    if longer is not None and _shown(best.tokens_per_round) < (longer := _shown(longer)):
        bring = {"tokens": rounded(best.tokens_per_round), "longer": rounded(longer)}
        sentence = _sentence(_speak("slower_by", **said, **bring))
        return sentence if _shown(best.drafted_per_round or 0.0) else sentence + _why(best)
    return _sentence(sentence) + _why(best)


def _why(row: MethodRow) -> str:
    if row.drafted_per_round is None:
        return ""
    if not _shown(row.drafted_per_round):
        return f" {_speak('found_nothing')}"
    if row.plain_rounds_per_round is None:
        of = {"kept": rounded(row.accepted_per_round), "drafted": rounded(row.drafted_per_round)}
        return f" {_speak('keeps', **of)}"
    per_round = {"tokens": rounded(row.tokens_per_round), "cost": rounded(row.plain_rounds_per_round)}
    return f" {_sentence(_speak('brings', who=_called(row), **per_round))}"


LITTLE = 0.5  # tokens that are copied and accepted, in a round


def _few_copies(drafters: list[MethodRow]) -> str:
    """Why lookup brings nothing, where it does not."""
    row = next((row for row in drafters if row.draft_with == "lookup" and not is_untimed(row)), None)
    if row is None or row.rounds_with_draft is None or row.accepted_per_round >= LITTLE or _low(row) > 1:
        return ""
    share, kept = numeral(row.rounds_with_draft, ".0%"), rounded(row.accepted_per_round)
    return f" {_speak('few_copies', share=share, kept=kept)}"


def _speed(row: MethodRow, key: str) -> str:
    assert row.speedup is not None and row.speedup_interval is not None
    return speedup_in_words(row.speedup_interval, row.speedup, key=key)


def _called(row: MethodRow) -> str:
    methods = [drafter_label(name, None) for name, method in METHODS.items() if method.takes_the]
    labels = (*methods, *(drafter_label("model", kind) for kind in DRAFTER_KINDS))
    return _speak("the", name=row.name) if row.name.startswith(labels) else row.name


def _tokens(row: MethodRow) -> Numeral:
    return rounded(row.tokens_per_second, 1)


def _low(row: MethodRow) -> float:
    assert row.speedup_interval is not None
    return _shown(row.speedup_interval[0])


def _high(row: MethodRow) -> float:
    assert row.speedup_interval is not None
    return _shown(row.speedup_interval[1])


def _overlap(one: MethodRow, other: MethodRow) -> bool:
    return _low(one) <= _high(other) and _low(other) <= _high(one)


def _round_ms(row: MethodRow) -> float | None:
    if row.draft_ms_per_round is None or row.verify_ms_per_round is None:
        return None
    return _shown(row.draft_ms_per_round) + _shown(row.verify_ms_per_round)


def _shown(value: float) -> float:
    """The value as the table rounds it."""
    return float(rounded(value))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
