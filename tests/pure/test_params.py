"""Params refuses what it should, in a sentence that names the field and what is allowed."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from specdemo.drafters.table import BY_METHOD, drafting_by
from specdemo.engine.rules import JUDGES, rule_of
from specdemo.events import LIMITS, LISTED, RULES, Params, is_lossy
from specdemo.events.params import as_text, rule_in_words

NOT_NUMBERS = ["4", None, True, [4], {}, float("nan"), float("inf"), -float("inf"), 1j, 10**400, -(10**5000)]
BIASES = (
    *([(1, 2)], "3", {-1: 1}, {"one": 1}, {True: 1}, {1.0: 1}, {2**31: 1}, {3: 101}, {3: -100.1}),
    *({3: float("nan")}, {3: "1"}, {3: None}, {3: True}, {3: 1, "3": 2}, dict.fromkeys(range(301), 1)),
)
NESTED = '{"a": %s}' % ("[" * 16 + "]" * 16)
ARGUMENTS = (
    *("", "think", "[1]", "null", '{"a": NaN}', '{"a":' * 9_999, NESTED, 3, [1], b"{}", {1: 2}, {"a b": 1}),
    *({"a": {1, 2}}, {"a": {1: 2}}, {"a": float("inf")}, {"a": 10**5000}, {"a": "\ud800"}),
    *({"a": "b" * 32_760},),
)
OTHERS = {
    "top_p": (0, 0.0, 1 + 1e-9),
    "repetition_penalty": (0,),
    "min_p": (1,),
    "confidence": (1,),
    "gamma": ("AUTO",),
    "tree": (
        *(3, "AUTO", ("auto",), None, True, "3;2", "3,,2", "-1", (0,), (33,), (4, 4, 1), (1,) * 9, (True,)),
        *((1.0,), "9" * 5000),
    ),
    "temperature": (-1e-9,),
    **dict.fromkeys(("draft_with", "rule"), ("", "Model", "eagle", None, 3, ["model"], {"model"})),
    "logit_bias": BIASES,
    "stop": ("end", ("",), (3,), None, {"a": 1}, ["a", None], ("\ud800",), ["a"] * 65, ["b" * 1_001]),
    **dict.fromkeys(("ignore_eos", "chat"), (0, 1, "true", None)),
    "system": (3, ["a"], b"a", True),
    "chat_template_kwargs": ARGUMENTS,
    "json_schema": ("", "{", "[]", "true", 3, {"a": {1}}, "[" * 9999, " " * 20_001, ("a",)),
    "regex": ("", 3, b"a", ["a"], "a" * 4_001, "\ud800"),
    "grammar": ("", 3, b"a", ["a"], "a" * 10_001, "\ud800"),
}


def wrong_values(field):
    yield from (np.array([1, 2]), float("nan"), [float("inf")], {"a": float("nan")}, *OTHERS.get(field, ()))
    if field in LIMITS:
        row = LIMITS[field]
        fractions = [4.5, 4.0] if row.kind is int else []
        for value in [row.smallest - 1, row.largest + 1, *NOT_NUMBERS, *fractions]:
            if not (row.none_is and value is None):
                yield value


@pytest.mark.parametrize("field", [field.name for field in fields(Params)])
def test_a_wrong_value_is_refused_in_one_sentence_that_names_the_field(field):
    for value in wrong_values(field):
        with pytest.raises(ValueError) as error:
            Params(**{field: value})
        message = str(error.value)
        assert message.startswith(f"{field} must ") and "\n" not in message and len(message) < 200, value


def test_the_ends_of_every_range_are_allowed_where_the_sentence_says_so():
    for field, row in LIMITS.items():
        for end in {row.smallest, row.largest} - {row.excluded}:
            assert getattr(Params(**{field: end}), field) == end


def test_every_choice_is_implemented():
    assert JUDGES.keys() == RULES.keys() and BY_METHOD.keys() == {name for name in LISTED if "+" not in name}
    assert all(map(drafting_by, LISTED))
    assert len({rule_of(Params(rule=name)) for name in RULES}) == len(RULES)
    names = {field.name for field in fields(Params)}
    for choice in (*LISTED.values(), *RULES.values()):
        assert set(choice.fields) <= names


@pytest.mark.parametrize(
    ("how", "lossy", "words"),
    [
        ({}, False, None),
        ({"rule": "block"}, False, "rule block"),
        ({"rule": "typical"}, True, "lossy rule typical"),
        ({"rule": "typical", "temperature": 0}, False, "rule typical"),
        ({"rule": "lenient", "lenience": 0.3}, True, "lossy rule lenient 0.3"),
        ({"rule": "typical", "draft_with": "none"}, False, None),
    ],
)
def test_a_run_is_lossy_only_where_its_text_can_have_another_distribution(how, lossy, words):
    assert is_lossy(Params(**how)) == lossy
    assert rule_in_words(Params(**how)) == words


def test_values_are_kept_in_their_own_type_and_cannot_change():
    """As JSON gives them, too; and a later change of what was given does not reach them."""
    params = Params(temperature=1, stop=["a", "b"], gamma=3)
    assert type(params.temperature) is float and params.stop == ("a", "b")
    with pytest.raises(FrozenInstanceError):
        params.gamma = 3
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params

    bias = {"11": -100, 5: 2.5}
    params = Params(logit_bias=bias)
    assert list(params.logit_bias.items()) == [(5, 2.5), (11, -100.0)] and hash(params)
    bias[5] = 3
    assert params == Params(logit_bias={5: 2.5, 11: -100}) != Params()

    arguments = {"enable_thinking": False, "tools": [{"name": "f"}], "é": None}
    params = Params(chat_template_kwargs=arguments)
    assert params == Params(chat_template_kwargs=as_text(params.chat_template_kwargs)) != Params()
    arguments["tools"][0]["name"] = "g"
    assert params.chat_template_kwargs["tools"] == [{"name": "f"}]
    assert Params(chat_template_kwargs={}) == Params() and hash(params)

    assert Params(json_schema={"type": "object"}) == Params(json_schema='{"type": "object"}')
    assert Params(tree="3, 2,1").tree == Params(tree=[3, 2, 1]).tree == (3, 2, 1)
    assert Params(tree=" auto").tree == "auto" and Params(tree="").tree == ()


def test_the_longest_lists_are_allowed():
    assert len(Params(stop=["a" * 1_000] * 64).stop) == 64
    assert len(Params(logit_bias=dict.fromkeys(range(300), 1)).logit_bias) == 300
    assert Params(tree=(3, 2, 1, 1)).tree and Params(tree=(1,) * 8).tree


def test_what_does_not_go_together_is_refused():
    a_tree = ({"rule": "block"}, {"confidence": 0.1}, {"regex": "a"})
    for field, how in (
        ("regex", {"regex": "a", "json_schema": "{}"}),
        ("ignore_eos", {"grammar": 'start: "a"', "ignore_eos": True}),
        *(("tree", {"tree": tree, **beside}) for tree in ((2,), "auto") for beside in a_tree),
    ):
        with pytest.raises(ValueError, match=f"^{field} must be ") as refused:
            Params(**how)
        assert "\n" not in str(refused.value)
