"""Params refuses what it should, in a sentence that names the field and what is allowed."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from specdemo.drafters.ways import WAYS, way_called
from specdemo.engine.rules import JUDGES, rule_of
from specdemo.events import (
    LIMITS,
    METHODS,
    RULES,
    Params,
    is_lossy,
    rule_in_words,
    template_arguments_json,
)

NOT_NUMBERS = ["4", None, True, [4], {}, float("nan"), float("inf"), -float("inf"), 1j, 10**400, -(10**5000)]
BIASES = (
    *([(1, 2)], "3", {-1: 1}, {"one": 1}, {True: 1}, {1.0: 1}, {2**31: 1}, {3: 101}, {3: -100.1}),
    *({3: float("nan")}, {3: "1"}, {3: None}, {3: True}, {3: 1, "3": 2}, dict.fromkeys(range(301), 1)),
)
NESTED = '{"a": %s}' % ("[" * 16 + "]" * 16)
ARGUMENTS = (
    *("", "think", "[1]", "null", '{"a": NaN}', '{"a":' * 9_999, NESTED, 3, [1], b"{}", {1: 2}, {"a b": 1}),
    *({"a": {1, 2}}, {"a": {1: 2}}, {"a": float("inf")}, {"a": 10**5000}, {"a": "\ud800"}),
)
OTHERS = {
    "top_p": (0, 0.0, 1 + 1e-9),
    "repetition_penalty": (0,),
    "min_p": (1,),
    "confidence": (1,),
    "gamma": ("AUTO",),
    "tree": (
        3,
        "AUTO",
        ("auto",),
        None,
        True,
        "3;2",
        "3,,2",
        "-1",
        (0,),
        (33,),
        (4, 4, 1),
        (1,) * 9,
        (True,),
        (1.0,),
        "9" * 5000,
    ),
    "temperature": (-1e-9,),
    **dict.fromkeys(("draft_with", "rule"), ("", "Model", "eagle", None, 3, ["model"], {"model"})),
    "logit_bias": BIASES,
    "stop": ("end", ("",), (3,), None, {"a": 1}, ["a", None], ("\ud800",)),
    **dict.fromkeys(("ignore_eos", "chat"), (0, 1, "true", None)),
    "system": (3, ["a"], b"a", True),
    "chat_template_kwargs": ARGUMENTS,
    "json_schema": ("", "{", "[]", "true", 3, {"a": {1}}, "[" * 9999, " " * 20_001, ("a",)),
    "regex": ("", 3, b"a", ["a"], "a" * 4_001, "\ud800"),
    "grammar": ("", 3, b"a", ["a"], "a" * 10_001, "\ud800"),
}


def wrong_values(field):
    yield from OTHERS.get(field, ())
    if field in LIMITS:
        row = LIMITS[field]
        fractions = [4.5, 4.0] if row.kind is int else []
        for value in [row.smallest - 1, row.largest + 1, *NOT_NUMBERS, *fractions]:
            if not (row.none_is and value is None):
                yield value


@pytest.mark.parametrize("field", [field.name for field in fields(Params)])
def test_a_wrong_value_is_refused_in_one_sentence_that_names_the_field(field):
    wrong = list(wrong_values(field))
    assert wrong
    for value in wrong:
        with pytest.raises(ValueError) as error:
            Params(**{field: value})
        message = str(error.value)
        assert message.startswith(f"{field} must be ") and "\n" not in message and len(message) < 200, value


@pytest.mark.parametrize(
    "stop, given", [(["a"] * 65, "65 of up to 1"), (["a", "b" * 1_001], "2 of up to 1,001")]
)
def test_stop_strings_are_limited_in_number_and_length(stop, given):
    with pytest.raises(ValueError) as error:
        Params(stop=stop)
    allowed = "stop must be at most 64 strings of at most 1,000 characters each"
    assert str(error.value) == f"{allowed}, not {given}"
    assert len(Params(stop=["a" * 1_000] * 64).stop) == 64


def test_a_sentence_says_what_is_allowed_and_what_was_given():
    with pytest.raises(ValueError, match=r"^gamma must be a whole number from 1 to 16 or auto, not 17$"):
        Params(gamma=17)
    with pytest.raises(ValueError, match=r"^top_p must be a number above 0 to 1, not 0$"):
        Params(top_p=0)
    with pytest.raises(ValueError, match=r"^min_p must be a number from 0 to below 1, not 1\.5$"):
        Params(min_p=1.5)


def test_the_ends_of_every_range_are_allowed_where_the_sentence_says_so():
    for field, row in LIMITS.items():
        for end in {row.smallest, row.largest} - {row.excluded}:
            assert getattr(Params(**{field: end}), field) == end


def test_values_are_kept_in_their_own_type_and_cannot_change():
    params = Params(temperature=1, stop=["a", "b"])
    assert type(params.temperature) is float and params.stop == ("a", "b")
    with pytest.raises(FrozenInstanceError):
        params.gamma = 3


def test_a_logit_bias_is_kept_by_token_id():
    """As JSON gives it, too; and another mapping's later change does not reach it."""
    given = {"11": -100, 5: 2.5}
    params = Params(logit_bias=given)
    assert list(params.logit_bias.items()) == [(5, 2.5), (11, -100.0)] and hash(params)
    given[5] = 3
    assert params == Params(logit_bias={5: 2.5, 11: -100}) != Params()
    assert len(Params(logit_bias=dict.fromkeys(range(300), 1)).logit_bias) == 300


def test_arguments_of_a_template_are_kept_as_plain_values():
    """As JSON text gives them, too; and a later change of what was given does not reach them."""
    given = {"enable_thinking": False, "tools": [{"name": "f"}], "é": None}
    params = Params(chat_template_kwargs=given)
    assert hash(params) and params == Params(chat_template_kwargs=template_arguments_json(params)) != Params()
    given["tools"][0]["name"] = "g"
    assert params.chat_template_kwargs["tools"] == [{"name": "f"}]
    assert Params(chat_template_kwargs={}) == Params() and template_arguments_json(Params()) == ""
    for wrong, sentence in (
        ({"tools": {"name": "f"}}, "must have a list of objects as tools, not {'name': 'f'}"),
        ({"documents": ["a"]}, "must have a list of objects as documents, not ['a']"),
        ({"a": "b" * 32_760}, "must have at most 32,768 characters, not 32,769"),
    ):
        with pytest.raises(ValueError) as error:
            Params(chat_template_kwargs=wrong)
        assert str(error.value) == f"chat_template_kwargs {sentence}"


def test_a_text_follows_one_thing_at_most_up_to_its_end():
    assert Params(json_schema={"type": "object"}) == Params(json_schema='{"type": "object"}')
    with pytest.raises(ValueError, match="^regex must be left out beside the other: a text follows one of"):
        Params(regex="a", json_schema="{}")
    with pytest.raises(ValueError, match="^ignore_eos must be false for a text that follows a JSON schema"):
        Params(grammar='start: "a"', ignore_eos=True)


def test_every_choice_is_implemented():
    assert JUDGES.keys() == RULES.keys() and WAYS.keys() == {name for name in METHODS if "+" not in name}
    assert all(map(way_called, METHODS))
    assert len({rule_of(Params(rule=name)) for name in RULES}) == len(RULES)
    names = {field.name for field in fields(Params)}
    for choice in (*METHODS.values(), *RULES.values()):
        assert set(choice.fields) <= names
    assert all(rule.lossless_at[0] in rule.fields for rule in RULES.values() if rule.lossless_at)


@pytest.mark.parametrize(
    ("how", "lossy", "words"),
    [
        ({}, False, None),
        ({"rule": "block"}, False, "rule block"),
        ({"rule": "typical"}, True, "lossy rule typical"),
        ({"rule": "typical", "temperature": 0}, False, "rule typical"),
        ({"rule": "lenient", "lenience": 0.3}, True, "lossy rule lenient 0.3"),
        ({"rule": "lenient", "lenience": 1}, False, "rule lenient 1"),
        ({"rule": "typical", "draft_with": "none"}, False, None),
    ],
)
def test_a_run_is_lossy_only_where_its_text_can_have_another_distribution(how, lossy, words):
    assert is_lossy(Params(**how)) == lossy
    assert rule_in_words(Params(**how)) == words


def test_a_tree_is_kept_as_numbers_and_stands_beside_what_judges_it_only():
    assert Params(tree="3, 2,1").tree == Params(tree=[3, 2, 1]).tree == (3, 2, 1)
    assert Params(tree=" auto").tree == "auto"
    assert Params(tree="").tree == () and Params(tree=(3, 2, 1, 1)).tree and Params(tree=(1,) * 8).tree
    for beside in ({"rule": "block"}, {"confidence": 0.1}, {"regex": "a"}):
        Params(**beside)
        with pytest.raises(ValueError, match="^tree must be empty") as refused:
            Params(tree=(2,), **beside)
        assert "\n" not in str(refused.value)
        with pytest.raises(ValueError, match="^tree must be empty"):
            Params(tree="auto", **beside)


def test_an_unknown_field_gets_the_sentence_of_a_wrong_value():
    words = r"'gama' is no field of Params \(did you mean gamma\?\); it has draft_with"
    with pytest.raises(ValueError, match=words):
        Params(gama=4)
    with pytest.raises(ValueError, match="'foo' is no field of Params; it has"):
        replace(Params(), foo=1)
    assert pickle.loads(pickle.dumps(Params(gamma=3))) == copy.deepcopy(Params(gamma=3)) == Params(gamma=3)
