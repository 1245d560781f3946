"""What the server keeps of runs for the page to fetch: bounded, and gone when it is dropped."""

import gzip
import json
import time
from dataclasses import replace

from specdemo.ui.limits import LOCAL
from specdemo.ui.shelf import INLINE, PATIENCE, Shelf


def test_the_longest_unused_text_is_dropped_first():
    shelf = Shelf(replace(LOCAL, session_bytes=25))
    first, second = shelf.put(b"1" * 10, "a"), shelf.put(b"2" * 10, "a")
    assert shelf.get(first) == b"1" * 10
    third = shelf.put(b"3" * 10, "a")
    assert shelf.get(second) is None and shelf.get(first) and shelf.get(third) and shelf.size == 20
    shelf.put(b"4" * 5, "a", third)
    assert shelf.get(third) == b"4" * 5 and shelf.size == 15
    shelf.drop(first, "never there")
    assert shelf.get(first) is None and shelf.size == 5


def test_it_is_bounded_in_number_and_time(monkeypatch):
    shelf = Shelf(replace(LOCAL, sessions=2))
    names = [shelf.put(b"x", "a") for _ in range(6)]
    assert [bool(shelf.get(name)) for name in names] == [False, False, True, True, True, True]
    later = time.monotonic() + PATIENCE + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    last = shelf.put(b"y", "a")
    assert list(shelf.entries) == [last]


def test_an_owner_with_much_loses_its_own_texts_and_nobody_elses():
    shelf = Shelf(replace(LOCAL, session_bytes=100))
    modest = shelf.put(b"m" * 20, "modest")
    greedy = [shelf.put(b"g" * 10, "greedy") for _ in range(60)]
    assert shelf.get(modest) and shelf.size == 100
    assert [name for name in greedy if shelf.get(name)] == greedy[-8:]
    others = [shelf.put(b"o" * 20, f"other {number}") for number in range(3)]
    assert shelf.get(modest) and all(map(shelf.get, others))
    assert [name for name in greedy if shelf.get(name)] == greedy[-2:]


def test_the_same_holds_for_the_number_of_texts():
    shelf = Shelf(replace(LOCAL, sessions=2))
    modest = shelf.put(b"much" * 100, "modest")
    greedy = [shelf.put(b"x", "greedy") for _ in range(9)]
    assert shelf.get(modest) and [name for name in greedy if shelf.get(name)] == greedy[-3:]


def test_a_long_update_is_fetched_and_a_short_one_is_not():
    shelf = Shelf(LOCAL)
    update = {"since": 0, "until": 1, "verdict": "x" * INLINE, "rounds": [{"draft": []}, {"draft": [1]}]}
    message = json.loads(shelf.text_of({"run": 3, "update": update, "notice": {"text": "é"}}, "a"))
    assert message.keys() == {"run", "stored", "notice"}
    assert json.loads(gzip.decompress(shelf.get(message["stored"]))) == update
    short = {"run": 3, "update": update | {"verdict": ""}}
    assert json.loads(shelf.text_of(short, "a")) == short
