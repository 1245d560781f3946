"""Two worlds, as the page is told of it."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.errors import PairError
from specdemo.trials.worlds import OWN, STOPS
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.models import Choice
from specdemo.ui.runs.worlds import Worlds, params_of
from tests.sentences import assert_one_sentence

PROMPT = "Tom and"
PARAMS = Params(gamma=3, temperature=0.8, top_p=0.9, seed=7, max_new_tokens=30)


def request(stop, params=PARAMS):
    return measurement_request({"kind": "worlds", "stop": stop}, Choice(), PROMPT, params)


@pytest.mark.slow
def test_all_stops_come_the_one_that_is_shown_first():
    pair = load_pair(device="cpu", dtype="float32")
    worlds, shares, first = Worlds(request(6), pair, most=3), [0.0], None
    while worlds.share < 1:
        worlds.go_on(pair)
        shares.append(worlds.share)
        first = first or json.loads(json.dumps(worlds.so_far(), allow_nan=False))
    assert shares == sorted(shares)
    assert [stop for stop in range(STOPS) if first["stops"][stop]["texts"]] == [6]
    told = worlds.so_far()["stops"]
    assert all(one["texts"] and one["counts"]["runs"] == 3 for one in told)
    own = generate(pair, PROMPT, params_of(PARAMS), measure=False)
    assert [[token["id"] for token in one["draft"]] for one in told[OWN]["texts"]["sampled"]] == [
        [token.id for token in one.draft] for one in own.rounds
    ]
    assert "“Tom and”" in worlds.whose


def test_what_is_set_in_vain_here_is_as_it_has_to_be():
    told = request(
        0, replace(PARAMS, rule="typical", gamma="auto", temperature=0.0, draft_with="none")
    ).params
    assert (told.rule, told.gamma, told.temperature) == ("speculative", Params().gamma, Params().temperature)
    assert told.draft_with == "model" and told.top_p == PARAMS.top_p


@pytest.mark.parametrize("stop", [-1, 9, None, "1", True, 1.0])
def test_another_stop_gets_a_sentence(stop):
    with pytest.raises(ValueError, match="^worlds must be a whole number from 0, for noise, to 8") as raised:
        request(stop)
    assert_one_sentence(str(raised.value))


def test_a_server_cannot_be_mixed():
    with pytest.raises(PairError, match="^A server drafts by itself"):
        Worlds(request(0), object())
