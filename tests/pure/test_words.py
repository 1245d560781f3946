"""The catalogues of words: complete in each language, and used."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from specdemo.ui.view.words import LANGUAGES, WORDS, catalogue, say, speaking

VALUE = re.compile(r"\{\{(\w+)\}\}")


def flat(part: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in part.items():
        yield from flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]


ENGLISH = dict(flat(catalogue("en")))


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
