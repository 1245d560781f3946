"""Whether speculation paid in a run, in one or two sentences. The page and the command line say the same,
because both ask here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdemo.events import Finish, Round, Stats
from specdemo.events.speedup import SHORTEST, break_even, is_wide

SERVED_RUN = "No speed-up is known: a server made the run, and the target alone was not timed on it"
Tone = Literal["neutral", "faster", "slower", "lossy"]


@dataclass(frozen=True)
class Verdict:
    text: str
    tone: Tone


def verdict(stats: Stats, finish: Finish | None, rounds: Sequence[Round]) -> Verdict:
    if not stats.tokens:
        return Verdict("No token was generated." if finish else "", "neutral")
    tokens = f"{stats.tokens:,} token{'' if stats.tokens == 1 else 's'}"
    forwards = f"{stats.rounds:,} target forward{'' if stats.rounds == 1 else 's'}"
    if finish is None:
        return Verdict(f"{tokens} in {forwards} so far.", "neutral")
    if stats.drafted:
        counted = f"{tokens} in {forwards}; the target alone needs {stats.tokens:,}."
    elif stats.drafted is None:  # of a server
        rest = f"the target alone needs {stats.tokens:,}" if stats.accepted else "no draft was accepted"
        counted = f"{tokens} in {forwards}; {rest}."
    elif _all_dropped(stats, rounds):
        counted = (
            f"{tokens} in {forwards}: every draft was dropped, because the drafter was never sure enough."
        )
    else:
        counted = f"{tokens} in {forwards}: nothing was drafted."
    text, tone = _measured(stats, finish, rounds)
    both = f"{text} {counted}" if tone == "slower" else f"{counted} {text}"
    if stats.distance is None:
        return Verdict(both, tone)
    return Verdict(f"Lossy: {stats.distance:.3f} from the target's distribution on average. {both}", "lossy")


def _all_dropped(stats: Stats, rounds: Sequence[Round]) -> bool:
    """Whether there were drafts, and confidence ended all of them at their first place."""
    return not stats.drafted and any(one.ended_by == "confidence" for one in rounds)


def _measured(stats: Stats, finish: Finish, rounds: Sequence[Round]) -> tuple[str, Tone]:
    if stats.draft_ms is None and stats.speedup_interval is None:
        return f"{SERVED_RUN}.", "neutral"
    if stats.speedup is None or stats.speedup_interval is None:
        return f"No speed-up is known: {why_none(stats, finish)}.", "neutral"
    low, high = (round(end, 2) for end in stats.speedup_interval)  # as they are shown
    is_plain = not stats.drafted and not _all_dropped(stats, rounds)
    if is_plain:
        again = f"between {low:.2f} and {high:.2f} ×"
        if not is_wide((low, high)):
            again = f"{stats.speedup:.2f} × ({low:.2f} to {high:.2f} ×)"
        return f"Measured against itself, which should give 1 ×: {again}.", "neutral"
    found = speedup_in_words((low, high), stats.speedup, "the target alone")
    if low <= 1 <= high:
        return f"Measured: {found}, no clear difference.", "neutral"
    if low > 1:
        return f"Measured: {found}.", "faster"
    slower = f"Slower here: {found}."
    return f"{slower} {_why_slower(stats)}" if stats.draft_ms is not None else slower, "slower"


def speedup_in_words(interval: tuple[float, float], speedup: float, other: str) -> str:
    """How many times as fast as the other, with the interval; only that where it is wide."""
    low, high = interval
    if is_wide(interval):
        return f"between {low:.2f} and {high:.2f} × as fast as {other}"
    return f"{speedup:.2f} × as fast as {other} ({low:.2f} to {high:.2f} ×)"


def why_none(stats: Stats, finish: Finish | None) -> str:
    """Why a run that has ended has no speed-up."""
    if finish in ("cancelled", "error"):
        return "it was stopped" if finish == "cancelled" else "it failed"
    if stats.tokens < SHORTEST:
        return f"a run of fewer than {SHORTEST} tokens is too short to be timed"
    if stats.speedup is not None:
        return "this trace is too old to have its interval"
    return "the target alone was not timed after it"


def _why_slower(stats: Stats) -> str:
    assert stats.draft_ms is not None, "it is compared with plain rounds of this engine"
    run_ms = stats.run_ms
    why = f"Drafting takes {stats.draft_ms / run_ms:.0%} of the time"
    if not stats.drafted:
        return f"{why}."
    assert stats.target_step_ms is not None and stats.acceptance_rate is not None
    why += f" and {stats.acceptance_rate:.0%} of the judged drafts are accepted"
    needed = break_even(stats.drafted / stats.rounds, run_ms / stats.rounds / stats.target_step_ms)
    if needed is None:
        return f"{why}; with rounds this slow it would not pay even if all were."
    # The formula takes drafts to be accepted independently, and can be off by a little.
    if round(needed, 2) <= round(stats.acceptance_rate, 2):
        return f"{why}."
    return f"{why}; with drafts of this length it is faster when at least {needed:.0%} are."
