"""What goes into a run (`Params`) and what comes out of it (events, numbers, trace). Nothing here imports
torch."""

from specdemo.events.params import DRAFT_WITH, LIMITS, RULES, Params, allowed, check_number, check_text
from specdemo.events.rounds import (
    Alternative,
    ByModel,
    Fate,
    Finish,
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
    "Finish",
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
    "check_number",
    "check_text",
]
