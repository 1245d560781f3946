"""The features that a head reads: transformers' own hidden states, by position. (What heads say of them, in
prefills of several parts and after rejected drafts, is in test_drafter_contract.py.)"""

import copy
import threading

import pytest
import torch

from specdemo.runtime.cache import Features
from specdemo.runtime.lm import CachedLM
from tests.heads import hidden_states
from tests.tiny import VOCAB, tiny

TEXT = torch.arange(45) * 37 % VOCAB  # longer than the sliding windows


@torch.no_grad()
def feed(lm, start, ids):
    lm.reserve(start, start + len(ids))
    return lm.forward(ids, torch.tensor(start))


def watched(lm, layer_ids=(1, 0), static=True):
    lm.begin_run(static=static)
    lm.features = Features(lm.model, layer_ids)
    return lm


def assert_kept(lm, expected):
    torch.testing.assert_close(lm.features.at(torch.arange(len(TEXT))), expected, rtol=1e-5, atol=1e-4)


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
    assert_kept(lm, torch.cat([states[-1], hidden_states(model, TEXT.tolist(), [1])], -1))


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
    assert_kept(lm, hidden_states(model, TEXT.tolist(), (1, 0)))


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
