"""CUDA graphs: the same tokens as without, one wait per round, captured once, and eager with a reason where
they cannot be."""

import warnings
from dataclasses import replace

import pytest
import torch

import specdemo.engine.step
from specdemo import Params, generate, load_pair, stream
from tests.tiny import ARCHITECTURES, noisy, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

PROMPT = "Once upon a time there was a little fox who"
GREEDY = Params(temperature=0, max_new_tokens=150, ignore_eos=True, seed=5)
KINDS = ["model", "lookup", "ngram", "none"]


@pytest.fixture(scope="module")
def pair():
    return load_pair(device="cuda", dtype="float32")


def trace_of(pair, params, prompt=PROMPT, capture=True):
    return generate(pair if capture else pair.with_capture("off"), prompt, params)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(GREEDY, temperature=0.8),
        replace(GREEDY, temperature=1.2, top_k=20, top_p=1.0, min_p=0.05),
    ],
    ids=range(3),
)
def test_the_same_tokens_eager_and_captured(pair, kind, params):
    params = replace(params, draft_with=kind)
    captured, eager = trace_of(pair, params), trace_of(pair, params, capture=False)
    assert pair.runner.graphs.graphs and not pair.runner.graphs.blocker
    assert captured.output_ids == eager.output_ids
    assert captured.stats.accepted == eager.stats.accepted


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_captured_and_writes_the_same(name):
    target = tiny(name)
    drafter = noisy(target)
    pair = load_pair(target=target.cuda(), drafter=drafter.cuda())
    prompt = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
    params = replace(GREEDY, max_new_tokens=100)  # beyond the sliding windows
    captured = trace_of(pair, params, prompt)
    assert not pair.notes and pair.runner.graphs.graphs
    assert captured.output_ids == trace_of(pair, params, prompt, capture=False).output_ids
    assert (
        captured.output_ids
        == trace_of(pair, replace(params, draft_with="none"), prompt, capture=False).output_ids
    )


def test_the_host_waits_once_a_round(pair):
    trace_of(pair, GREEDY)  # captured
    run = stream(pair, PROMPT, GREEDY)
    for _ in range(3):
        next(run)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                next(run)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        run.close()
    waits = [warning for warning in caught if "synchroniz" in str(warning.message)]
    assert len(waits) == 5, [str(warning.message) for warning in waits]


def test_a_second_run_captures_nothing_and_another_gamma_only_its_own(pair):
    trace_of(pair, GREEDY)
    captured = set(pair.runner.graphs.graphs)
    trace_of(pair, GREEDY)
    assert set(pair.runner.graphs.graphs) == captured
    trace_of(pair, replace(GREEDY, gamma=7))
    new = set(pair.runner.graphs.graphs) - captured
    assert new and all(key[1] == 7 for key in new)


def test_longer_texts_pass_from_kv_length_to_kv_length(pair):
    params = replace(GREEDY, max_new_tokens=700)
    assert trace_of(pair, params).output_ids == trace_of(pair, params, capture=False).output_ids
    prompt = pair.tokenizer(PROMPT).input_ids * 60
    assert (
        trace_of(pair, replace(GREEDY, max_new_tokens=100), prompt).output_ids
        == trace_of(pair, replace(GREEDY, max_new_tokens=100), prompt, capture=False).output_ids
    )


def test_a_step_that_cannot_be_captured_runs_as_it_is_and_says_why(monkeypatch):
    pair = load_pair(device="cuda", dtype="float32")
    expected = trace_of(pair, GREEDY, capture=False).output_ids
    monkeypatch.setattr(
        specdemo.engine.step,
        "probabilities",
        lambda logits: logits.double().softmax(-1) + 0 * logits.max().item(),
    )
    assert trace_of(pair, GREEDY).output_ids == expected
    assert any("cannot be captured" in note and "capture" in note.split(": ", 1)[1] for note in pair.notes)
    monkeypatch.undo()
    assert trace_of(pair, GREEDY).output_ids == expected, "and the device is as it was"


def test_a_model_with_hooks_runs_as_it_is_and_says_why():
    pair = load_pair(device="cuda", dtype="float32")
    expected, called = trace_of(pair, GREEDY).output_ids, []
    hook = pair.target.model.layers[0].register_forward_hook(lambda *_: called.append(1))
    trace = trace_of(pair, GREEDY)
    assert any("hooks" in note for note in pair.notes)
    hook.remove()
    assert trace.output_ids == expected and len(called) == trace.stats.target_forwards


def test_graphs_are_bounded_and_their_memory_too(pair):
    pair.runner.graphs.most = 4
    try:
        trace_of(pair, GREEDY)
        held = torch.cuda.memory_reserved()
        for seed, temperature in enumerate([0.3, 0.5, 0.7, 0.9, 1.1, 1.3]):
            trace_of(pair, replace(GREEDY, temperature=temperature, seed=seed))
        assert len(pair.runner.graphs.graphs) <= 4
        assert torch.cuda.memory_reserved() < held + 2**28
    finally:
        pair.runner.graphs.most = 40


def test_weights_that_moved_are_read_where_they_are(pair):
    before = trace_of(pair, GREEDY).output_ids
    for parameter in pair.target.parameters():
        parameter.data = parameter.data.clone()
    assert trace_of(pair, GREEDY).output_ids == before


@pytest.mark.parametrize("quantize", ["int8", "int4", "float8"])
def test_quantised_weights_in_the_same_path(quantize):
    pair = load_pair(device="cuda", quantize=quantize)
    trace = trace_of(pair, GREEDY)
    assert trace.stats.tokens == 150
    assert bool(pair.runner.graphs.blocker) == bool(pair.notes), "captured, or a note says why not"
