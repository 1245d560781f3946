"""The words of the rows of specdemo/drafters/ and of specdemo/events/choices.py in the visitor's language.
Without torch and without Gradio."""

from typing import Literal

from specdemo.events import DRAFTER_KINDS, METHODS, RULES
from specdemo.words.catalogue import say

ROWS_BY_TABLE = {"methods": METHODS, "kinds": DRAFTER_KINDS, "rules": RULES}


def words_of_row(table: Literal["methods", "kinds", "rules"], name: str, part: str) -> str:
    """The words of a row. part: a field of the row that is words, or "menu", a method's name in the
    drop-down. A row that the catalogues do not know keeps its English; a test holds that they know all that
    are shipped."""
    if table == "methods" and "+" in name:
        first, second = (words_of_row(table, one, part) for one in name.split("+"))
        return say(f"choices.chain.{part}", first=first, second=second)
    try:
        return say(f"choices.{table}.{name}.{part}")
    except KeyError:
        row = ROWS_BY_TABLE[table][name]
        return getattr(row, "menu_label", None) or row.label if part == "menu" else getattr(row, part)
