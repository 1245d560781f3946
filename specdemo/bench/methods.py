"""The table of drafters for its readers: its cells, its CSV, and who wins and why. Without torch."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from io import StringIO

from specdemo.bench.results import MethodRow
from specdemo.events.metrics import ratio

METHODS = {  # Params.draft_with: its name, in the table and on the page
    "model": "drafter model",
    "lookup": "lookup",
    "ngram": "n-gram store",
    "ngram-one-level": "one-level n-gram store",
    "early-exit": "early exit",
    "none": "target alone",
}
WITH_ARTICLE = (METHODS["model"], METHODS["ngram"], METHODS["ngram-one-level"], METHODS["none"])

FEWEST_SAMPLES = 5  # of each of two drafters, for an interval
NOISY = 1.5  # an interval whose ends differ by more than this factor says nothing

COLUMNS: dict[str, Callable[[MethodRow], str]] = {
    "drafter": lambda row: row.name,
    "gamma": lambda row: "–" if row.gamma is None else str(row.gamma),
    "drafted/round": lambda row: number(row.drafted_per_round),
    "accepted/round": lambda row: number(row.accepted_per_round),
    "tokens/round": lambda row: number(row.tokens_per_round),
    "acceptance": lambda row: number(row.acceptance_rate, 3),
    "draft ms/round": lambda row: number(row.draft_ms_per_round),
    "verify ms/round": lambda row: number(row.verify_ms_per_round),
    "tokens/s": lambda row: number(row.tokens_per_second, 1),
    "speed-up (90%)": lambda row: _speedup(row),
    "memory": lambda row: "–" if row.drafter_bytes is None else size(row.drafter_bytes),
    "same text": lambda row: row.texts_equal or "–",
}


def cells(row: MethodRow) -> dict[str, str]:
    """The row's texts by the names of their columns."""
    return {column: text(row) for column, text in COLUMNS.items()}


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _speedup(row: MethodRow) -> str:
    if row.speedup_interval is None:
        return number(row.speedup)
    low, high = map(number, row.speedup_interval)
    return f"{'too noisy to say' if is_noisy(row) else number(row.speedup)} ({low}–{high})"


def is_noisy(row: MethodRow) -> bool:
    """Whether the interval is too wide for a speed-up to be told."""
    interval = row.speedup_interval
    return interval is not None and interval[1] > NOISY * interval[0]


def comparison_csv(rows: Sequence[MethodRow]) -> str:
    """All fields, unrounded, with a line of their names first. The interval has two columns; what is unknown
    is empty."""
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


def winner(rows: Sequence[MethodRow]) -> str:
    """Who wins and why, in at most two sentences, from the numbers as the table rounds them. rows: fastest
    first."""
    if not rows:
        return "Nothing has been measured yet."
    drafters = [row for row in rows if row.draft_with != "none"]
    plain = next((row for row in rows if row.draft_with == "none"), None)
    if len(rows) == 1:
        return _sentence(f"only {_called(rows[0])} has been measured: {_tokens(rows[0])}")
    if plain is None:
        return _without_plain(*rows[:2])
    if any(row.speedup_interval is None for row in drafters):
        return _without_intervals(drafters[0])
    faster = [row for row in drafters if _low(row) > 1]
    if faster:
        return _among_the_faster(faster, drafters)
    if unclear := [row for row in drafters if _high(row) >= 1]:
        return _like_plain(unclear)
    return _slower(drafters[0], plain)


def _without_plain(best: MethodRow, second: MethodRow) -> str:
    sentence = (
        f"{_called(best)} is fastest, with {_tokens(best)}; {_called(second)} reaches {_tokens(second)}"
    )
    why = "The target alone has not been measured, so there is no interval, and a small lead can be noise."
    return f"{_sentence(sentence)} {why}"


def _without_intervals(best: MethodRow) -> str:
    return (
        _sentence(f"so far {_called(best)} is the fastest drafter, at {_times(best)} the target alone")
        + f" Fewer than {FEWEST_SAMPLES} samples give no interval, so this can be noise."
    )


def _among_the_faster(faster: list[MethodRow], drafters: list[MethodRow]) -> str:
    leader = faster[0]
    tied = [row for row in drafters if _overlap(row, leader)]
    if len(tied) == 1:
        much = ", too noisy to say more" if is_noisy(leader) else ""
        sentence = f"{_called(leader)} is fastest: {_times(leader)} the target alone{much}"
        return _sentence(sentence) + _why(leader)
    names, speedups = _listed(map(_called, tied)), _listed(map(_times, tied))
    reach = f"they reach {speedups} the target alone, and their intervals overlap"
    return _sentence(f"{names} cannot be told apart: {reach}") + _what_decides(tied)


def _what_decides(tied: list[MethodRow]) -> str:
    """What is known of drafters that are about as fast."""
    above = [_called(row) for row in tied if _low(row) > 1]
    if len(above) < len(tied):
        return f" Only for {_listed(above)} is the whole interval above 1."
    light = [_called(row) for row in tied if row.drafter_bytes is None]
    if 0 < len(light) < len(tied):
        return " " + _sentence(f"{_listed(light)} {'needs' if len(light) == 1 else 'need'} no drafter model")
    return ""


def _like_plain(unclear: list[MethodRow]) -> str:
    best = unclear[0]
    ends = f"{number(_low(best))} to {number(_high(best))}"
    if len(unclear) > 1:
        names = _listed(map(_called, unclear))
        sentence = f"{names} cannot be told apart from the target alone: their intervals include 1"
    elif is_noisy(best):
        sentence = (
            f"it is too noisy to say whether {_called(best)} is faster than the target alone: "
            f"the interval of its speed-up is {ends}"
        )
    else:
        sentence = (
            f"{_called(best)} cannot be told apart from the target alone: "
            f"it reaches {_times(best)}, and its interval of {ends} includes 1"
        )
    return _sentence(sentence) + " More prompts or repeats make intervals narrower."


def _slower(best: MethodRow, plain: MethodRow) -> str:
    """All drafters are slower than the target alone, `best` the least."""
    sentence = (
        f"nothing beats the target alone here: {_called(best)}, the fastest drafter, reaches {_times(best)}"
    )
    longer = ratio(_round_ms(best), _round_ms(plain))
    if longer is not None and _shown(best.tokens_per_round) < (longer := _shown(longer)):
        brings = f"brings {number(best.tokens_per_round)} tokens and takes {number(longer)} times as long"
        sentence += f", because a round with it {brings}"
    return _sentence(sentence) + _why(best)


def _why(row: MethodRow) -> str:
    if row.drafted_per_round is None:
        return ""
    if not _shown(row.drafted_per_round):
        return " It found nothing to draft."
    keeps = f"keeps {number(row.accepted_per_round)} of {number(row.drafted_per_round)} drafts a round"
    if row.draft_ms_per_round is None:
        return f" It {keeps}."
    share = _shown(row.draft_ms_per_round) / (_round_ms(row) or 1)
    return f" It {keeps}, and drafting takes {share:.0%} of its time."


def _times(row: MethodRow) -> str:
    """The speed-up as a factor, or its interval where that is too wide."""
    return f"{number(_low(row))} to {number(_high(row))} ×" if is_noisy(row) else f"{number(row.speedup)} ×"


def _tokens(row: MethodRow) -> str:
    return f"{number(row.tokens_per_second, 1)} tokens/s"


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
    """As the table rounds it."""
    return float(number(value))


def _called(row: MethodRow) -> str:
    return f"the {row.name}" if row.name.startswith(WITH_ARTICLE) else row.name


def _listed(names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
