"""Before its first run a model is tried: its predictions with a cache must be those without one."""

import itertools
import math

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from specdemo import Params, generate, load_pair
from specdemo.runtime.agreement import difference
from specdemo.runtime.probe import agrees_with_itself
from tests.sentences import refusal
from tests.tiny import VOCAB, longrope, noisy, random_weights, tiny


def test_a_model_that_looks_ahead_or_whose_forward_fails_is_refused():
    shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    ahead = random_weights(BertLMHeadModel(BertConfig(vocab_size=VOCAB, **shape)))

    def forward(*args, past_key_values=None, **kwargs):
        raise AssertionError("one token\nat a time")

    failing = tiny()
    failing.forward = forward
    for model, why in ((ahead, "its predictions with a cache differ"), (failing, "one token at a time")):
        assert why in refusal(load_pair, target=model)
        assert why in refusal(load_pair, target=tiny(), drafter=model)


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
    assert all(agrees_with_itself(tiny("gpt2", n_positions=context)) for context in (1, 2, 7))


def test_it_is_tried_where_its_rotary_factors_change(monkeypatch):
    assert agrees_with_itself(tiny("phi3", **longrope(100)))
    monkeypatch.setattr("specdemo.runtime.probe.context_of", lambda model: 256)
    assert not agrees_with_itself(tiny("phi3", **longrope(100)))
    assert agrees_with_itself(tiny("phi3", **longrope(100, short=4.0)))


@pytest.mark.parametrize("shape", [("llama", 16, {}), ("mistral", 40, {"sliding_window": 36})], ids=str)
def test_frequencies_that_its_owner_s_longer_text_has_left_are_not_its_own(shape):
    name, end, window = shape
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    model = tiny(name, rope_parameters=rope, max_position_embeddings=end, **window)
    with torch.no_grad():
        model(torch.arange(80)[None])
    assert agrees_with_itself(model)


def off_at(model, *forwards: int):
    """The same model, of whose forwards with a cache these (from 0 on) say something else of their first
    token. The prompt's is the first; then a rejected draft and two of its places take turns."""
    own, calls = model.forward, itertools.count()

    def forward(*args, past_key_values=None, **kwargs):
        output = own(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and next(calls) in forwards:
            output.logits[0, 0] += output.logits.abs().max() * torch.randn(VOCAB)
        return output

    model.forward = forward
    return model


def test_one_place_after_a_rejected_draft_is_enough_but_in_16_bits_half_of_the_places_may_differ():
    """Rounding can make a router choose another expert."""
    for after in (2, 6):
        assert agrees_with_itself(off_at(tiny(), after - 1)), "a rejected draft is of no matter"
        assert not agrees_with_itself(off_at(tiny(), after))
    assert agrees_with_itself(off_at(tiny().bfloat16(), 2, 4, 6))
    assert not agrees_with_itself(wrong_from(tiny().bfloat16(), 8))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_weights_are_told_by_the_run_and_hide_nothing(broken):
    model = tiny()
    model.lm_head.weight.data[7] = broken
    assert agrees_with_itself(model)
    assert not agrees_with_itself(wrong_from(model.bfloat16(), 8))  # which is tried anew
    assert not agrees_with_itself(wrong_from(tiny(), 8, by=broken))


def test_what_differs_is_told_in_a_part_of_a_sentence():
    right = torch.tensor([[1.0, math.nan], [math.inf, 2.0]])
    others = (right, right + torch.tensor([[0.0], [0.5]]), right.nan_to_num())
    same, differs, broken = (difference(right[1:], other[1:], torch.float32) for other in others)
    assert same is None and differs == "row 1 of 1 differs by 0.5, and rounding explains 0.00069"
    assert "differs by inf" in broken and "row 1 of 2" in difference(right, right, torch.float32), "NaN"


def test_a_model_that_was_repaired_is_tried_again():
    model = tiny()
    own = model.forward
    assert not agrees_with_itself(wrong_from(model, 8))
    model.forward = own
    assert agrees_with_itself(model)
    assert not agrees_with_itself(wrong_from(model.bfloat16(), 8)), "in another dtype it is tried again"


def test_memory_for_a_wide_window_is_not_asked_for_twice():
    model, longest = tiny("mistral", sliding_window=40), []
    own = model.forward

    def forward(*args, input_ids=None, past_key_values=None, **kwargs):
        longest.append(input_ids.shape[1])
        if input_ids.shape[1] > 40:
            raise torch.OutOfMemoryError
        return own(*args, input_ids=input_ids, past_key_values=past_key_values, **kwargs)

    model.forward = forward
    assert agrees_with_itself(model) and longest[:3] == [42, 10, 16]


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


def test_too_little_memory_is_not_the_models_fault(monkeypatch):
    def fail(model):
        raise MemoryError

    monkeypatch.setattr("specdemo.drafters.model.agrees_with_itself", fail)
    with pytest.raises(MemoryError):
        load_pair(target=tiny())
