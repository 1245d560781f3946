"""All words that a visitor of the page sees, by their keys, in the visitor's language.

One catalogue a language stands in specdemo/ui/words, in the format of i18next (JSON v4): nested keys,
{{name}} for a value, and the endings _one and _other where the number `count` chooses the form.
static/view/words.js reads the same. Without torch and without Gradio.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

WORDS = Path(__file__).parents[1] / "words"
LANGUAGES = {"en": "English", "de": "Deutsch"}  # each by its own name; the first where no other is asked for
_VALUE = re.compile(r"\{\{(\w+)\}\}")
_spoken: ContextVar[str] = ContextVar("language", default="en")


@contextmanager
def speaking(tag: str) -> Iterator[None]:
    """Within it, `say` speaks this language. tag: one of LANGUAGES."""
    token = _spoken.set(tag)
    try:
        yield
    finally:
        _spoken.reset(token)


@cache
def catalogue(tag: str) -> dict[str, Any]:
    return json.loads((WORDS / f"{tag}.json").read_text(encoding="utf-8"))


def say(key: str, **values: object) -> str:
    """The words of a key such as "run.tokens", with these values in them. KeyError where the catalogue lacks
    the key or the value."""
    if (count := values.get("count")) is not None and _found(f"{key}_other") is not None:
        key = f"{key}_{'one' if count == 1 else 'other'}"  # as English and German have them
    found = _found(key)
    if not isinstance(found, str):
        raise KeyError(key)
    return _VALUE.sub(lambda name: str(values[name[1]]), found)


def _found(key: str) -> object:
    found: Any = catalogue(_spoken.get())
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
