"""What is said in English to programs, by str(), is said in the visitor's language on the page."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdemo
from specdemo.errors import PairError, failure, no_mistakes
from specdemo.events import Params, check_prompt
from specdemo.events.params import LIMITS, check_number
from specdemo.servers.client import server_address
from specdemo.ui.page.links import read_link
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.models import Choice
from specdemo.ui.view.settings import in_words
from specdemo.words.catalogue import catalogue, speaking
from specdemo.words.message import Message, message, message_of, refusal
from tests.pure.test_words import VALUE, flat

SOURCE = Path(specdemo.__file__).parent
ALONE = Params(draft_with="none")
GAME = {"kind": "guess", "ids": "", "round": 0, "guess": "", "game": ""}
RACE = {"kind": "race", "prompts": "this"}
# What German does not have, and sentences of this project nearly always do.
ENGLISH = re.compile(r"\b(must|the|is|are|of|from|this|not|and|which|cannot|box|to)\b")

REFUSED = {
    "an empty box": lambda: Params(max_new_tokens=None),
    "a choice": lambda: Params(rule="best"),
    "a truth": lambda: Params(chat="x"),
    "half a pair": lambda: Params(stop=("\ud800",)),
    "no prompt": lambda: check_prompt(""),
    "a switch": lambda: read_link("run=2", []),
    "a message": lambda: read_link('messages=[{"role":"user","content":1}]', []),
    "a pair": lambda: read_link("pair=x", ["embedded"]),
    "an address": lambda: server_address("x"),
    "a measurement of nothing": lambda: measurement_request(RACE, Choice(), "x", ALONE),
    "a game against nobody": lambda: measurement_request(GAME, Choice(), "x", ALONE),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_of_each_kind_is_german_on_a_german_page(kind):
    with pytest.raises((ValueError, PairError)) as refused:
        REFUSED[kind]()
    in_german(message_of(refused.value))


def in_german(told: Message) -> str:
    """And in English it is what programs get, but for the label."""
    rest = str(told) if told.field is None else str(told).removeprefix(f"{told.field} ")
    assert rest.removesuffix(", not None") in in_words(told)
    with speaking("de"):
        said = in_words(told)
        assert str(told).endswith(rest), "programs get English, whoever asks"
    assert not ENGLISH.search(said), said
    return said


def test_a_secret_and_a_directory_are_taken_out_of_what_is_said_in_any_language(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    error = PairError(message("failed", why=message("error", name="x", why="hunter2-hunter2")))
    assert str(error) == "The run failed: x: ***" and in_german(message_of(error)).endswith(": x: ***")
    with pytest.raises(RuntimeError) as failed, no_mistakes():
        raise ValueError("y" * 500_000)
    assert "y" in str(failure(failed.value)) and len(str(failure(failed.value))) < 500


def test_values_are_written_as_each_language_does():
    assert str(ValueError(refusal("seed", "whole", None, low=0, high=2_000))).endswith(" to 2,000, not None")
    with pytest.raises(ValueError) as refused:
        Params(seed=-1)
    with speaking("de"):
        told = in_words(refused.value)
    assert told == "Seed: erlaubt ist eine ganze Zahl von 0 bis 9.007.199.254.740.991, nicht -1"


def test_every_number_has_a_german_refusal():
    for field in LIMITS:
        with pytest.raises(ValueError) as refused:
            check_number(field, "x")
        in_german(message_of(refused.value))


def test_each_message_is_german():
    english = dict(flat(catalogue("en")["messages"]))
    german = dict(flat(catalogue("de")["messages"]))
    alike = {key for key in german if german[key] == english[key] or ENGLISH.search(german[key])}
    assert alike == {"error", "loads"}


def test_somebody_elses_words_stay_as_they_are():
    with speaking("de"):
        for words in ("", "CUDA error: no kernel image", "something else, not x"):
            assert in_words(words) == in_words(RuntimeError(words)) == words


MESSAGES = dict(flat(catalogue("en")["messages"]))
MAKERS = {"message": 0, "about": 1, "refusal": 1}  # by what makes messages: which argument is the key


def users() -> Iterator[ast.Module]:
    """The modules that make messages, as syntax trees."""
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "specdemo.words.message" in text or file.parent.name == "words":
            yield ast.parse(text)


def keys_of(part: ast.expr) -> set[str]:
    """The keys that an expression can be, as it is written."""
    written = {one.value for one in ast.walk(part) if isinstance(one, ast.Constant) and one.value in MESSAGES}
    for one in ast.walk(part):
        if isinstance(one, ast.JoinedStr):
            parts = [
                re.escape(str(each.value)) if isinstance(each, ast.Constant) else "[^.]+"
                for each in one.values
            ]
            written |= {key for key in MESSAGES if re.fullmatch("".join(parts), key)}
    return written


def test_each_key_is_used_and_each_that_is_used_is_there_with_its_values():
    used = set()
    for tree in users():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in MAKERS:
                key = call.args[MAKERS[call.func.id]] if len(call.args) > MAKERS[call.func.id] else None
                if isinstance(key, (ast.Constant, ast.JoinedStr)):
                    found, given = keys_of(key), {one.arg for one in call.keywords}
                    assert found, ast.unparse(call)
                    for each in found if None not in given else ():
                        assert set(VALUE.findall(MESSAGES[each])) == given, ast.unparse(call)
        used |= {key for part in ast.walk(tree) if isinstance(part, ast.expr) for key in keys_of(part)}
    assert MESSAGES.keys() - used == set()
