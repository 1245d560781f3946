"""What is said in English to programs is said in the visitor's language on the page."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import specdemo
from specdemo.errors import PairError
from specdemo.events import Params, check_prompt
from specdemo.events.params import LIMITS, check_number
from specdemo.loading.catalog import CATALOGUE
from specdemo.loading.load import _loading_weights
from specdemo.loading.request import Part
from specdemo.ui.page.links import read_link
from specdemo.ui.runs.guess import CANNOT_WRITE, guess_request
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import HOSTED, LOCAL, Visitor
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.queue import Refused, RunQueue
from specdemo.ui.runs.run import Waiting
from specdemo.ui.runs.trials import trials_request
from specdemo.ui.view.retold import retold
from specdemo.ui.view.settings import about_file, in_labels
from specdemo.vllm.client import server_address
from specdemo.words.catalogue import catalogue, speaking

SOURCE = Path(specdemo.__file__).parent
ALONE = Params(draft_with="none")
GAME = {"ids": "", "round": 0, "guess": "", "game": ""}
RACE = {"kind": "race", "prompts": "this"}
# What German does not have, and sentences of this project nearly always do.
ENGLISH = re.compile(r"\b(must|the|is|are|of|from|this|not|and|which|cannot|box|to)\b")


def sent_away(asked="run") -> str:
    """Why somebody's second request waits no longer."""
    queue = RunQueue()
    visitor = Visitor("one", "1.2.3.4")
    first = queue.join(visitor, asked)
    with pytest.raises(Refused) as refused:
        queue.join(visitor, "measurement" if asked == "run" else "run")
    queue.join(visitor, asked, replaces=True)
    return f"{refused.value}\n{first.done.exception()}"


REFUSED = {
    "an empty box": lambda: Params(max_new_tokens=None),
    "a choice": lambda: Params(rule="best"),
    "a truth": lambda: Params(chat="x"),
    "half a pair": lambda: Params(stop=("\ud800",)),
    "stops": lambda: Params(stop=("x" * 1001,)),
    "no prompt": lambda: check_prompt(""),
    "a long prompt": lambda: HOSTED.check("x" * 20_001, Params()),
    "a switch": lambda: read_link("run=2", []),
    "a pinned token": lambda: read_link("token=x", []),
    "a step": lambda: read_link("tour=x", []),
    "messages": lambda: read_link("messages=x", []),
    "a message": lambda: read_link('messages=[{"role":"user","content":1}]', []),
    "weights": lambda: read_link("dtype=auto", [], HOSTED),
    "a pair": lambda: read_link("pair=x", ["embedded"]),
    "an address": lambda: server_address("x"),
    "an address with a password": lambda: server_address("http://a:b@c"),
    "a measurement of nothing": lambda: measurement_request(RACE, Choice(), "x", ALONE),
    "a game against nobody": lambda: guess_request(GAME, Choice(), "x", ALONE),
    "an empty guess": lambda: guess_request(GAME | {"game": "x"}, Choice(), "x", Params()),
    "trials of nothing": lambda: trials_request({"trial": "pair"}, Choice(), "x", ALONE),
}
SAID = {
    "a guess that cannot be written": CANNOT_WRITE.format("'x'"),
    "no memory": "The run failed: MemoryError: there was not enough memory for it: try a shorter text, or a "
    "smaller pair",
    "a context": "prompt must have at most 255 tokens for this target, but has 1,300",
    "a context that longrope ends": "prompt must have at most 39 tokens for this target, but has 40: the "
    "target's context ends at 40 of its 256 tokens: beyond that its rotary factors change (longrope), and "
    "the keys in the cache would no longer be right",
    "a token that the target lacks": "prompt must hold tokens whose ids are whole numbers from 0 to 294, "
    "not 296 ('<extra2>')",
    "stop strings beside the model's": "stop must be at most 63 strings for this pair, whose generation "
    "config has 1 of its own, not 64",
    "a special token in a stop string": "stop must hold the special token '<end>' as a string of its own, "
    "not 'a<end>'",
    "no chat template": "chat must be false for this pair: its tokenizer has no chat template",
    "rows that are refused": "the drafter does not multiply 3 rows at once, which is slower: no numba",
    "weights of which few are quantised": "int8 holds 16 % of the target's weights: the rest, such as "
    "model.layers.0.mlp.experts.gate_up_proj, stays in float32",
    "a pair's note": "the target runs operation by operation, which is slower: no numba",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_of_each_kind_is_german_on_a_german_page(kind):
    with pytest.raises((ValueError, PairError)) as refused:
        REFUSED[kind]()
    told = in_german(str(refused.value))
    assert not ENGLISH.search(told), told


@pytest.mark.parametrize("kind", SAID)
def test_what_else_a_visitor_can_cause_is_german_too(kind):
    told = in_german(SAID[kind])
    assert not ENGLISH.search(told), told


def in_german(sentence: str) -> str:
    """And in English it is what it was, but for the label."""
    rest = sentence.partition(" ")[2].removesuffix(", not None")
    assert rest in in_labels(sentence)
    with speaking("de"):
        told = in_labels(sentence)
    assert told != sentence
    return told


def test_the_line_speaks_german():
    for sentence in (*sent_away().split("\n"), *sent_away("measurement").split("\n")):
        with speaking("de"):
            assert not ENGLISH.search(in_labels(sentence)), sentence
    with speaking("de"), pytest.raises(Refused) as busy:
        RunQueue(replace(LOCAL, waiting=0)).join(Visitor("one", "1.2.3.4"), "run")
    with speaking("de"):
        assert in_labels(str(busy.value)).startswith("Der Server ist ausgelastet: 0 Anfragen warten schon.")
    ticket = RunQueue(replace(LOCAL, run_seconds=60)).join(Visitor("one", "1.2.3.4"), "run")
    with speaking("de"):
        assert retold(ticket.ending).startswith("Dieser Lauf wurde nach 60 s beendet")


def test_values_are_written_as_german_does():
    with speaking("de"), pytest.raises(ValueError) as refused:
        Params(seed=-1)
    with speaking("de"):
        told = in_labels(str(refused.value))
        assert told == "Seed: erlaubt ist eine ganze Zahl von 0 bis 9.007.199.254.740.991, nicht -1"
        wrong = about_file("this is not a specdemo.trace/1 file: params: Value error, top_p must be x, not 2")
    assert wrong.startswith("Die Datei lässt sich nicht öffnen: Top-p ")


def test_every_number_has_a_german_refusal():
    for field in LIMITS:
        with pytest.raises(ValueError) as refused:
            check_number(field, "x")
        assert "erlaubt ist" in in_german(str(refused.value))


def test_every_pair_is_described_in_german():
    english = set(catalogue("en")["retold"]["pairs"].values())
    assert english == {entry.about for entry in CATALOGUE.values()}


def test_what_no_catalogue_knows_stays_as_it_is():
    with speaking("de"):
        for sentence in ("", "CUDA error: no kernel image", "something else, not x", "pair x"):
            assert retold(sentence) == sentence


def test_each_form_is_that_of_a_sentence_of_the_program():
    """So that no sentence is changed where it is raised and stays English on the page from then on. Parts of
    it can come from elsewhere, so most of its words in threes are looked for."""
    written = "\n".join(
        one.value
        for file in SOURCE.rglob("*.py")
        for one in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
    lost = []
    for section in ("refusals", "notes", "pairs"):
        for key, english in catalogue("en")["retold"][section].items():
            parts = [part.split() for part in re.split(r"\{\{\w+\}\}", english)]
            threes = [" ".join(words[at : at + 3]) for words in parts for at in range(len(words) - 2)]
            if threes and sum(three in written for three in threes) < len(threes) / 2:
                lost.append(key)
    assert lost == []


def test_what_a_loader_does_is_said_in_german():
    part = Part("drafter", "a/b", "a/b", "cpu", None, None)
    for doing in (_loading_weights(part), "Downloading target a/b: 1.5 of 1,024.0 MB", "Warming up"):
        with speaking("de"):
            told = Waiting("run.loading", {"doing": doing, "seconds": "3"}, None).sentence
        assert not ENGLISH.search(told) and told.endswith(" … 3 s")
    assert "1,5 von 1.024,0 MB" in in_german("Downloading target a/b: 1.5 of 1,024.0 MB")
