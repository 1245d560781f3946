"""Halls: what is counted, what is refused, and when they are forgotten."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specdemo.ui.runs import guess as module
from specdemo.ui.runs.guess import Halls
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.runs.routes import hall_routes
from specdemo.words.catalogue import say

GAME = "0123456789abcdef"
FEW = replace(LOCAL, halls=3, halls_of_address=2, plays_of_hall=2, hall_seconds=60)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1_000.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now.seconds)
    return now


def played(halls, code, session, before=(), written=(1, 2), beside=(1,), index=0, game=GAME):
    """One judged round. before: the text's token ids; written: those that it adds."""
    request = SimpleNamespace(hall=code, index=index, output_ids=tuple(before))
    rounds = {"guessed": {"emitted": list(written)}, "drafted": {"emitted": list(beside)}}
    return halls.count(session, request, {"name": game, **rounds})


def begun(halls, code, session):
    return halls.count(session, SimpleNamespace(hall=code), {"name": GAME})


def test_each_page_counts_its_tokens_and_those_of_the_drafter_round_after_round():
    halls = Halls(FEW)
    code = halls.open(GAME, "a")
    assert halls.counts(code) == {"players": [], "hall": None, "drafter": None}
    assert played(halls, code, "one", written=(1, 2, 3), beside=(1,)) == ""
    assert played(halls, code, "one", (1, 2, 3), written=(4,), beside=(4, 5), index=1) == ""
    assert played(halls, code, "two", written=(7,), beside=(1, 2, 3)) == ""
    assert halls.counts(code) == {"players": [1.0, 2.0], "hall": 5 / 3, "drafter": 2.0}


def test_a_round_is_counted_once_and_only_where_the_first_game_stands():
    halls = Halls(FEW)
    code = halls.open(GAME, "a")
    played(halls, code, "one", written=(1,))
    before = halls.counts(code)
    for wrong in ({}, {"before": (2,), "index": 1}, {"before": (1,), "index": 2}):
        assert played(halls, code, "one", written=(1, 2, 3), **wrong) == say("guess.hall.apart")
    never = played(halls, code, "two", before=(1,), index=1)
    assert never == say("guess.hall.apart"), "it has not played the rounds before"
    assert halls.counts(code) == before
    assert begun(halls, code, "two") == "", "nothing of it was counted"
    again = say("guess.hall.again")
    assert begun(halls, code, "one") == played(halls, code, "one") == again
    assert played(halls, code, "one", before=(1,), index=1) == again, "the first game is over"
    assert halls.counts(code) == before


def test_another_game_a_wrong_code_and_a_full_hall_get_a_sentence(clock):
    halls = Halls(FEW)
    code = halls.open(GAME, "a")
    assert begun(halls, code, "one") == ""
    shut = say("guess.hall.shut")
    assert played(halls, code, "one", game="f" * 16) == shut
    assert played(halls, "0" * 32, "one") == played(halls, "", "one") == shut
    assert halls.counts(code)["players"] == [] and halls.counts("0" * 32) is None, "an opening is no play"
    for session in ("one", "two"):
        played(halls, code, session, written=(1,))
    assert played(halls, code, "three") == say("guess.hall.full")
    assert played(halls, code, "one", (1,), index=1) == ""
    assert halls.counts(code)["players"] == [1.0, 1.5]
    clock.seconds += FEW.hall_seconds + 1
    assert halls.counts(code) is None and played(halls, code, "one") == shut
    assert halls.halls == {} and halls.open(GAME, "a")


def test_an_address_opens_only_so_many_and_gives_way_to_one_that_has_none(clock):
    halls = Halls(FEW)
    first, second = halls.open(GAME, "a"), halls.open(GAME, "a")
    assert first != second and len(first) == 32
    played(halls, second, "one")
    clock.seconds += 9
    assert halls.counts(first) and halls.open(GAME, "a") is None
    clock.seconds += 9
    assert halls.open(GAME, "a") is None, "somebody looks at it"
    clock.seconds += 9
    empty, first = first, halls.open(GAME, "a")
    assert first and halls.get(second)
    assert halls.get(empty) is None, "nobody has played in it, and nobody looks at it"
    third = halls.open(GAME, "b")
    assert (fourth := halls.open(GAME, "c")) and halls.get(second) is None
    assert all(map(halls.get, (first, third, fourth)))
    assert halls.open(GAME, "d") is None, "nobody has more than one"


EXERCISE = {"question": "kept?", "rows": [["p", "0.5"]], "choices": ["yes", "no"], "right": 1, "why": "u"}


@pytest.fixture
def client():
    return TestClient(Starlette(routes=hall_routes(Halls(FEW))))


def opened(client, page="http://127.0.0.1:7860/?tab=exercises"):
    return client.post("/specdemo/halls/exercises/open", content=page).json()


def test_what_the_hall_answers_is_counted_once_for_each_page_and_each_exercise(client):
    hall = opened(client)
    assert hall["link"] == f"http://127.0.0.1:7860/?tab=exercises&hall={hall['code']}"
    assert hall["picture"].startswith("data:image/svg+xml")
    path = f"/specdemo/halls/{hall['code']}"

    def told(**what):
        return client.post(path, json=what).json()

    assert told(key=hall["key"][:-1], exercise=EXERCISE) == {"wrong": say("exercises.not_yours")}
    assert "exercise" not in client.get(path).json()
    assert told(key=hall["key"], exercise=EXERCISE) == {}
    for session, choice in (("a", 0), ("a", 1), ("b", 1)):
        assert told(session=session, asked=1, choice=choice) == {}
    assert told(session="c", asked=1, choice=0) == {"wrong": say("guess.hall.full")}
    assert client.get(path).json() == {"exercise": EXERCISE, "asked": 1, "answers": [1, 1]}
    assert told(key=hall["key"], exercise=EXERCISE) == {}
    assert told(session="d", asked=1, choice=0) == {"wrong": say("exercises.over")}
    assert client.get(path).json()["answers"] == [0, 0]


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"\xff", b"[]", b'{"key": 1}', b'{"session": "a b", "asked": 1, "choice": 0}', b"9" * 5000],
)
def test_what_is_no_answer_gets_a_sentence(client, body):
    answer = client.post(f"/specdemo/halls/{opened(client)['code']}", content=body)
    assert answer.status_code == 200 and answer.json()["wrong"]


def test_a_page_on_this_machine_is_told_by_the_address_that_others_reach(client):
    halls = Halls(FEW)
    halls.reached = "10.0.0.7"
    client = TestClient(Starlette(routes=hall_routes(halls)))
    assert opened(client, "http://localhost:7860/x?a=b")["link"].startswith(
        "http://10.0.0.7:7860/x?a=b&hall="
    )
    assert opened(client, "https://name.example/?a=b")["link"].startswith("https://name.example/?a=b&")
    assert opened(client, "http://[")["wrong"]
