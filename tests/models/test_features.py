"""The features that an EAGLE-3 head reads: they are transformers' own hidden states, by position, however a
forward is run."""

import copy
import threading

import pytest
import torch

import specdemo.runtime.lm
from specdemo.runtime.cache import Features
from specdemo.runtime.lm import CachedLM
from tests.tiny import VOCAB, tiny

TEXT = torch.arange(45) * 37 % VOCAB  # longer than the sliding windows
LAYERS = (1, 0)  # in an order of their own


@torch.no_grad()
def hidden_states(model, layer_ids=LAYERS):
    """transformers' own, [45, A * H], from a copy, on which it leaves hooks."""
    output = copy.deepcopy(model)(TEXT[None], output_hidden_states=True)
    return torch.cat([output.hidden_states[i][0] for i in layer_ids], -1)


@torch.no_grad()
def feed(lm, start, ids):
    lm.reserve(start, start + len(ids))
    return lm.forward(ids, torch.tensor(start))


def watched(lm, layer_ids=LAYERS, static=True):
    lm.begin_run(static=static)
    lm.features = Features(lm.model, layer_ids)
    return lm


def assert_kept(lm, expected):
    torch.testing.assert_close(lm.features.at(torch.arange(len(TEXT))), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "name, static", [("llama", True), ("gemma3", True), ("gemma3", False), ("gpt2", False), ("opt", True)]
)
def test_they_are_the_hidden_states_of_transformers(name, static, monkeypatch):
    """In a prefill of several chunks and in the rounds after it, where rejected drafts are overwritten."""
    monkeypatch.setattr(specdemo.runtime.lm, "PREFILL_CHUNK", 8)
    model = tiny(name)
    lm = watched(CachedLM(model), static=static)
    with torch.no_grad():
        lm.prefill(TEXT[:20])
    for start in range(20, 45, 5):
        feed(lm, start, TEXT[start : start + 7].flip(0))
        feed(lm, start, TEXT[start : start + 5])
    assert_kept(lm, hidden_states(model))
    left = [part for part in model.modules() if part._forward_hooks or part._forward_pre_hooks]
    assert not left, "nothing is left on the model"


@pytest.mark.parametrize("name, static", [("llama", True), ("gpt2", False)])
def test_the_output_of_the_last_layer(name, static):
    """Its number is that of the layers, and it is the state before the last norm."""
    model = tiny(name)
    states = []
    whole = copy.deepcopy(model)
    norm = whole.transformer.ln_f if name == "gpt2" else whole.model.norm
    norm.register_forward_pre_hook(lambda _, args: states.append(args[0][0]))
    with torch.no_grad():
        whole(TEXT[None])
    lm = watched(CachedLM(model), (2, 1), static)
    feed(lm, 0, TEXT)
    assert_kept(lm, torch.cat([states[-1], hidden_states(model, [1])], -1))


def test_the_buffer_grows_with_the_cache():
    model = tiny(max_position_embeddings=1024)
    lm = watched(CachedLM(model))
    features, lm.features = lm.features, None
    feed(lm, 0, TEXT)
    assert len(features.states) == 0, "who wants none pays nothing"
    lm.features = features
    feed(lm, 0, TEXT)
    epoch = lm.buffer_epoch
    lm.reserve(45, 300)
    assert len(lm.features.states) == lm.capacity >= 300 and lm.buffer_epoch > epoch
    assert_kept(lm, hidden_states(model))


def test_another_thread_s_forward_of_the_same_model_is_not_kept():
    model = tiny()
    lm, other = watched(CachedLM(model), static=False), CachedLM(model)
    feed(lm, 0, TEXT)
    expected = lm.features.states.clone()
    with lm.features.watching(torch.arange(45)):
        thread = threading.Thread(target=feed, args=(other, 0, TEXT.flip(0)))
        thread.start()
        thread.join()
    assert torch.equal(lm.features.states, expected)
