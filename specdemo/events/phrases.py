"""Sentences that the page also says in other languages. Standard library only.

Each stands in a table by its key, with {{name}} for a value, and with the endings _one and _other where the
number `count` chooses the form. What composes them takes a Speak. The command line and the API leave it out
and get English. The page gives its own, which reads the catalogues in specdemo/ui/words, and which writes a
Numeral as its language does.
"""

import re
from collections.abc import Callable, Mapping

Speak = Callable[..., str]  # called with a key and the values by name
_VALUE = re.compile(r"\{\{(\w+)\}\}")


class Numeral(str):
    """A number as English writes it: "1,234.5", "76%"."""


def numeral(value: float, form: str) -> Numeral:
    """form: of Python's format(), such as ",.1f"."""
    return Numeral(format(value, form))


def speaker(table: Mapping[str, str]) -> Speak:
    """Says what stands in this table. KeyError where it lacks the key, or a sentence its value."""

    def speak(key: str, **values: object) -> str:
        return filled(table[form_of(key, values, table)], values)

    return speak


def form_of(key: str, values: Mapping[str, object], table: Mapping[str, object]) -> str:
    """The key with the ending that `count` chooses, where the table has it."""
    chosen = f"{key}_{'one' if values.get('count') == 1 else 'other'}"  # as English and German have them
    return chosen if "count" in values and chosen in table else key


def filled(sentence: str, values: Mapping[str, object]) -> str:
    return _VALUE.sub(lambda name: str(values[name[1]]), sentence)
