"""The catalogues of words: complete in each language, and used."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdemo.events import DRAFTER_KINDS, LISTED, RULES, words_of_row
from specdemo.words.catalogue import LANGUAGES, WORDS, catalogue, say, speaking

UI, MEASURE, TRIALS, EVENTS = (WORDS.parent / name for name in ("ui", "measure", "trials", "events"))
SCRIPTS = sorted(UI.glob("static/*/*.js"))
VALUE = re.compile(r"\{\{(\w+)\}\}")


def flat(part: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in part.items():
        yield from flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]


ENGLISH = dict(flat(catalogue("en")))
NAMES = {re.sub(r"_(one|other)$", "", key) for key in ENGLISH}  # as `say` is asked for them
# A literal that begins as a key does; in a template or an f-string a value can be a part of it.
PART = r"\$?\{[^{}]*\}"
LITERAL = re.compile(rf"""(["'`])((?:{"|".join(catalogue("en"))})\.(?:[\w.]|{PART})*)\1""")
TEMPLATE = re.compile(rf"""\{{((?:{"|".join(catalogue("en"))})\.[\w.]+)\}}""")  # of the page's frame
SAID = re.compile(rf"""\bsay\(\s*f?(["`])((?:[^"`${{]|{PART})*)\1""")
COMMENT = re.compile(r"^\s*(?://|/?\*).*$", re.M)


def code(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    return COMMENT.sub("", text) if file.suffix == ".js" else text


def names_of(literal: str) -> set[str]:
    """The keys that a literal can be."""
    form = re.compile(r"[^.]*".join(map(re.escape, re.split(PART, literal))))
    return {name for name in NAMES if form.fullmatch(name)}


def literals(file: Path) -> set[str]:
    found = {text for _, text in LITERAL.findall(code(file))}
    return found | set(TEMPLATE.findall(code(file))) if file.suffix == ".py" else found


def test_each_catalogue_belongs_to_a_language():
    assert {path.stem for path in WORDS.glob("*.json")} == set(LANGUAGES)


@pytest.mark.parametrize("tag", [tag for tag in LANGUAGES if tag != "en"])
def test_each_language_has_all_words_with_the_same_values(tag):
    other = dict(flat(catalogue(tag)))
    assert set(other) == set(ENGLISH)
    for key, words in ENGLISH.items():
        assert sorted(VALUE.findall(other[key])) == sorted(VALUE.findall(words)), key
        assert bool(other[key]) == bool(words), key


def test_a_key_or_a_value_that_is_missing_is_an_error():
    for missing in ("page.nothing", "page", "nothing.at.all"):
        with pytest.raises(KeyError):
            say(missing)
    with speaking("de"), pytest.raises(KeyError):
        say("page.nothing")


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.name)
def test_scripts_ask_for_words_that_there_are(file):
    said = {text for _, text in SAID.findall(code(file))}
    assert {text for text in literals(file) | said if not names_of(text)} == set()


@pytest.mark.parametrize("tag", LANGUAGES)
def test_each_row_has_its_words(tag):
    of_rule = ("name", "label", "meaning", "accepted", "recorded", "about")
    rows = {
        "methods": (LISTED, ("label", "menu", "sentence")),
        "kinds": (DRAFTER_KINDS, ("label", "sentence")),
    }
    with speaking(tag):
        for table, (names, parts) in (rows | {"rules": (RULES, of_rule)}).items():
            assert all(isinstance(words_of_row(table, name, part), str) for name in names for part in parts)


def test_no_words_are_left_over():
    python = [file for folder in (UI, MEASURE, TRIALS, EVENTS) for file in folder.rglob("*.py")]
    asked = set().union(*map(literals, (*SCRIPTS, *python, *MEASURE.glob("*.html"))))
    used = set().union(*map(names_of, asked))
    empty = {name for name in NAMES if ENGLISH.get(name) == ""}  # of a section that has no words yet
    messages = {name for name in NAMES if name.startswith("messages.")}  # test_messages.py looks for these
    assert NAMES - used - empty - messages == set()
