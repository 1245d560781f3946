"""The controls: what they hold is what Params gets, and what is shown next to them is true."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from specdemo.events import METHODS, RULES, ByModel, PairInfo, Params
from specdemo.events.trace import NotATrace, Trace
from specdemo.loading.pair import Pair
from specdemo.loading.request import resolve
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.limits import HOSTED, LOCAL
from specdemo.ui.runs.opening import what_is_wrong
from specdemo.ui.view.settings import (
    AS_STARTED,
    CONTROL_NAMES,
    DTYPE_CHOICES,
    OFF,
    QUANTIZE_CHOICES,
    SAMPLERS,
    choice_of,
    params_from_controls,
    values_of,
    visible,
    weights_of,
)
from tests.sentences import assert_one_sentence
from tests.tiny import tokenizer

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
    vocab_size: int = 4096
    context: float = 1024
    drafter: object = "a drafter"
    tokenizer: object = None
    dtype_reason: str = "float32: for a reason"
    largest_exit: int = 15
    drafter_kind: str | None = "model"

    carried = MappingProxyType({})
    runs_here = Pair.runs_here
    has_chat_template = Pair.has_chat_template
    template_arguments = Pair.template_arguments

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(drafter_kind=self.drafter_kind)

    def lacks(self, method: str) -> object:
        if method == "early-exit":
            return None if self.largest_exit else "no first layers"
        return Pair.lacks(self, method)

    def largest(self, method: str, field: str) -> int | None:
        return self.largest_exit if (method, field) == ("early-exit", "exit_layer") else None


def words(text: str) -> SimpleNamespace:
    """A tokenizer."""
    return SimpleNamespace(input_ids=text.split())


def holding(**values) -> dict:
    weights = dict.fromkeys(("dtype", "quantize", "quantize_drafter"), AS_STARTED)
    return values_of(Params()) | {"pair": "embedded", "server": ""} | weights | values


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


def test_the_weights_that_are_offered_can_be_had():
    for dtype in DTYPE_CHOICES[1:]:
        for quantize in QUANTIZE_CHOICES[1:]:
            part = resolve(dtype=dtype, quantize=quantize).parts[0]
            assert str(part.dtype).removeprefix("torch.") == dtype.replace("auto", "None")
            assert (part.quantize or "none") == quantize


def test_samplers_switch_off_what_does_not_matter_to_them():
    values = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1}
    for sampler, filters in SAMPLERS.items():
        params = params_from_controls(holding(sampler=sampler, **values))
        seen = visible(holding(sampler=sampler))
        for field, off in OFF.items():
            assert getattr(params, field) == (values[field] if field in filters else off)
            assert seen[field] == (field in filters)


def test_controls_that_do_not_matter_are_out_of_the_way():
    shown = {name: visible(holding(draft_with=name)) for name in METHODS}
    assert [name for name in shown if not shown[name]["gamma"]] == ["none"]
    assert [name for name in shown if shown[name]["ngram"]] == [
        "lookup",
        "lookup+model",
        "ngram",
        "ngram-one-level",
    ]
    assert [name for name in shown if shown[name]["exit_layer"]] == ["early-exit"]
    assert all(shown[name]["confidence"] == ("confidence" in METHODS[name].fields) for name in METHODS)
    assert visible(holding())["seed"] and not visible(holding(sampler="greedy"))["seed"]
    assert visible(holding())["rule"] == (len(RULES) > 1), "a choice of one is none"
    for name in ("system", "chat_template_kwargs"):
        assert not visible(holding())[name] and visible(holding(chat=True))[name]


def test_a_length_that_is_chosen_round_by_round_hides_the_slider():
    assert visible(holding())["gamma"] and visible(holding())["gamma_auto"]
    auto = visible(holding(gamma_auto=True))
    assert auto["gamma_auto"] and not auto["gamma"]
    assert params_from_controls(holding(gamma_auto=True, gamma=99)).gamma == "auto"
    assert "gamma" not in warned(gamma=300, max_new_tokens=20, gamma_auto=True)
    alone = visible(holding(draft_with="none", gamma_auto=True))
    assert not alone["gamma"] and not alone["gamma_auto"]


def test_an_empty_box_is_no_number_and_nonsense_is_left_to_params():
    assert params_from_controls(holding(seed=" ")).seed is None
    assert params_from_controls(holding(seed=" 7 ")).seed == 7
    for nonsense in ("7.0", "-7", "x", "9" * 30):
        with pytest.raises(ValueError, match="seed must be a whole number from 0 to"):
            params_from_controls(holding(seed=nonsense))
    ignored = params_from_controls(holding(system="ignored", chat_template_kwargs="ignored", chat=False))
    assert ignored.system is ignored.chat_template_kwargs is None
    assert params_from_controls(holding(chat=True, chat_template_kwargs=" \n")).chat_template_kwargs is None


def test_what_is_hidden_has_no_effect_and_so_cannot_be_wrong():
    hidden = {"gamma": 99, "exit_layer": 99, "ngram": None, "seed": "x", "temperature": 9}
    params = params_from_controls(holding(draft_with="none", sampler="greedy", **hidden))
    assert params == Params(draft_with="none", temperature=0.0, top_p=1.0)
    with pytest.raises(ValueError, match="gamma must be a whole number from 1 to 16 or auto, not 99"):
        params_from_controls(holding(gamma=99))


def said_of(change) -> str:
    whole = json.loads(FIRST_TRACE.read_text(encoding="utf-8"))
    text = change(whole) or json.dumps(whole)
    with pytest.raises(NotATrace) as wrong:
        Trace.from_json(text)
    return what_is_wrong(wrong.value)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda whole: json.dumps(whole)[:100], "not JSON text, or only a part of it"),
        (lambda whole: "[]", "not a trace that this version of SpecDemo can read"),
        (lambda whole: whole.update(schema="specdemo.trace/9"), "a trace that this version of SpecDemo can"),
        (lambda whole: whole["params"].update(gamma=17), "Draft length γ must be a whole number from 1 to"),
        (lambda whole: whole["rounds"][3].update(index=9), "something is wrong in its round 4"),
        (lambda whole: whole.update(output_ids=[]), "something is wrong in its output ids"),
        (lambda whole: whole.pop("prompt") and None, "something is wrong in its prompt"),
    ],
)
def test_a_wrong_file_is_told_of_in_plain_words(change, words):
    said = said_of(change)
    assert words in said and "schema" not in said and "_" not in said
    assert_one_sentence(said)


def test_nothing_to_warn_of_at_first():
    def of_pair(name: str, needs: Needs, loaded: SmallPair | None = PAIR) -> str:
        return hints(holding(pair=name), "Once", needs, loaded)["pair"]

    assert warned() == {} == warned(pair=None)
    needs = "Needs about 50 MB of 24 GB on EPYC. Not tried by this project."
    assert of_pair("a + b", Needs(loaded=False), None) == needs
    assert of_pair("embedded", NEEDS) == "Small story writers that come with the project, no download."
    assert of_pair("a + b", Needs(total=4 * 10**9)) == "Slow on this CPU: no GPU was found."
    assert hints(holding(), "Once", NEEDS, PAIR)["dtype"] == "float32: for a reason"


READS = SmallPair(tokenizer=words)
UNCUT = SmallPair(largest_exit=0)
THINKS = "{{ messages }}{{ thinks }}"


@pytest.mark.parametrize(
    ("template", "typed", "said"),
    [
        (THINKS, "", "leave empty for none; this pair's template reads thinks"),
        (THINKS, '{"thinks": 1}', "leave empty for none; this pair's template reads thinks"),
        (THINKS, "thinks", "⚠ must be a JSON object of values by name"),
        (THINKS, '{"think": 1}', "⚠ must have only names that this pair's"),
        ("{{ messages }}", "", "⚠ this pair's template reads none, so leave it empty"),
        ("{{ messages }}", '{"think": 1}', "⚠ must not have 'think' for this pair: its"),
        ("{% for", '{"think": 1}', "leave empty for none"),
    ],
)
def test_the_hint_names_the_arguments_that_the_template_reads(template, typed, said):
    tokens = tokenizer()
    tokens.chat_template = template
    values = holding(chat=True, chat_template_kwargs=typed)
    beside = hints(values, "Once", NEEDS, SmallPair(tokenizer=tokens))["chat_template_kwargs"]
    assert said in beside
    assert beside.startswith("⚠") == said.startswith("⚠")


@pytest.mark.parametrize(
    "control, values, words",
    [
        ("seed", {"seed": "x"}, "must be a whole number from 0 to"),
        ("temperature", {"temperature": 0}, "0 is greedy"),
        ("prompt", {"pair": READS, "prompt": "a " * 1024}, "at most 1,023 tokens"),
        ("max_new_tokens", {"pair": READS, "prompt": "a " * 900}, "prompt and text together"),
        ("pair", {"needs": Needs(loaded=False, gated=True)}, "HF_TOKEN is not set here"),
        ("top_k", {"sampler": "top-k", "top_k": 0}, "0 is off"),
        ("top_k", {"sampler": "top-k", "top_k": 1}, "which is greedy"),
        ("top_k", {"sampler": "top-k", "top_k": 4096}, "the vocabulary has 4,096 tokens"),
        ("gamma", {"gamma": 5, "max_new_tokens": 4}, "at most 3 here"),
        ("max_new_tokens", {"max_new_tokens": 2000}, "end at the target's context of 1,024 tokens"),
        ("confidence", {"confidence": 0.5, "needs": Needs(device="cuda:0")}, "on a GPU this saves no time"),
        ("alternatives", {"alternatives": 0}, "only the token itself"),
        ("quantize_drafter", {"quantize_drafter": "int4"}, "save memory, not time"),
        ("dtype", {"dtype": "bfloat16"}, "slower than float32"),
        ("chat", {"chat": True}, "no chat template"),
        ("draft_with", {"pair": SmallPair(drafter=None)}, "no drafter model"),
        ("draft_with", {"draft_with": "early-exit", "pair": UNCUT}, "cannot be cut after a layer"),
        ("draft_with", {"draft_with": "mtp"}, "no layers for multi-token prediction"),
        ("exit_layer", {"draft_with": "early-exit", "exit_layer": 16}, "must be at most 15"),
        ("pair", {"needs": Needs(total=30 * 10**9, fits=False, loaded=False)}, "That is more than it has"),
        ("prompt", {"prompt": ""}, "must not be empty"),
        ("prompt", {"prompt": "\ud800"}, "lone surrogate"),
        ("json_schema", {"json_schema": "[]", "pair": None}, "must be a JSON object, a schema, not '[]'"),
        ("regex", {"json_schema": "{}", "regex": "a", "pair": None}, "must be left out beside the other"),
    ],
)
def test_a_choice_that_makes_the_run_impossible_or_pointless_says_so_beside_it(
    monkeypatch, control, values, words
):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said = warned(**values)
    assert set(said) == {control} and words in said[control]


def test_the_weights_go_as_asked_and_come_back_from_a_trace():
    asked = {
        "pair": "embedded",
        "dtype": "auto",
        "quantize": "int8",
        "quantize_drafter": None,
        "server": None,
    }
    assert choice_of(holding(quantize="int8", dtype="auto")) == asked
    info = PairInfo(
        "embedded", "t", "d", "cpu", "a CPU", ByModel("bfloat16", "float32"), ByModel("int8", None)
    )
    as_recorded = {"dtype": "bfloat16", "quantize": "int8", "quantize_drafter": "none"}
    assert weights_of(info, replace(info, dtype=ByModel("float32", "float32"))) == as_recorded
    assert weights_of(info, None) == as_recorded | {"dtype": AS_STARTED}
    odd = replace(info, dtype=ByModel("<img>", None), quantize=ByModel("<img>", "int3"))
    assert weights_of(odd, info) == dict.fromkeys(as_recorded, AS_STARTED), (
        "a file may say anything, but controls hold what they offer"
    )
    assert weights_of(info, info) == dict.fromkeys(as_recorded, AS_STARTED)
    assert set(as_recorded) < set(CONTROL_NAMES)


def test_a_hosted_page_says_what_it_allows():
    usual = hints(holding(), "Once", NEEDS, PAIR, HOSTED)["max_new_tokens"]
    assert usual == "at most 1,000 here; the model may end the text earlier"
    too_much = {"max_new_tokens": 1_001, "alternatives": 11, "chat": True, "system": "a" * 20_001}
    warnings = warned(limits=HOSTED, prompt="a" * 20_001, **too_much)
    assert warnings["max_new_tokens"] == "must be a whole number from 1 to 1,000"
    assert warnings["alternatives"] == "must be a whole number from 0 to 10"
    assert warnings["system"] == "must have at most 20,000 characters"
    assert warnings["prompt"] == f"Prompt {warnings['system']}"
    assert not {"max_new_tokens", "alternatives", "system"} & {*warned(**too_much)}, "here it is allowed"
