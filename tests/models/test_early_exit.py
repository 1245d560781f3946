"""The target's first layers as its drafter: in the target's own cache and by its own modules. What they owe
as every drafter does is in test_drafter_contract.py."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import Linear, ModuleList

from specdemo import Params, generate, load_pair
from specdemo.drafters.early_exit import first_layers
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from tests.drafters import drawn_as_said, exit_says
from tests.fake_cuda import FakeCuda, install
from tests.models.test_greedy import (
    NEW,
    PROMPT,
    assert_same,
    expected_of,
    run_of,
    target_of,
)
from tests.runners import run_by
from tests.tiny import greedy, noisy, tiny

GREEDY = Params(draft_with="early-exit", temperature=0, max_new_tokens=NEW)


def exits(target, **params):
    return run_of(target, draft_with="early-exit", **params)


EXITS = {
    "gemma2": (3, dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)),
    "gpt2": (1, {}),
    "gpt_neox": (1, {}),
    "opt": (1, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXITS)
def test_a_draft_is_what_norm_and_head_make_of_a_layer_s_output(name):
    """Also after many rounds in the target's cache, beyond the sliding window."""
    layer, changes = EXITS[name]
    target = tiny(name, **changes)
    params = replace(GREEDY, temperature=0.8, top_p=1.0, exit_layer=layer, gamma=3, seed=1)
    trace = generate(load_pair(target=target), PROMPT, params, measure=False)
    says = partial(exit_says, None, target, layer=layer)
    assert len(set(drawn_as_said(says, PROMPT, trace))) > 1


def test_the_target_is_run_as_ever_and_the_prompt_is_read_once(monkeypatch):
    """Forwards, counted in the last layer and in the first one."""
    target, whole, first = copy.deepcopy(target_of("gpt2")), [], []
    load_pair(target=target)  # tries it
    target.transformer.h[-1].register_forward_pre_hook(lambda module, args: whole.append(args[0].shape[1]))
    target.transformer.h[0].register_forward_pre_hook(lambda module, args: first.append(args[0].shape[1]))
    trace = exits(target, gamma=4)
    assert_same(target, trace.output_ids, expected_of("gpt2"))
    assert len(whole) == trace.stats.target_forwards == len(trace.rounds) + 1, "and none by the drafter"
    assert sum(first) == sum(whole) + trace.stats.drafted, "one row for each draft"


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
            text = generate(pair, PROMPT, params, measure=False).output_ids
            assert text == generate(plain, PROMPT, params, measure=False).output_ids
        made.append(len(graphs.graphs))
    assert not graphs.blocker and not graphs.refused and not fake.violations
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
    with pytest.raises(ValueError, match="^exit_layer .*2.*3$"):
        generate(pair, PROMPT, replace(GREEDY, exit_layer=3))
    several = tiny("llama")
    several.others = ModuleList([Linear(2, 2), Linear(2, 2)])
    for target in (tiny("llama", num_hidden_layers=1), several):
        pair = load_pair(target=target)
        with pytest.raises(ValueError, match='^draft_with .*"early-exit"'):
            generate(pair, PROMPT, GREEDY)
        assert pair.lacks("early-exit")
