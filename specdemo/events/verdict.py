"""Whether speculation paid in a run, in one or two sentences. The page and the command line say the same,
because both ask here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdemo.events import Finish, Round, Stats, is_tree
from specdemo.events.speedup import SHORTEST, break_even
from specdemo.events.trace import Trace
from specdemo.words.catalogue import Speak, numeral, speaker_of

Tone = Literal["neutral", "faster", "slower", "lossy"]
IN_WORDS = speaker_of("said.verdict")


@dataclass(frozen=True)
class Verdict:
    text: str
    tone: Tone


def verdict(
    trace: Trace, finish: Finish | None, speak: Speak = IN_WORDS, recorded_on: str = "", settles: bool = False
) -> Verdict:
    """finish: None while the trace's numbers are not the last ones. recorded_on: the machine of a recorded
    run, and the date where it is known; empty of one that was made here and now. settles: whether the run is
    still being timed."""
    stats = trace.stats  # read once, since others may be set meanwhile
    if not stats.tokens:
        return Verdict(speak("none") if finish else "", "neutral")
    counts = {
        "tokens": speak("tokens", count=stats.tokens, shown=numeral(stats.tokens, ",")),
        "forwards": speak("forwards", count=stats.rounds, shown=numeral(stats.rounds, ",")),
    }
    if finish is None:
        return Verdict(speak("so_far", **counts), "neutral")
    if stats.drafted or (stats.drafted is None and stats.accepted):  # None: of a server
        counted = speak("counted", **counts, alone=numeral(stats.tokens, ","))
    elif stats.drafted is None:
        counted = speak("none_accepted", **counts)
    elif any(one.ended_by == "confidence" for one in trace.rounds):
        counted = speak("all_dropped", **counts)
    else:
        counted = speak("nothing_drafted", **counts)
    text, tone = _measured(stats, finish, trace.rounds, speak, recorded_on)
    if settles and stats.speedup is None and _was_busy(stats):
        text = speak("settles")
    both = f"{text} {counted}" if tone == "slower" else f"{counted} {text}"
    if stats.distance is None:
        return Verdict(both, tone)
    lossy = speak("lossy", distance=numeral(stats.distance, ".3f"))
    return Verdict(f"{lossy} {both}", "lossy")


def _measured(
    stats: Stats, finish: Finish, rounds: Sequence[Round], speak: Speak, recorded_on: str
) -> tuple[str, Tone]:
    if stats.speedup is None or stats.speedup_interval is None:
        if stats.draft_ms is None and not _was_busy(stats):
            return speak("served"), "neutral"
        return speak("unknown", why=why_none(stats, finish, speak)), "neutral"
    low, high = (round(end, 2) for end in stats.speedup_interval)  # as they are shown
    factors = {"value": stats.speedup, "low": low, "high": high}
    values = {name: numeral(one, ".2f") for name, one in factors.items()} | {"place": recorded_on}
    there = "_there" if recorded_on else ""
    # Its drafter may have run even if all drafts were dropped, or none could be made.
    if not stats.drafted and not any(one.ended_by in ("confidence", "drafter") for one in rounds):
        return speak(f"itself{there}", **values), "neutral"
    values["found"] = speak("as_fast", **values)
    if low <= 1 <= high:
        return speak(f"unclear{there}", **values), "neutral"
    tone: Tone = "faster" if low > 1 else "slower"
    measured = speak(f"{tone}{there}", **values)
    if tone == "faster" or stats.draft_ms is None:
        return measured, tone
    return f"{measured} {_why_slower(stats, rounds, speak)}", tone


def speedup_in_words(interval: tuple[float, float], speedup: float, key: str = "as_fast") -> str:
    """How many times as fast as the target alone, with the interval. key: that of the sentence;
    "as_fast_as_it" after a sentence that has named the target alone."""
    value, low, high = (numeral(one, ".2f") for one in (speedup, *interval))
    return IN_WORDS(key, value=value, low=low, high=high)


def why_none(stats: Stats, finish: Finish | None, speak: Speak = IN_WORDS) -> str:
    """Why a run that has ended has no speed-up."""
    if finish in ("cancelled", "error"):
        return speak("cancelled" if finish == "cancelled" else "failed")
    if stats.tokens < SHORTEST:
        return speak("short", shortest=SHORTEST)
    return speak("busy" if _was_busy(stats) else "untimed")


def _was_busy(stats: Stats) -> bool:
    """Whether plain rounds were timed, but beside too much else: see `claimed`."""
    return stats.speedup is None and stats.target_step_spread is not None


def _why_slower(stats: Stats, rounds: Sequence[Round], speak: Speak) -> str:
    assert stats.draft_ms is not None, "it is compared with plain rounds of this engine"
    run_ms = stats.run_ms
    share = numeral(stats.draft_ms / run_ms, ".0%")
    is_paused = any(one.ended_by == "pause" for one in rounds)  # then no mean stands for a round with a draft
    if not stats.drafted or is_paused or any(is_tree(one.draft) for one in rounds):
        return speak("drafting_takes", share=share)
    assert stats.target_step_ms is not None and stats.acceptance_rate is not None
    shares = {"share": share, "rate": numeral(stats.acceptance_rate, ".0%")}
    needed = break_even(stats.drafted / stats.rounds, run_ms / stats.rounds / stats.target_step_ms)
    if needed is None:
        return speak("hopeless", **shares)
    # The formula takes drafts to be accepted independently, and can be off by a little.
    if round(needed, 2) <= round(stats.acceptance_rate, 2):
        return speak("why_slower", **shares)
    return speak("needs_more", **shares, needed=numeral(needed, ".0%"))
