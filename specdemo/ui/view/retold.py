"""Sentences that others have in English only, in the visitor's language: what refuses a request (Params, the
limits, the line, the loader), which the API and the command line say, too; what is said of a pair; what a
loader does. Without torch and without Gradio.

The catalogues have them below `retold`. The English one is the form by which a sentence is known, so a
sentence of another form stays English.
"""

import re
from functools import cache

from specdemo.words.catalogue import catalogue, in_language, say

RETOLD_SECTIONS = ("refusals", "notes", "pairs", "loading")
# Values that are sentences, too, or parts of one. "why" can be somebody else's, and in English.
INNER_SENTENCES = ("what", "who", "why")
VERBATIM = ("device", "example", "given", "name", "names", "reason", "sign")  # values that stay as they are
ANY_NUMBER = r"-?\d[\d.,]*"  # all other values
_NAME = re.compile(r"\\\{\\\{(\w+)\\\}\\\}")


def retold(sentence: str) -> str:
    """The sentence in the visitor's language; as it is where the catalogues have none of its form."""
    return _found(sentence) or sentence


def _found(sentence: str) -> str | None:
    for section, key, form in _forms():
        if found := form.fullmatch(sentence):
            values = {name: _value(name, text) for name, text in found.groupdict().items()}
            if all(value is not None for value in values.values()):
                return say(f"retold.{section}.{key}", **values)
    return None


def _value(name: str, text: str) -> str | None:
    """None: a part of the sentence that has to be known, and is not."""
    if name in ("what", "who"):
        return _found(text)
    if name == "why":
        return retold(text)
    is_number = name not in VERBATIM or re.fullmatch(ANY_NUMBER, text)
    return in_language(text) if is_number else text


@cache
def _forms() -> list[tuple[str, str, re.Pattern[str]]]:
    """Section, key and form of each sentence, that with the most words of its own first."""
    every = [
        (section, key, english)
        for section in RETOLD_SECTIONS
        for key, english in catalogue("en")["retold"][section].items()
    ]
    every.sort(key=lambda one: -len(re.sub(r"\{\{\w+\}\}", "", one[2])))
    return [(section, key, _form_of(english)) for section, key, english in every]


def _form_of(english: str) -> re.Pattern[str]:
    def value(found: re.Match[str]) -> str:
        return f"(?P<{found[1]}>{'.+?' if found[1] in (*INNER_SENTENCES, *VERBATIM) else ANY_NUMBER})"

    return re.compile(_NAME.sub(value, re.escape(english)), re.DOTALL)
