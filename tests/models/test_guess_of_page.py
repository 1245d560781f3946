"""The game in which the visitor drafts, with the embedded pair and without a page."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.ui.runs.guess import SUGGESTED, game_after, tokens_of_guess
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.models import Choice
from tests.sentences import refused
from tests.tiny import tokenizer

PROMPT = "Once upon a time, there was a little fox"
PARAMS = Params(gamma=3, temperature=0.8, seed=7, max_new_tokens=20)


@pytest.fixture(scope="module")
def pair():
    return load_pair(device="cpu", dtype="float32")


def step(pair, wanted, params=PARAMS, prompt=PROMPT):
    return json.loads(json.dumps(game_after(pair, request(wanted, prompt, params))))


def request(wanted, prompt=PROMPT, params=PARAMS):
    wanted = {"kind": "guess", **wanted}
    return measurement_request(wanted, Choice(), prompt, params, lambda name, params: f"pair={name}")


def played(pair, guesses, params=PARAMS):
    """The opening and each round of a game, as a client holds it."""
    games = [step(pair, {}, params)]
    ids = []
    for index, words in enumerate(guesses):
        wanted = {
            "ids": ",".join(map(str, ids)),
            "round": index,
            "guess": words,
            "game": games[0]["name"],
            "seed": games[0]["seed"],
        }
        games.append(step(pair, wanted, params))
        ids += games[-1]["guessed"]["emitted"]
    return games


def test_the_opening_has_the_prompt_and_words_to_pick(pair):
    opening = step(pair, {})
    assert "".join(token["text"] for token in opening["prompt"]) == PROMPT
    assert (opening["seed"], opening["most"], opening["finish"]) == (7, 3, None)
    assert len(set(opening["suggestions"])) == SUGGESTED
    assert opening["link"] == "pair=embedded" and "guessed" not in opening


def test_the_drafters_draft_stands_where_the_guess_does_and_has_its_dice(pair):
    (_, first) = played(pair, [" who lived"])
    own = generate(pair, PROMPT, replace(PARAMS, gamma=2), measure=False).rounds[0]
    assert [token["id"] for token in first["drafted"]["draft"]] == [token.id for token in own.draft]
    assert len(first["guessed"]["draft"]) == 2
    assert first["guessed"]["draft"][0]["u"] == first["drafted"]["draft"][0]["u"] == own.draft[0].u


def test_a_game_ends_where_its_text_does(pair):
    games = played(pair, [" zebra"] * 4, replace(PARAMS, max_new_tokens=4))
    assert [game["finish"] for game in games[:-1]] == [None] * 4
    assert games[-1]["finish"] == "length" and games[-1]["suggestions"] == []


@pytest.mark.parametrize("words", [" fox", "es", ' "No"', "狐", "\nThen", " a  b"])
def test_the_tokens_of_a_guess_write_it_and_nothing_else(pair, words):
    text = pair.tokenizer(PROMPT).input_ids
    ids = tokens_of_guess(pair, text, words)
    assert pair.tokenizer.decode([*text, *ids], skip_special_tokens=True) == PROMPT + words


def test_a_special_token_cannot_be_guessed():
    tokens = tokenizer()
    assert len(tokens("<end>").input_ids) == 1, "this tokenizer finds it in a text"
    with refused("guess_unwritable"):
        tokens_of_guess(SimpleNamespace(tokenizer=tokens), tokens("the cat").input_ids, "<end>")
    assert tokens_of_guess(SimpleNamespace(tokenizer=tokens), tokens("the cat").input_ids, " sat")


def test_other_settings_are_another_game(pair):
    name = step(pair, {})["name"]
    for params in (replace(PARAMS, temperature=0.7), replace(PARAMS, seed=8)):
        assert step(pair, {}, params)["name"] != name
        with refused("other_game"):
            step(pair, {"game": name, "guess": " a"}, params)
    assert step(pair, {}, prompt="Once")["name"] != name
    with pytest.raises(ValueError, match="^ids must hold"):
        step(pair, {"ids": "999999999", "round": 1, "game": "g", "guess": "a"})
