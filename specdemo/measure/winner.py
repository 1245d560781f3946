"""Who wins a comparison of drafters, and why, in sentences with the numbers as the table rounds them. Without
torch."""

from collections.abc import Sequence
from functools import partial

from specdemo.events import DRAFTER_KINDS, METHODS, drafter_label
from specdemo.events.metrics import ratio
from specdemo.events.speedup import SHORTEST
from specdemo.events.verdict import speedup_in_words
from specdemo.measure.table import MethodRow, is_untimed
from specdemo.words.catalogue import Numeral, numeral, speaker_of

LITTLE = 0.5  # tokens that are copied and accepted, in a round
_speak = speaker_of("said.winner")
_figure = partial(numeral, form=".2f")


def winner(rows: Sequence[MethodRow], goes_on: bool = False) -> str:
    """At most two sentences. rows: fastest first. goes_on: whether more rows may come, so that nobody has won
    yet."""
    if not rows:
        return _speak("nothing")
    best, drafters = rows[0], [row for row in rows if row.draft_with != "none"]
    plain = next((row for row in rows if row.draft_with == "none"), None)
    if len(rows) == 1:
        return _sentence("only", who=_called(best), speed=_tokens(best))
    if plain is None and goes_on:
        return _so_far(best)
    if plain is None:
        second = {"second": _called(rows[1]), "other": _tokens(rows[1])}
        fastest = _sentence("without_plain", best=_called(best), speed=_tokens(best), **second)
        return f"{fastest} {_speak('no_interval')}"
    if any(row.speedup_interval is None for row in drafters):
        return f"{_so_far(drafters[0])} {_speak('needs_tokens', shortest=SHORTEST)}"
    timed = [row for row in drafters if not is_untimed(row)]
    if not timed:
        best = max(drafters, key=lambda row: row.tokens_per_round)
        return _speak("untimed", who=_called(best), tokens=_figure(best.tokens_per_round))
    untimed = len(drafters) - len(timed)
    left_out = f" {_speak('untimed_others', count=untimed)}" if untimed else ""
    return f"{_among_the_timed(timed, plain)}{left_out}{_few_copies(timed)}"


def spoken_of(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """What the sentence on who wins names or counts, and the two fastest rows."""
    timed = [row for row in rows if row.speedup_interval and not is_untimed(row)]
    likely = [row for row in timed if _overlap(row, timed[0])]
    return [*rows[:2], *(likely or sorted(rows, key=lambda row: -row.tokens_per_round)[:1])]


def _so_far(best: MethodRow) -> str:
    return _sentence("so_far", who=_called(best), speed=_tokens(best))


def _among_the_timed(drafters: list[MethodRow], plain: MethodRow) -> str:
    best, faster = drafters[0], [row for row in drafters if _ends(row)[0] > 1]
    if faster:
        return _among_the_faster(faster[0], drafters)
    if any(_ends(row)[1] >= 1 for row in drafters):
        return _speak("like_plain", who=_called(best), speed=_speed(best, "as_fast_as_it"))
    return _slower(best, plain)


def _among_the_faster(leader: MethodRow, drafters: list[MethodRow]) -> str:
    leads = {"who": _called(leader), "speed": _speed(leader, "as_fast")}
    others = [row for row in drafters if row is not leader and _overlap(row, leader)]
    if not others:
        return _sentence("fastest", **leads) + _why(leader)
    more = {"rival": _called(others[0])} if len(others) == 1 else {"count": len(others)}
    tied = _speak("tied" if len(others) == 1 else "tied_with", **leads, **more)
    return f"{tied}{_surely_faster([leader, *others])}{_why(leader)}"


def _surely_faster(tied: list[MethodRow]) -> str:
    """A sentence that says which of the drafters that are about equally fast are surely faster than the
    target alone; empty if all are."""
    sure = [row for row in tied if _ends(row)[0] > 1]
    if len(sure) == len(tied):
        return ""
    key = "one_sure" if len(sure) == 1 else "some_sure"
    return f" {_speak(key, all=len(tied), who=_called(sure[0]), sure=len(sure))}"


def _slower(best: MethodRow, plain: MethodRow) -> str:
    """The sentences for the case that all drafters are slower than the target alone, `best` the least."""
    trails = {"who": _called(best), "speed": _speed(best, "as_fast_as_it")}
    longer = ratio(_round_ms(best), _round_ms(plain))
    if longer is None or round(best.tokens_per_round, 2) >= round(longer, 2):
        return _sentence("slower", **trails) + _why(best)
    brings = {"tokens": _figure(best.tokens_per_round), "longer": _figure(longer)}
    sentence = _sentence("slower_by", **trails, **brings)
    return sentence if round(best.drafted_per_round or 0.0, 2) else sentence + _why(best)


def _why(row: MethodRow) -> str:
    if row.drafted_per_round is None:
        return ""
    if not round(row.drafted_per_round, 2):
        return f" {_speak('found_nothing')}"
    if row.plain_rounds_per_round is None:
        of = {"kept": _figure(row.accepted_per_round), "drafted": _figure(row.drafted_per_round)}
        return f" {_speak('keeps', **of)}"
    per_round = {"tokens": _figure(row.tokens_per_round), "cost": _figure(row.plain_rounds_per_round)}
    return f" {_sentence('brings', who=_called(row), **per_round)}"


def _few_copies(timed: list[MethodRow]) -> str:
    """Why lookup brings nothing, where it does not."""
    row = next((row for row in timed if row.draft_with == "lookup"), None)
    if row is None or row.rounds_with_draft is None:
        return ""
    if row.accepted_per_round >= LITTLE or _ends(row)[0] > 1:
        return ""
    share, kept = numeral(row.rounds_with_draft, ".0%"), _figure(row.accepted_per_round)
    return f" {_speak('few_copies', share=share, kept=kept)}"


def _speed(row: MethodRow, key: str) -> str:
    assert row.speedup is not None and row.speedup_interval is not None
    return speedup_in_words(row.speedup_interval, row.speedup, key=key)


def _called(row: MethodRow) -> str:
    methods = [drafter_label(name, None) for name, method in METHODS.items() if method.takes_the]
    labels = (*methods, *(drafter_label("model", kind) for kind in DRAFTER_KINDS))
    return _speak("the", name=row.name) if row.name.startswith(labels) else row.name


def _tokens(row: MethodRow) -> Numeral:
    return numeral(row.tokens_per_second, ".1f")


def _overlap(one: MethodRow, other: MethodRow) -> bool:
    (low, high), (other_low, other_high) = _ends(one), _ends(other)
    return low <= other_high and other_low <= high


def _ends(row: MethodRow) -> tuple[float, float]:
    assert row.speedup_interval is not None
    low, high = row.speedup_interval
    return round(low, 2), round(high, 2)


def _round_ms(row: MethodRow) -> float | None:
    if row.draft_ms_per_round is None or row.verify_ms_per_round is None:
        return None
    return round(row.draft_ms_per_round, 2) + round(row.verify_ms_per_round, 2)


def _sentence(key: str, **values: str) -> str:
    text = _speak(key, **values)
    return f"{text[0].upper()}{text[1:]}."
