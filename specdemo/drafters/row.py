"""What a drafting method, and a kind of drafter, says of itself: what it is called, and what it takes.
Standard library only."""

from dataclasses import dataclass
from typing import Literal

# How the tokens of a draft come about: each from the one before it; all in one forward; all in one forward,
# and then corrected one after another; or copied from the text.
Manner = Literal["chain", "block", "block and chain", "copy"]

# The fields of Params that each drafter that is a model uses.
BY_MODEL = ("gamma", "confidence", "draft_temperature")


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft."""

    name: str  # Params.draft_with
    label: str  # in tables, and in the page's drop-down unless menu_label is given
    sentence: str  # what it does
    fields: tuple[str, ...]  # of Params, that it uses
    is_by_drafter: bool = False  # whether the pair's drafter drafts
    needs_drafter: bool = False  # whether the pair must have one
    is_usual: bool = True  # whether a target nearly always can: False for what few targets have
    takes_the: bool = True  # whether "the" stands before its label in a sentence
    menu_label: str | None = None
    manner: Manner | None = None  # None: that of the pair's drafter, or nothing is drafted


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """What a pair's drafter can be. What is told of a head's files is in formats.py."""

    name: str  # PairInfo.drafter_kind
    label: str  # in tables and before the drafter's name
    manner: Manner
    sentence: str  # how it drafts
    drafts_trees: bool = False  # Params.tree
    in_speculators: bool = False  # whether the library speculators has such heads, of the type `name`
    authors: str | None = None  # a pattern of what their authors call class or type, in small letters
