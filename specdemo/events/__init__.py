"""The vocabulary of a run: what it is asked and what it says. Nothing here imports torch."""

from specdemo.events.params import DRAFT_WITH, LIMITS, RULES, Params, allowed, check_text, number
from specdemo.events.rounds import (
    Alternative,
    ByModel,
    Fate,
    Finished,
    Judged,
    Next,
    PairInfo,
    Round,
    Source,
    Started,
    Stats,
)

__all__ = [
    "DRAFT_WITH",
    "LIMITS",
    "RULES",
    "Alternative",
    "ByModel",
    "Fate",
    "Finished",
    "Judged",
    "Next",
    "PairInfo",
    "Params",
    "Round",
    "Source",
    "Started",
    "Stats",
    "allowed",
    "check_text",
    "number",
]
