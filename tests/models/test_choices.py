"""A drafting method and a rule are added, each by its row and by the code that drafts or
judges, and are found everywhere."""

from dataclasses import replace

import gradio as gr
import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.cli.options import check_bench_options, params_from_arguments, parser
from specdemo.drafters.base import Drafting
from specdemo.drafters.table import BY_METHOD
from specdemo.engine.draft import NoDrafter, one_hot_draft
from specdemo.engine.rules import JUDGES, Decision
from specdemo.engine.sampling import draw
from specdemo.events.choices import LISTED, METHODS, RULES, Method, Rule
from specdemo.events.trace import Trace
from specdemo.measure.compare import compare
from specdemo.measure.settings import settings_for
from specdemo.measure.table import winner
from specdemo.ui.page import api
from specdemo.ui.page.hints import hints
from specdemo.ui.page.page import controls
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.view import settings
from specdemo.ui.view.feed import RunFeed
from specdemo.words.catalogue import catalogue
from tests.tiny import tiny

STUTTER = Method("stutter", ("gamma", "ngram"))
COIN = Rule("coin", False, "1/2", None, fields=("lenience",))
WORDS = {
    ("methods", "stutter"): {"label": "stutterer", "menu": "stutterer", "sentence": "repeats a token"},
    ("rules", "coin"): dict.fromkeys(("meaning", "recorded", "about"), "a coin")
    | {"name": "coin", "label": "coin (lossy): accept every second draft", "accepted": "when u < 1/2"},
}
PARAMS = Params(max_new_tokens=40, seed=1, gamma=3, temperature=1.0, top_p=1.0)
PROMPT = [5, 17, 3]


class StutteringDrafter(NoDrafter):
    def propose(self, ids, k, u):
        return one_hot_draft(ids[-1:] * k, self.nothing.q.shape[1], self.nothing.q.device)


def coin(p, q, drafted, u_accept, u_next):
    accept_prob = torch.full_like(u_accept, 0.5)
    accepted = (u_accept < accept_prob).long().cumprod(0).sum()
    distance = (q - p[:-1]).abs().sum(-1, dtype=torch.float64) / 4
    return Decision(accept_prob, accepted, draw(p[accepted[None]], u_next)[0], torch.ones(()), distance)


@pytest.fixture(autouse=True)
def added(monkeypatch):
    for methods in (LISTED, METHODS):
        monkeypatch.setitem(methods, STUTTER.name, STUTTER)
    monkeypatch.setitem(BY_METHOD, STUTTER.name, Drafting(lambda given: StutteringDrafter(*given.of_target)))
    monkeypatch.setitem(RULES, COIN.name, COIN)
    monkeypatch.setitem(JUDGES, COIN.name, lambda params: coin)
    for (table, name), words in WORDS.items():
        monkeypatch.setitem(catalogue("en")["choices"][table], name, words)


@pytest.fixture(scope="module")
def pair():
    return load_pair(target=tiny(), drafter=tiny(seed=1))


def of_both() -> Params:
    return replace(PARAMS, draft_with="stutter", rule="coin")


def held() -> dict:
    weights = dict.fromkeys(settings.WEIGHT_CHOICES, settings.AS_STARTED)
    return settings.FIRST | settings.values_of(of_both()) | weights


def test_the_command_line():
    asked = parser().parse_args(["generate", "x", "--draft-with", "stutter", "--rule", "coin"])
    assert (params_from_arguments(asked).draft_with, params_from_arguments(asked).rule) == ("stutter", "coin")
    check_bench_options(parser().parse_args(["bench", "--methods", "stutter,none", "--rule", "coin"]))
    with pytest.raises(ValueError, match="rule must be a lossless one here"):
        check_bench_options(parser().parse_args(["bench", "--rule", "coin"]))


def test_a_run_and_what_is_told_of_it(pair):
    trace = generate(pair, PROMPT, of_both())
    drafts = [token for one in trace.rounds for token in one.draft]
    assert {token.accept_prob for token in drafts if token.u is not None} == {0.5}
    assert {token.fate for token in drafts} == {"accepted", "rejected", "discarded"}
    last = PROMPT[-1]
    for one in trace.rounds:
        assert {token.id for token in one.draft} <= {last}, "the last token again"
        last = one.emitted[-1]
    assert trace.stats.distance > 0, "which only a lossy rule has"
    assert Trace.from_json(trace.to_json()).params == trace.params
    update = RunFeed(trace).snapshot()
    assert "stutterer · γ 3 · lossy rule coin 0.5" in update["whose"]
    told = update["setting"]["rule"]
    assert (told["name"], told["symbol"], told["accepted"]) == ("coin", "1/2", "when u < 1/2")
    words = api.trace_in_words(trace)
    assert "stutter" in words and "coin" in words


def test_the_comparison(pair):
    *_, last = compare(settings_for([pair], ["stutter", "none"], PARAMS), [PROMPT], 1, 1, False)
    assert {row.name for row in last.rows} == {"stutterer", "target alone"}
    assert "the stutterer" in winner(last.rows).lower()
    race = ("race", of_both(), "stutterer, γ 3, lossy rule coin 0.5")
    for measurement, params, name in (("compare", PARAMS, "stutterer"), race):
        request = measurement_request({"kind": measurement}, Choice(), "Once", params)
        assert name in [each.name for each in request.settings([pair])]


def test_the_page(pair):
    models = Models({})
    with gr.Blocks():
        boxes = controls(models)
    assert boxes["draft_with"].choices[-1] == ("stutterer", "stutter")
    assert boxes["rule"].choices[-1] == ("coin (lossy): accept every second draft", "coin")
    assert settings.params_from_controls(held()) == of_both()
    shown = {name for name, is_shown in settings.visible(held()).items() if is_shown}
    assert {"gamma", "ngram", "rule", "lenience"} <= shown and not {"confidence", "exit_layer"} & shown
    texts = hints(held(), "Once", models.needs(Choice()), pair)
    assert texts["draft_with"].startswith("repeats a token") and "lossy" in texts["rule"]
