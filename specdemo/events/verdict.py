"""Whether speculation paid in a run, in one or two sentences. The page and the command line say the same,
because both ask here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdemo.events.metrics import is_noisy, speedup_spread
from specdemo.events.rounds import Finish, Round, Stats
from specdemo.events.theory import break_even

SERVED = "No speed-up is told: a server made the run, and its plain rounds are not timed here"
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
    if stats.draft_ms is None:
        return f"{SERVED}.", "neutral"
    spread, speedup = speedup_spread(stats), stats.speedup
    if spread is None or speedup is None:
        why = {"cancelled": "it was stopped", "error": "it failed"}
        unknown = "too few plain rounds were timed after it"
        return f"No speed-up was measured: {why.get(finish, unknown)}.", "neutral"
    low, high = (round(end, 2) for end in spread)  # as they are shown
    between = f"between {low:.2f} × and {high:.2f} ×"
    if is_noisy(stats, rounds):
        return "Too noisy to say how fast it was: its times vary by more than a factor of 2.", "neutral"
    if not stats.drafted and not _all_dropped(stats, rounds):
        return f"Measured here against itself: {speedup:.2f} × ({between}).", "neutral"
    if low <= 1 <= high:
        return f"Measured here: {speedup:.2f} ×, about as fast as the target alone ({between}).", "neutral"
    if speedup > 1:
        return f"Measured here: {speedup:.2f} × faster ({between}).", "faster"
    return f"{speedup:.2f} ×: slower here ({between}). {_why_slower(stats)}", "slower"


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
    return f"{why}; with drafts this long it pays from {needed:.0%} on."
