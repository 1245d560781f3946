"""What goes into a run (`Params`) and what comes out of it (events, numbers, trace). Nothing here imports
torch."""

from specdemo.events.params import DRAFT_WITH, LIMITS, LOSSY, RULES, Params, allowed, check_number, check_text
from specdemo.events.rounds import (
    Alternative,
    ByModel,
    Fate,
    Finish,
    Finished,
    Judged,
    Kept,
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
    "LOSSY",
    "RULES",
    "Alternative",
    "ByModel",
    "Fate",
    "Finish",
    "Finished",
    "Judged",
    "Kept",
    "Next",
    "PairInfo",
    "Params",
    "Round",
    "Source",
    "Started",
    "Stats",
    "allowed",
    "check_number",
    "check_text",
]
