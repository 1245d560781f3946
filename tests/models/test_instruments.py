"""What the page measures on request, with the embedded pair and without a page: a race, draft lengths, two
worlds; and what each instrument refuses. The game and the trials have files of their own."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo import Params, generate
from specdemo.errors import PairError
from specdemo.trials.alterations import OWN, STOPS
from specdemo.ui.page.frame import TABS
from specdemo.ui.runs.guess import LONGEST_GUESS
from specdemo.ui.runs.instruments import INSTRUMENTS, measurement_request
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.trials import WorldsRequest, params_of
from specdemo.ui.view import feed
from specdemo.ui.view.feed import MEASUREMENT_KINDS, SET_SIZE, tokens_of
from tests.pure.test_following import measured
from tests.sentences import assert_one_sentence

PROMPT = "One day, a girl named Mia found a tiny kitten in the rain."
GREEDY = Params(temperature=0, max_new_tokens=12, seed=1)
USUAL = {"name": None, "target": None, "drafter": None, "device": "cpu", "dtype": None, "quantize": None}


@pytest.fixture(scope="module")
def models():
    return Models(USUAL)


@pytest.fixture(scope="module")
def queue():
    return RunQueue()


def asked(wanted, params=GREEDY, prompt=PROMPT):
    return measurement_request(wanted, Choice(), prompt, params)


def test_each_kind_of_measurement_is_a_row_with_a_tab():
    assert set(INSTRUMENTS) == set(MEASUREMENT_KINDS) <= set(TABS)


@pytest.mark.slow
def test_a_greedy_race_has_two_identical_texts(models, queue):
    *_, last = measured(models, queue, asked({"kind": "race"}))
    alone, drafted = last["race"]["lanes"]
    assert (last["id"], last["kind"], last["state"], last["share"]) == ("name", "race", "ended", None)
    assert text_of(alone) == text_of(drafted) and alone["tokens"] == drafted["tokens"] == 12
    assert "12 of 12 tokens" in last["race"]["verdict"]
    assert len(alone["rounds"]) == 12 > len(drafted["rounds"])
    for lane in (alone, drafted):
        times = [one["draft_ms"] + one["verify_ms"] for one in lane["rounds"]]
        assert lane["ms"] == pytest.approx(sum(times), rel=1e-4)


def text_of(lane) -> str:
    tokens = [token for one in lane["rounds"] for token in tokens_of(one)]
    return "".join(token["text"] for token in tokens if token.get("fate") not in ("rejected", "discarded"))


def test_a_sampled_race_never_calls_its_two_texts_identical(models, queue):
    *_, last = measured(models, queue, asked({"kind": "race"}, Params(max_new_tokens=6)))
    assert "Two texts, one distribution" in last["race"]["verdict"]
    assert "seed " in last["whose"], "one was drawn, for both lanes"


@pytest.mark.slow
def test_draft_lengths_are_measured_against_the_target_alone(models, queue, monkeypatch):
    monkeypatch.setattr(feed, "GAMMAS", (2,))
    wanted = {"kind": "gamma", "prompts": "set"}
    *_, last = measured(models, queue, asked(wanted, replace(GREEDY, max_new_tokens=6)))
    plain, *points = last["gammas"]
    assert (plain["gamma"], plain["speedup"], plain["low"]) == (0, 1, None)
    assert [point["gamma"] for point in points] == [2, GREEDY.gamma], "the run's own length is one of them"
    for point in points:
        assert point["runs"] == SET_SIZE
        assert 1 < point["tokens_per_round"] <= point["gamma"] + 1


@pytest.mark.slow
def test_leaving_frees_the_engine(models, queue, monkeypatch):
    monkeypatch.setattr(feed, "GAMMAS", (2,))
    short = asked({"kind": "gamma"}, replace(GREEDY, max_new_tokens=40))
    *_, left = measured(models, queue, short, lambda message, _: message.get("gammas"))
    assert left["state"] == "running"
    *_, last = measured(models, queue, asked({"kind": "guess"}))
    assert last["state"] == "ended" and last["guess"]["suggestions"]


@pytest.mark.slow
def test_all_worlds_come_the_one_that_is_shown_first(models, monkeypatch):
    monkeypatch.setattr(WorldsRequest, "most", 1)
    params = Params(gamma=3, temperature=0.8, top_p=0.9, seed=7, max_new_tokens=8)
    pair = models.get()
    worlds, shares, first = asked({"kind": "worlds", "stop": 6}, params), [0.0], None
    worlds.begin(pair)
    while shares[-1] < 1:
        shares.append(worlds.go_on(lambda: False, pair))
        first = first or json.loads(json.dumps(worlds.so_far(), allow_nan=False))
    assert shares == sorted(shares)
    assert [stop for stop in range(STOPS) if first["stops"][stop]["texts"]] == [6]
    told = worlds.so_far()["stops"]
    assert all(one["texts"] and one["counts"]["runs"] == 1 for one in told)
    own = generate(pair, PROMPT, params_of(params), measure=False)
    assert [[token["id"] for token in one["draft"]] for one in told[OWN]["texts"]["sampled"]] == [
        [token.id for token in one.draft] for one in own.rounds
    ]


def test_what_is_set_in_vain_for_the_worlds_is_as_it_has_to_be():
    lossy = Params(rule="typical", gamma="auto", temperature=0.0, draft_with="none", top_p=0.9)
    told = asked({"kind": "worlds", "stop": 0}, lossy).params
    assert (told.rule, told.gamma, told.temperature) == ("speculative", Params().gamma, Params().temperature)
    assert told.draft_with == "model" and told.top_p == 0.9


ALONE = Params(draft_with="none")
GAME = {"kind": "guess", "game": "g", "guess": "a"}
# What is asked for, how, and what the sentence begins with.
WRONG = [
    *[(one, GREEDY, "a measurement must be one of") for one in ({"kind": "other"}, None)],
    ({"kind": "compare", "prompts": "all"}, GREEDY, "a measurement must be one of"),
    *[({"kind": kind}, ALONE, "") for kind in ("race", "guess")],
    ({"kind": "trials", "trial": "pair"}, ALONE, ""),
    *[({"kind": "trials", "trial": one}, GREEDY, "trial must be") for one in ("all", None, ["none"])],
    ({"kind": "trials", "trial": "from_p", "guesses": 2}, GREEDY, "trial must be one of none, told, soft"),
    *[({"kind": "worlds", "stop": one}, GREEDY, "worlds must be") for one in (-1, 9, None, "1", True, 1.0)],
    *[(GAME | {"ids": one}, GREEDY, "ids must be") for one in ("1,x", 5, ",".join(["1"] * 21))],
    *[(GAME | {"ids": "1,2", "round": one}, GREEDY, "round must be") for one in (3, "1", 0)],
    ({"kind": "guess", "round": 1}, GREEDY, "round must be"),
    ({"kind": "guess", "guess": "fox"}, GREEDY, "game must be"),
    *[(GAME | {"guess": one}, GREEDY, "guess must") for one in ("  ", "a" * (LONGEST_GUESS + 1))],
    (GAME | {"game": 1}, GREEDY, "guess and game must be"),
    (GAME | {"seed": "x"}, GREEDY, "seed must be"),
    (GAME | {"hall": "x"}, GREEDY, "hall must be"),
]


@pytest.mark.parametrize(("wanted", "params", "named"), WRONG)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(wanted, params, named):
    with pytest.raises(ValueError) as refused:
        asked(wanted, params)
    assert str(refused.value).startswith(named)
    assert_one_sentence(str(refused.value))


def test_an_unusable_prompt_is_refused():
    for wanted in ({"kind": "race"}, {"kind": "guess"}, {"kind": "trials", "trial": "pair"}):
        with pytest.raises(ValueError, match="^prompt must"):
            asked(wanted, prompt="")


@pytest.mark.parametrize(
    "wanted", [{"kind": "trials", "trial": "pair"}, {"kind": "worlds", "stop": 0}, {"kind": "guess"}]
)
def test_what_a_server_cannot_do_is_refused(wanted):
    with pytest.raises(PairError) as refused:
        list(asked(wanted).work(SimpleNamespace(is_over=False), object()))
    assert_one_sentence(str(refused.value))
