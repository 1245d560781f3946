"""Links: what a run writes into an address is what the address asks for, and everything else is text."""

from urllib.parse import urlencode

import pytest

from specdemo.events import ChatMessage, Params
from specdemo.ui.page.links import LONGEST_QUERY, read_link, write
from specdemo.ui.view.settings import AS_STARTED, params_from_controls
from tests.sentences import assert_one_sentence

PAIRS = ("embedded", "a + b")
NONE = dict.fromkeys(("dtype", "quantize", "quantize_drafter"))


def asked(link) -> Params:
    return params_from_controls(link.values)


@pytest.mark.parametrize(
    "prompt, params",
    [
        ("Once", Params(top_k=7, top_p=1.0, seed=2**53 - 1, temperature=1.25)),
        ("é日本🙂 \n\t&prompt=x#y?z", Params(temperature=0.0, top_p=1.0)),
        ('<img onerror="1">', Params(draft_with="ngram", ngram=5, stop=("a&b=c", "\n\n", "+ %"))),
        ("é", Params(chat=True, chat_template_kwargs={"tools": [{"a&b": "é日"}], "enable_thinking": False})),
        ("A", Params(json_schema={"type": "object", "properties": {"é&=": {"type": "integer"}}})),
        (" ", Params(chat=True, system="Be brief & <b>bold</b>.", alternatives=0, ignore_eos=True)),
    ],
)
def test_what_a_run_writes_is_what_its_address_asks_for(prompt, params):
    link = read_link(write(prompt, "a + b", NONE | {"quantize": "int8"}, params), PAIRS)
    assert (link.values["prompt"], link.values["pair"], link.starts, link.note) == (
        prompt,
        "a + b",
        "run",
        "",
    )
    assert asked(link) == params
    assert link.values["quantize"] == "int8" and link.values["quantize_drafter"] == AS_STARTED


SAID = (ChatMessage("system", "Be brief"), ChatMessage("user", "Hi"), ChatMessage("assistant", 'é "so"\n'))


def test_a_conversation_travels_too():
    link = read_link(write("And?", "embedded", NONE, Params(chat=True), SAID), PAIRS)
    assert (link.values["prompt"], link.messages, link.starts) == ("And?", SAID, "run") and asked(link).chat
    long = (ChatMessage("user", "x" * 8_000), SAID[-1])
    link = read_link(write("And?", "embedded", NONE, Params(chat=True), long), PAIRS)
    assert ("prompt" in link.values, link.messages, link.starts) == (False, (), "")


@pytest.mark.parametrize("text", ["Hi", "[1]", '[{"role": "user"}]', "[[" * 9_999])
def test_what_are_no_messages(text):
    with pytest.raises(ValueError, match="^(messages must be a list|prompt must hold messages)"):
        read_link(urlencode({"prompt": "x", "messages": text}), PAIRS)


def test_what_an_address_leaves_out_is_as_in_the_api():
    assert asked(read_link("?prompt=Once", PAIRS)) == Params()
    assert not {"pair", "prompt"} & read_link("gamma=2", PAIRS).values.keys()


@pytest.mark.parametrize(
    "query", ["", "?", "__theme=dark", "run=1", "token=3.0", "view=api", "tab=figure", "trace=warm&digest=0"]
)
def test_an_address_without_settings_changes_no_control(query):
    link = read_link(query, PAIRS)
    assert link.values == {} and link.note == ""


@pytest.mark.parametrize(
    "query",
    [
        *("gamma=99", "temperature=nan", "seed=" + "9" * 5000, "chat=maybe", "stop=", "pair=nobody"),
        *("json_schema=3", "run=yes", "token=1", "tab=x", "guess=yes", "grammar=b&regex=a"),
        *("hall=&guess=1", "chat_template_kwargs=[1]&chat=true"),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence_about_it(query):
    with pytest.raises(ValueError) as refused:
        read_link(query, PAIRS)
    assert str(refused.value).startswith(f"{query.partition('=')[0]} must ")
    assert_one_sentence(str(refused.value))


def test_unknown_names_are_ignored_with_a_note():
    link = read_link("gamma=3&foo=1&<b>=2&__theme=dark", PAIRS)
    assert asked(link).gamma == 3
    assert "foo, <b>" in link.note
    many = read_link("&".join(f"{'n' * 1000}{at}=1" for at in range(1000)), PAIRS).note
    assert len(many) < 400


def test_a_link_to_a_game_begins_no_run():
    game = read_link("prompt=Hi&seed=7&guess=1&run=1", PAIRS)
    assert (game.starts, game.note, game.values["seed"]) == ("guess", "", "7")
    assert read_link("guess=0&run=1", PAIRS).starts == "run" and read_link("guess=1", PAIRS).values == {}
    params = Params(seed=7)
    query = write("Hi", "embedded", {}, params, starts="guess")
    assert query.endswith("&guess=1") and "run=" not in query
    assert read_link(query, PAIRS).starts == "guess"
    assert "guess" not in write("x" * 9_000, "embedded", {}, params, starts="guess"), "it has no prompt"


def test_a_prompt_that_is_too_long_for_an_address_is_left_out_and_nothing_runs():
    query = write("x" * 9_000, "embedded", NONE, Params(gamma=2))
    assert len(query) <= LONGEST_QUERY
    link = read_link(query, PAIRS)
    assert "prompt" not in link.values and not link.starts and asked(link).gamma == 2
