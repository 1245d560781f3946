"""All words that a user reads and that are said in several languages, by their keys. Standard library only.

One catalogue a language stands beside this file, in the format of i18next (JSON v4): nested keys, {{name}}
for a value, and the endings _one and _other where the number `count` chooses the form. The page's scripts
read the same (ui/static/view/words.js). The command line and the API speak English, the page its visitor's
language.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

WORDS = Path(__file__).parent
LANGUAGES = {"en": "English", "de": "Deutsch"}  # each by its own name; the first where no other is asked for
# The signs in numbers of each language for those of English. The scripts ask Intl.NumberFormat for them.
NUMBER_SIGNS = {"en": {}, "de": str.maketrans({",": ".", ".": ",", "%": "\u00a0%"})}
Speak = Callable[..., str]  # called with a key and the values by name
_VALUE = re.compile(r"\{\{(\w+)\}\}")
_spoken: ContextVar[str] = ContextVar("language", default="en")


class Numeral(str):
    """A number as English writes it: "1,234.5", "76%". `say` writes it as its language does."""


def numeral(value: float, form: str = ",") -> Numeral:
    """The value as a Numeral. form: that of Python's format(), such as ",.1f"."""
    return Numeral(format(value, form))


@contextmanager
def speaking(tag: str) -> Iterator[None]:
    """A context in which `say` speaks this language. tag: one of LANGUAGES."""
    token = _spoken.set(tag)
    try:
        yield
    finally:
        _spoken.reset(token)


def spoken() -> str:
    """The language that `say` speaks now."""
    return _spoken.get()


@cache
def catalogue(tag: str) -> dict[str, Any]:
    return json.loads((WORDS / f"{tag}.json").read_text(encoding="utf-8"))


def say(key: str, **values: object) -> str:
    """The words of a key such as "run.tokens", with these values in them. KeyError where the catalogue lacks
    the key or the value."""
    part: Any = catalogue(spoken())
    *above, last = key.split(".")
    for name in above:
        part = part.get(name) if isinstance(part, dict) else None
    sentence = part.get(form_of(last, values, part)) if isinstance(part, dict) else None
    if not isinstance(sentence, str):
        raise KeyError(key)
    numbers = {name: in_language(value) for name, value in values.items() if isinstance(value, Numeral)}
    return filled(sentence, {**values, **numbers})


def in_language(written: str) -> str:
    """A number as the spoken language writes it. written: the number as English writes it, such as "1,234.5"
    or "76%"."""
    return written.translate(NUMBER_SIGNS[spoken()])


def number(value: float, form: str = ",") -> str:
    """A number as the spoken language writes it. form: that of Python's format(), for English."""
    return in_language(format(value, form))


def speaker_of(section: str) -> Speak:
    """A function that says what stands in a section."""
    return lambda key, **values: say(f"{section}.{key}", **values)


def form_of(key: str, values: Mapping[str, object], table: Mapping[str, object]) -> str:
    """The key with the ending that `count` chooses, where the table has it."""
    chosen = f"{key}_{'one' if values.get('count') == 1 else 'other'}"  # as English and German have them
    return chosen if "count" in values and chosen in table else key


def filled(sentence: str, values: Mapping[str, object]) -> str:
    return _VALUE.sub(lambda name: str(values[name[1]]), sentence)
