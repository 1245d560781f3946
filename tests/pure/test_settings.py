"""The controls: what they hold is what Params gets, and what is shown next to them is true."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdemo.events import LISTED, ByModel, PairInfo, Params
from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.pair import Pair
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.limits import HOSTED, LOCAL
from specdemo.ui.view.kept import what_is_wrong
from specdemo.ui.view.settings import (
    AS_STARTED,
    CONTROL_NAMES,
    OFF,
    SAMPLERS,
    params_from_controls,
    values_of,
    visible,
    weights_of,
)
from specdemo.words.message import about
from tests.sentences import assert_one_sentence, refused

FIRST_TRACE = Path(__file__).resolve().parents[2] / "assets" / "traces" / "first.json"


@dataclass
class Needs:
    total: int = 50_000_000
    memory: int = 24_000_000_000
    device: str = "cpu"
    fits: bool = True
    target_bytes: int | None = 46_000_000
    drafter_bytes: int | None = 4_000_000
    loaded: bool = True
    gated: bool = False
    tried: str = "not yet"
    device_name: str = "EPYC"
    why: str = "no GPU was found"
    server: str = ""


@dataclass
class SmallPair:
    drafter: object = "a drafter"
    tokenizer: object = None
    dtype_reason: str = "float32: for a reason"
    drafter_kind: str | None = "model"

    carried = "it has none"
    runs_here = Pair.runs_here
    has_chat_template = Pair.has_chat_template

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(drafter_kind=self.drafter_kind)

    def check(self, params: Params) -> Params:
        if self.drafter is None:
            raise ValueError(about("draft_with", "no_drafter"))
        if params.regex:
            raise ValueError(about("regex", "grammar_unfit"))
        return params


def holding(**values) -> dict:
    weights = dict.fromkeys(("dtype", "quantize", "quantize_drafter"), AS_STARTED)
    return values_of(Params()) | {"pair": "embedded"} | weights | values


PAIR, NEEDS = SmallPair(), Needs()


def warned(pair=PAIR, needs=NEEDS, prompt="Once", limits=LOCAL, **values) -> dict[str, str]:
    beside = hints(holding(**values), prompt, needs, pair, limits)
    assert set(beside) == {*CONTROL_NAMES, "prompt"}
    return {name: words[2:] for name, words in beside.items() if words.startswith("⚠ ")}


@pytest.mark.parametrize(
    "params",
    [
        Params(temperature=0.0, top_p=1.0, seed=5, max_new_tokens=3),
        Params(top_k=7, top_p=0.5),
        Params(top_p=1.0, min_p=0.2),
        Params(draft_with="ngram", ngram=5, gamma=9, stop=("a", "b c"), ignore_eos=True, alternatives=0),
        Params(chat=True, system="Be brief.", gamma="auto", confidence=0.4),
        Params(chat=True, chat_template_kwargs={"tools": [{"é": None}], "enable_thinking": False}),
        Params(json_schema='{"type": "string"}'),
        Params(grammar='start: "a"\n'),
        Params(stop=("\n\n", "a\nb", "\\", r"\n", " x")),
    ],
)
def test_a_runs_settings_go_into_the_controls_and_come_back(params):
    assert params_from_controls(holding(**values_of(params))) == params


def test_samplers_switch_off_what_does_not_matter_to_them():
    values = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1}
    for sampler, filters in SAMPLERS.items():
        params = params_from_controls(holding(sampler=sampler, **values))
        seen = visible(holding(sampler=sampler))
        for field, off in OFF.items():
            assert getattr(params, field) == (values[field] if field in filters else off)
            assert seen[field] == (field in filters)


def test_what_does_not_matter_is_out_of_the_way_and_so_cannot_be_wrong():
    for name, method in LISTED.items():
        shown = visible(holding(draft_with=name))
        for field in ("gamma", "ngram", "exit_layer", "confidence"):
            assert shown[field] == (field in method.fields), (name, field)
    assert visible(holding())["seed"] and not visible(holding(sampler="greedy"))["seed"]
    for name in ("system", "chat_template_kwargs"):
        assert not visible(holding())[name] and visible(holding(chat=True))[name]
    assert not visible(holding(gamma_auto=True))["gamma"]
    assert params_from_controls(holding(gamma_auto=True, gamma=99)).gamma == "auto"
    hidden = {"gamma": 99, "exit_layer": 99, "ngram": None, "seed": "x", "temperature": 9}
    params = params_from_controls(holding(draft_with="none", sampler="greedy", **hidden))
    assert params == Params(draft_with="none", temperature=0.0, top_p=1.0)
    ignored = params_from_controls(holding(system="ignored", chat_template_kwargs="ignored", chat=False))
    assert ignored.system is ignored.chat_template_kwargs is None
    with refused("whole_or_auto", field="gamma"):
        params_from_controls(holding(gamma=99))


def test_an_empty_box_is_no_number_and_nonsense_is_left_to_params():
    assert params_from_controls(holding(seed=" ")).seed is None
    assert params_from_controls(holding(seed=" 7 ")).seed == 7
    for nonsense in ("7.0", "-7", "x", "9" * 30):
        with refused("given", field="seed"):
            params_from_controls(holding(seed=nonsense))
    assert params_from_controls(holding(chat=True, chat_template_kwargs=" \n")).chat_template_kwargs is None


def said_of(change) -> str:
    whole = json.loads(FIRST_TRACE.read_text(encoding="utf-8"))
    text = change(whole) or json.dumps(whole)
    with pytest.raises(NotATrace) as wrong:
        Trace.from_json(text)
    return what_is_wrong(wrong.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: json.dumps(whole)[:100], "not JSON text"),
        (lambda whole: whole.update(schema="specdemo.trace/9"), "this version of SpecDemo"),
        (lambda whole: whole["params"].update(gamma=17), "Draft length γ"),
        (lambda whole: whole["rounds"][3].update(index=9), "round 4"),
        (lambda whole: whole.pop("prompt") and None, "prompt"),
    ],
)
def test_a_wrong_file_is_told_of_in_plain_words(change, words):
    said = said_of(change)
    assert words in said and "schema" not in said and "_" not in said
    assert_one_sentence(said)


@pytest.mark.parametrize(
    ("control", "values"),
    [
        ("seed", {"seed": "x"}),
        ("gamma", {"gamma": 99}),
        ("pair", {"needs": Needs(loaded=False, gated=True)}),
        ("pair", {"needs": Needs(total=30 * 10**9, fits=False, loaded=False)}),
        ("confidence", {"confidence": 0.5, "needs": Needs(device="cuda:0")}),
        ("quantize_drafter", {"quantize_drafter": "int4"}),
        ("dtype", {"dtype": "bfloat16"}),
        ("draft_with", {"pair": SmallPair(drafter=None)}),
        ("chat", {"chat": True}),
        ("rule", {"rule": "typical"}),
        ("prompt", {"prompt": "\ud800"}),
        ("prompt", {"prompt": "x" * 20_001, "limits": HOSTED}),
        ("json_schema", {"json_schema": "[]", "pair": None}),
        ("regex", {"json_schema": "{}", "regex": "a", "pair": None}),
        ("regex", {"regex": "a"}),
        ("max_new_tokens", {"max_new_tokens": 1_001, "limits": HOSTED}),
    ],
)
def test_a_choice_that_makes_the_run_impossible_or_slower_says_so_beside_it(monkeypatch, control, values):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert set(warned(**values)) == {control}
    assert warned() == {} == warned(pair=None), "nothing to warn of at first"


def test_a_public_server_compiles_no_grammar_for_a_hint():
    assert warned(regex="a", limits=HOSTED) == {}


def test_the_weights_come_back_from_a_trace_as_far_as_controls_offer_them():
    dtypes, kinds = ByModel("bfloat16", "float32"), ByModel("int8", None)
    info = PairInfo("embedded", "t", "d", "cpu", "a CPU", dtypes, kinds)
    as_recorded = {"dtype": "bfloat16", "quantize": "int8", "quantize_drafter": "none"}
    as_started = dict.fromkeys(as_recorded, AS_STARTED)
    assert weights_of(info, replace(info, dtype=ByModel("float32", "float32"))) == as_recorded
    assert weights_of(info, info) == as_started
    odd = replace(info, dtype=ByModel("<img>", None), quantize=ByModel("<img>", "int3"))
    assert weights_of(odd, info) == as_started, "a file may say anything"
