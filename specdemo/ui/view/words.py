"""All words that a visitor of the page sees, by their keys, in the visitor's language.

One catalogue a language stands in specdemo/ui/words, in the format of i18next (JSON v4): nested keys,
{{name}} for a value, and the endings _one and _other where the number `count` chooses the form.
static/view/words.js reads the same. Without torch and without Gradio.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from specdemo.events.phrases import Numeral, Speak, filled, form_of

WORDS = Path(__file__).parents[1] / "words"
LANGUAGES = {"en": "English", "de": "Deutsch"}  # each by its own name; the first where no other is asked for
# Of each language: its signs in numbers for those of English. The scripts ask Intl.NumberFormat for them.
NUMBER_SIGNS = {"en": {}, "de": str.maketrans({",": ".", ".": ",", "%": "\u00a0%"})}
_spoken: ContextVar[str] = ContextVar("language", default="en")


@contextmanager
def speaking(tag: str) -> Iterator[None]:
    """Within it, `say` speaks this language. tag: one of LANGUAGES."""
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
    found = part.get(form_of(last, values, part)) if isinstance(part, dict) else None
    if not isinstance(found, str):
        raise KeyError(key)
    return filled(found, {name: _own(value) for name, value in values.items()})


def _own(value: object) -> object:
    return in_language(value) if isinstance(value, Numeral) else value


def in_language(written: str) -> str:
    """A number as the visitor's language writes it. written: as English does, such as "1,234.5" or "76%"."""
    return written.translate(NUMBER_SIGNS[spoken()])


def number(value: float, form: str = ",") -> str:
    """The same of a number. form: of Python's format(), for English."""
    return in_language(format(value, form))


def speaker_of(section: str) -> Speak:
    """Says what stands in a section, for what composes sentences of its own table in English."""
    return lambda key, **values: say(f"{section}.{key}", **values)
