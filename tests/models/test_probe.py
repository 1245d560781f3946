"""A model is tried once, before its first run: its predictions with a cache must be those without one."""

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from specdemo import PairError, Params, generate, load_pair
from specdemo.runtime.probe import agrees_with_itself
from tests.sentences import assert_one_sentence
from tests.tiny import VOCAB, noisy, random_weights, tiny


def refused(**models) -> str:
    with pytest.raises(PairError) as refusal:
        load_pair(**models)
    assert_one_sentence(str(refusal.value))
    return str(refusal.value)


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_model_in_memory_that_looks_ahead_is_refused(role):
    shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    ahead = random_weights(BertLMHeadModel(BertConfig(vocab_size=VOCAB, **shape)))
    said = refused(**{"target": tiny(), role: ahead})
    assert said.startswith(f"{role} BertLMHeadModel (BertLMHeadModel) cannot be used: its predictions with a")


def wrong_from(model, position: int, by: float = 1.0):
    """The same model, whose forward after so many cached tokens says something else."""
    own = model.forward

    def forward(*args, past_key_values=None, **kwargs):
        output = own(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and past_key_values.get_seq_length() >= position:
            output.logits = output.logits + by * output.logits.abs().max() * torch.randn(VOCAB)
        return output

    model.forward = forward
    return model


def test_it_is_tried_beyond_its_sliding_window():
    assert not agrees_with_itself(wrong_from(tiny("mistral", sliding_window=40), 40))
    assert not agrees_with_itself(wrong_from(tiny("llama"), 8))
    assert agrees_with_itself(wrong_from(tiny("mistral", sliding_window=40), 60)), "tried on no more tokens"


def test_a_window_that_would_take_long_is_left_out(monkeypatch):
    monkeypatch.setattr("specdemo.runtime.probe.MOST_WORK", {"cpu": 1e5})
    assert agrees_with_itself(wrong_from(tiny("mistral", sliding_window=40), 40))


def test_one_place_that_differs_is_rounding():
    model = tiny()
    own, calls = model.forward, []

    def forward(*args, past_key_values=None, **kwargs):
        output = own(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None:
            calls.append(1)
            if len(calls) == 3:  # the first two of those that are compared
                output.logits[0, 0] += 1e3
        return output

    model.forward = forward
    assert agrees_with_itself(model) and len(calls) == 4


def test_a_model_is_tried_once_and_left_as_it_was():
    target, forwards = tiny(), []
    drafter = noisy(target)
    target.train()
    target.model.layers[0].eval()
    training = [module.training for module in target.modules()]
    note = target.register_forward_pre_hook(lambda *_: forwards.append(target.training))
    pair = load_pair(target=target, drafter=drafter)
    assert forwards and not any(forwards)
    assert [module.training for module in target.modules()] == training
    count = len(forwards)
    load_pair(target=target, drafter=drafter)
    assert len(forwards) == count
    note.remove()
    assert len(generate(pair, [1, 2, 3], Params(max_new_tokens=5, temperature=0)).output_ids) == 5


def test_a_forward_that_fails_is_told_in_its_own_words():
    def forward(*args, past_key_values=None, **kwargs):
        raise AssertionError("one token\nat a time")

    broken = tiny()
    broken.forward = forward
    assert refused(target=broken).endswith("cannot be used: its forward fails: one token at a time")


@pytest.mark.parametrize("context", [1, 2, 3, 5, 7])
def test_a_short_context_is_enough(context):
    assert agrees_with_itself(tiny("gpt2", n_positions=context))


def test_too_little_memory_is_not_the_models_fault(monkeypatch):
    def fail(model):
        raise MemoryError

    monkeypatch.setattr("specdemo.loading.assemble.agrees_with_itself", fail)
    with pytest.raises(MemoryError):
        load_pair(target=tiny())
