"""The target's first layers as its drafter: exact whatever layer it is, in the target's own cache and by its
own modules."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import Linear, ModuleList

from specdemo import Params, generate, load_pair
from specdemo.drafters.early_exit.layers import first_layers
from specdemo.drafters.ways import WAYS
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs
from tests.fake_cuda import FakeCuda, install
from tests.models.test_exact_stream import PARAMS, check, tiny_llama
from tests.models.test_exact_stream import PROMPT as SHORT
from tests.models.test_greedy import (
    NEW,
    PROMPT,
    assert_same,
    expected_of,
    note_forwards,
    run_of,
    target_of,
)
from tests.runners import run_by
from tests.tiny import greedy, noisy, tiny

GREEDY = Params(draft_with="early-exit", temperature=0, max_new_tokens=NEW)
# What stands between the last layer and the head.
NORMS = {
    "gpt2": "transformer.ln_f",
    "gpt_neox": "gpt_neox.final_layer_norm",
    "opt": "model.decoder.final_layer_norm",
}


def exits(target, **params):
    return run_of(target, draft_with="early-exit", measure=False, **params)


@pytest.mark.slow
def test_a_later_layer_drafts():
    changes = dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
    target = tiny("gemma2", **changes)
    trace = exits(target, gamma=3, exit_layer=3)
    assert_same(target, trace.output_ids, greedy(target, PROMPT, NEW))
    assert trace.params.exit_layer == 3 and trace.stats.rejected


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2])
def test_prompts_of_any_length(length):
    target = target_of("phi3")
    trace = exits(target, prompt=PROMPT[:length], gamma=4)
    assert_same(target, trace.output_ids, greedy(target, PROMPT[:length], NEW), PROMPT[:length])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", *NORMS])
def test_the_text_is_that_of_generate_and_a_draft_what_norm_and_head_make_of_the_layers_output(name):
    """Also after many rounds in the target's cache, beyond the sliding window."""
    target = copy.deepcopy(target_of(name))  # output_hidden_states leaves hooks in it
    trace = exits(target, gamma=3)
    assert_same(target, trace.output_ids, expected_of(name))
    assert trace.params.exit_layer == 1 and trace.stats.accepted and trace.stats.rejected
    norm, ids = target.get_submodule(NORMS.get(name, "model.norm")), list(PROMPT)
    hooked = copy.deepcopy(target)  # output_hidden_states leaves hooks, with which nothing is captured
    for one in trace.rounds:
        if one.draft:
            first = one.draft[0]
            with torch.no_grad():
                output = hooked(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
                logits = target.get_output_embeddings()(norm(output.hidden_states[1][0, -1]))
            if cap := getattr(target.config, "final_logit_softcapping", None):
                logits = torch.tanh(logits / cap) * cap
            assert first.id == logits.argmax() and first.q == 1
            assert first.raw_q == pytest.approx(logits.softmax(-1)[first.id].item(), rel=1e-3)
        ids += one.emitted


def test_the_target_is_run_as_ever_and_the_prompt_is_read_once(monkeypatch):
    """Forwards, counted in the model and in its first layer."""
    target, whole, first = copy.deepcopy(target_of("gpt2")), [], []
    load_pair(target=target)  # tries it
    note_forwards(target, whole)
    target.transformer.h[0].register_forward_pre_hook(lambda module, args: first.append(args[0].shape[1]))
    trace = exits(target, gamma=4)
    assert_same(target, trace.output_ids, expected_of("gpt2"))
    assert len(whole) == trace.stats.target_forwards == len(trace.rounds) + 1, "and none by the drafter"
    assert sum(first) == sum(len(fed) for _, fed in whole) + trace.stats.drafted, "one row for each draft"


@pytest.mark.slow
def test_exact_when_sampling():
    params = replace(PARAMS, draft_with="early-exit", exit_layer=2, temperature=1.2, top_k=5, top_p=0.95)
    check(params, SHORT, 120, target=tiny_llama(3, layers=3), drafter=None)


@pytest.mark.slow
def test_a_run_of_native_forwards_is_the_run():
    """The embedded target's, over several lengths of the cache; each exit layer has forwards of its own."""
    pair = load_pair()
    for layer, temperature in ((1, 0.0), (pair.largest("early-exit", "exit_layer"), 0.9)):
        how = dict(temperature=temperature, top_p=0.9, seed=3, gamma=3, max_new_tokens=70)
        params = Params(draft_with="early-exit", exit_layer=layer, **how)
        captured = generate(pair, "One day, Tom", params, measure=False)
        plain = generate(pair.with_capture("off"), "One day, Tom", params, measure=False)
        assert captured.output_ids == plain.output_ids
        assert pair.runner._own["early-exit", layer].native is not None
    assert pair.notes == [*pair.limits]


@pytest.mark.slow
def test_runs_of_several_drafters_take_turns_over_captured_steps(monkeypatch):
    """A graph of the drafter model must not be taken for one of the first layers, nor layer 1 for layer 2."""
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)
    fake = install(monkeypatch, FakeCuda())
    target = tiny("llama", num_hidden_layers=3)
    graphs = Graphs(Clock())
    pair, plain = run_by(target, noisy(target), graphs), load_pair(target=target, drafter=noisy(target))
    made = []
    for _ in range(2):
        for how in (dict(draft_with="model"), *(dict(draft_with="early-exit", exit_layer=k) for k in (1, 2))):
            params = Params(**how, temperature=0.9, seed=3, max_new_tokens=15)
            for prompt in (PROMPT, PROMPT[:1]):
                text = generate(pair, prompt, params, measure=False).output_ids
                assert text == generate(plain, prompt, params, measure=False).output_ids
        made.append(len(graphs.graphs))
    assert graphs.fault is None and not fake.violations
    assert made[0] == made[1], "the graphs of other drafters are kept"


@pytest.mark.slow
def test_the_owners_changes_to_a_model_in_memory_are_seen():
    target = tiny("llama")
    pair = load_pair(target=target)
    before = generate(pair, PROMPT, GREEDY, measure=False)
    assert_same(target, before.output_ids, greedy(target, PROMPT, NEW))
    head = Linear(32, 96, bias=False)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(5))
    target.lm_head = head
    after = generate(pair, PROMPT, GREEDY, measure=False)
    assert_same(target, after.output_ids, greedy(target, PROMPT, NEW))
    assert after.output_ids != before.output_ids
    probabilities = after.rounds[0].draft[0]
    with torch.no_grad():
        said = first_layers(target, 1)(torch.tensor([PROMPT])).logits[0, -1].softmax(-1)
    assert probabilities.raw_q == pytest.approx(said[probabilities.id].item(), rel=1e-4)

    target.to(torch.bfloat16)
    assert generate(pair, PROMPT, GREEDY, measure=False).stats.tokens == NEW


def test_nothing_is_copied_and_the_model_is_left_as_it_is():
    target = tiny("opt")
    before = {name: id(module) for name, module in target.named_modules()}
    cut = first_layers(target, 1)
    theirs = {id(weight) for weight in target.parameters()}
    assert {id(weight) for weight in cut.parameters()} < theirs
    assert len(cut.model.decoder.layers) == 1 and len(target.model.decoder.layers) == 2
    assert {name: id(module) for name, module in target.named_modules()} == before
    target.train().forward = target.forward  # which are not taken over
    cut = first_layers(target, 1)
    assert "forward" not in vars(cut) and not cut.training and not cut.model.decoder.training
    assert "forward" in vars(target) and target.training


def test_by_default_a_quarter_of_the_layers_drafts():
    for layers, chosen in ((4, 1), (5, 2), (9, 3)):
        target = tiny("llama", num_hidden_layers=layers)
        params = replace(GREEDY, max_new_tokens=2)
        assert generate(load_pair(target=target), PROMPT, params, measure=False).params.exit_layer == chosen


def test_what_cannot_be_cut_is_refused_in_a_sentence():
    pair = load_pair(target=tiny("llama", num_hidden_layers=3))
    with pytest.raises(ValueError, match=r"^exit_layer must be a whole number from 1 to 2 .*, not 3$"):
        generate(pair, PROMPT, replace(GREEDY, exit_layer=3))
    with pytest.raises(ValueError, match=r'^draft_with must not be "early-exit" for Llama.*one layer only$'):
        generate(load_pair(target=tiny("llama", num_hidden_layers=1)), PROMPT, GREEDY)
    several = tiny("llama")
    several.others = ModuleList([Linear(2, 2), Linear(2, 2)])
    pair = load_pair(target=several)
    with pytest.raises(ValueError, match=r'^draft_with must not be "early-exit" for Llama.* not one list'):
        generate(pair, PROMPT, GREEDY)
    assert pair.lacks("early-exit")


@pytest.mark.slow
def test_the_length_of_a_draft_adapts_to_it():
    """gamma="auto" counts the layers that draft, and confidence ends drafts where these are unsure."""
    target = tiny("llama", num_hidden_layers=4)
    pair = load_pair(target=target)
    few, most = (WAYS["early-exit"].cost(pair, Params(exit_layer=layers)).token for layers in (1, 3))
    assert 0 < few < most < 1
    expected = greedy(target, PROMPT, NEW)
    traces = [
        generate(pair, PROMPT, replace(GREEDY, exit_layer=3, **how), measure=False)
        for how in (dict(gamma="auto"), dict(confidence=0.5), dict(gamma=4))
    ]
    for trace in traces:
        assert_same(target, trace.output_ids, expected)
    auto, unsure, fixed = (trace.stats.drafted / trace.stats.rounds for trace in traces)
    assert auto < fixed and 0 < unsure < fixed, "three of four layers cost too much for long drafts"
