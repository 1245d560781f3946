"""Fused forwards predict what the models themselves do, and are not used where they don't."""

import pytest
import torch
from optimum.quanto import freeze, qint8, quantize

from specdemo.runtime import decoder
from specdemo.runtime.linear import join_weights, use_skinny_linear
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.native import NativeLM
from specdemo.runtime.weights import held_bytes, weights_address
from tests.tiny import ARCHITECTURES, VOCAB, greedy, tiny

NOT_FUSED = {"gpt2", "gpt_neox", "opt"}
FUSED = [name for name in ARCHITECTURES if name not in NOT_FUSED]
TEXT = torch.arange(60) * 37 % VOCAB  # longer than the sliding windows


def static(model):
    lm = CachedLM(model)
    lm.begin_run(static=True)
    return lm


@torch.no_grad()
def predicted(lm, rows):
    """The logits [60, V] of a text of which `rows` tokens at a time are fed."""
    parts = []
    for start in range(0, len(TEXT), rows):
        ids = TEXT[start : start + rows]
        lm.reserve(start, start + len(ids))
        if isinstance(lm, NativeLM):
            lm.compile_soon(len(ids))
        parts.append(lm.forward(ids, torch.tensor(start)))
    return torch.cat(parts)


@torch.no_grad()
def expected(model):
    return model(TEXT[None]).logits[0]


def assert_same(logits, others):
    torch.testing.assert_close(logits, others, rtol=1e-5, atol=1e-4)


def quantised(model, kind=qint8):
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_the_model_s_own_logits(name):
    model = tiny(name)
    assert_same(predicted(static(model), 5), expected(model))
    join_weights(model)
    use_skinny_linear(model)
    lm = static(model)
    assert lm.fused is not None and lm.not_fused is None
    for rows in (1, 5, 40):
        assert_same(predicted(lm, rows), expected(model))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # What a class does not read has no effect, whatever its config says.
        ("llama", {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {"layer_types": ["full_attention", "full_attention"]}),
        # What it reads has.
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma3", {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),
        ("phi3", {"partial_rotary_factor": 0.5}),  # only a part of each head is rotated
    ],
    ids=str,
)
def test_the_config_has_the_effect_that_it_has_in_the_model(name, changes):
    model = tiny(name, **changes)
    lm = static(model)
    assert lm.fused is not None and lm.not_fused is None
    assert_same(predicted(lm, 5), expected(model))


def test_another_model_runs_by_its_own_forward():
    model = tiny("gpt_neox")
    join_weights(model)
    lm = static(model)
    assert lm.fused is None and lm.not_fused is None
    assert_same(predicted(lm, 5), expected(model))


@pytest.mark.parametrize("name", ["llama", "gemma3", "olmo2"])
def test_in_16_bits_the_same_within_rounding(name):
    """Of a float32 model's logits, which both round differently."""
    exact = expected(tiny(name))
    for dtype in (torch.bfloat16, torch.float16):
        model = tiny(name).to(dtype)
        lm = static(model)
        assert lm.fused is not None
        ours, theirs = predicted(lm, 5).float() - exact, expected(model).float() - exact
        assert ours.square().mean() <= 1.5 * theirs.square().mean()


@pytest.mark.parametrize("name", ["qwen2", "phi3"])
def test_joined_weights_are_the_same_weights_in_the_same_memory(name):
    model = tiny(name)
    size, text = held_bytes(model), greedy(model, [5, 17, 3], 30)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    join_weights(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert held_bytes(model) == size and greedy(model, [5, 17, 3], 30) == text
    products = [product for layer in static(model).fused.layers for product in (layer.qkv, layer.gate_up)]
    assert all(bool(product.joined) == (len(product.layers) > 1) for product in products)


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_weights_that_changed_or_moved_are_read(name):
    model = tiny(name)
    join_weights(model)
    lm = static(model)
    before = predicted(lm, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    lm.begin_run(static=True)
    assert not torch.allclose(predicted(lm, 5), before, atol=1e-2)
    assert_same(predicted(lm, 5), expected(model))
    for parameter in model.parameters():
        parameter.data = 1.1 * parameter.data  # elsewhere, and no longer one after the other
    lm.begin_run(static=True)
    assert not lm.fused.layers[0].qkv.joined
    assert_same(predicted(lm, 5), expected(model))


def test_a_caller_s_inference_mode_leaves_nothing_behind():
    model = tiny("gemma3")
    with torch.inference_mode():
        lm = static(model)
    lm.begin_run(static=True)
    assert_same(predicted(lm, 5), expected(model))


def test_quantised_weights_are_not_joined_and_graphs_know_where_they_are():
    """When a model moves, optimum-quanto's weights are the same objects with other tensors in them."""
    model = quantised(tiny())
    join_weights(model)
    lm = static(model)
    assert lm.fused is not None and not lm.fused.layers[0].qkv.joined
    assert_same(predicted(lm, 5), expected(model))
    before = weights_address(model)
    assert weights_address(model) == before
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight._data = weight._data.clone()
    assert weights_address(model) != before


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma3", {"use_bidirectional_attention": True}),
        ("llama", None),  # a module of another class than the model's class has
    ],
)
def test_a_model_that_is_built_otherwise_runs_by_its_own_forward(name, changes):
    model = tiny(name, **(changes or {}))
    if changes is None:
        model.model.norm = torch.nn.Identity()
    lm = static(model)
    assert lm.fused is None and lm.not_fused
    if name == "gemma3":  # no cache can be right for it
        lm.reserve(0, len(TEXT))
        with torch.no_grad():
            lm._plain_forward(TEXT)
    else:
        assert_same(predicted(lm, 5), expected(model))


def test_a_fused_forward_that_predicts_otherwise_is_not_used(monkeypatch):
    monkeypatch.setattr(decoder, "rotated", lambda x, cos, sin: x)
    model = tiny()
    lm = static(model)
    assert lm.fused is None and "predicts something other" in lm.not_fused
    assert_same(predicted(lm, 5), expected(model))
