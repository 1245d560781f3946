"""Fused forwards, by torch's operations and as one call of compiled code, predict what the models themselves
do, and are not used where they don't."""

import pytest
import torch
from optimum.quanto import freeze, qint8, quantize

from specdemo.runtime import decoder
from specdemo.runtime.linear import join_weights, use_skinny_linear
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.weights import held_bytes, weights_address
from tests.tiny import ARCHITECTURES, VOCAB, greedy, longrope, tiny

NOT_FUSED = {"gpt2", "gpt_neox", "opt"}
FUSED = [name for name in ARCHITECTURES if name not in NOT_FUSED]
TEXT = torch.arange(60) * 37 % VOCAB  # longer than the sliding windows
ROWS = (1, 5, 9)  # 9 rows are multiplied 5 at a time
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


def static(model):
    lm = CachedLM(model)
    lm.begin_run(static=True)
    return lm


def native_lm(model):
    lm = CachedLM(model, compiled=True)
    lm.begin_run(static=True)
    return lm


@torch.no_grad()
def predicted(lm, rows):
    """The logits [60, V] of a text of which `rows` tokens at a time are fed."""
    parts = []
    for start in range(0, len(TEXT), rows):
        ids = TEXT[start : start + rows]
        lm.reserve(start, start + len(ids))
        parts.append(lm.forward(ids, torch.tensor(start)))
    return torch.cat(parts)


@torch.no_grad()
def expected(model):
    return model(TEXT[None]).logits[0]


def assert_same(logits, others):
    torch.testing.assert_close(logits, others, rtol=1e-5, atol=1e-4)


def assert_right(model):
    """By both."""
    fused, native, right = static(model), native_lm(model), expected(model)
    assert fused.fused is not None and not fused.faults
    for lm, rows in ((fused, (5, 40)), (native, ROWS)):
        furthest = max(float((predicted(lm, n) - right).abs().max()) for n in rows)
        assert furthest <= 1e-5 * max(1.0, float(right.abs().max()))
    assert native.native is not None and native.notes_as("target") == []


def quantised(model, kind=qint8):
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    return model


@pytest.mark.parametrize("name", FUSED)
def test_the_model_s_own_logits(name):
    """Also with weights that lie side by side and come from a checkpoint in 16 bits, which are read as
    such."""
    assert_right(tiny(name))
    model = tiny(name).bfloat16().float()
    join_weights(model)
    use_skinny_linear(model)
    assert_right(model)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # What a class does not read has no effect, whatever its config says.
        ("llama", {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}),
        ("phi3", {"layer_types": ["full_attention", "full_attention"]}),
        # What it reads has.
        ("mistral", {"sliding_window": None}),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu_new", "rope_parameters": YARN}),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.5}),
        ("gemma3", {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),
        ("phi3", longrope(64)),
        ("phi3", {"partial_rotary_factor": 0.5}),  # only a part of each head is rotated
    ],
    ids=str,
)
def test_the_config_has_the_effect_that_it_has_in_the_model(name, changes):
    assert_right(tiny(name, **changes))


def in_float64(name, model):
    """A model of this architecture with the same weights that computes in float64: of quantised weights, with
    the numbers they stand for."""
    exact = tiny(name).double()
    for own, module in zip(exact.modules(), model.modules(), strict=True):
        for key, weight in module._parameters.items():
            if weight is not None:
                is_int8 = hasattr(weight, "_data")
                wide = weight._data.double() * weight._scale.double() if is_int8 else weight.double()
                own._parameters[key].data = wide.detach()
    return exact


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        *((name, "bfloat16", "") for name in ("llama", "phi3", "gemma3", "olmo2")),
        ("llama", "float16", ""),
        *((name, "bfloat16", "int8") for name in ("qwen2", "gemma2")),
        ("phi3", "float32", "int8"),
    ],
)
def test_narrow_weights_give_logits_no_further_from_float64_than_the_model_s(name, dtype, kind):
    model = tiny(name).to(getattr(torch, dtype))
    model = quantised(model) if kind else model
    exact = expected(in_float64(name, model))

    def apart(logits):
        return (logits.double() - exact).square().mean().sqrt()

    theirs = apart(expected(model))
    if not kind:
        lm = static(model)
        assert lm.fused is not None and apart(predicted(lm, 5)) <= 1.5**0.5 * theirs
    if dtype == "float16":  # left to torch
        return
    lm = native_lm(model)
    for rows in (*ROWS, *ROWS):
        logits = predicted(lm, rows)
        assert lm.native is not None and lm.notes_as("target") == []
        # In float32 both are within its rounding.
        assert apart(logits) <= theirs if dtype == "bfloat16" else apart(logits) <= 2 * theirs + 1e-6


def test_joined_weights_are_the_same_weights_in_the_same_memory():
    model = tiny("qwen2")
    size, text = held_bytes(model), greedy(model, [5, 17, 3], 30)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    join_weights(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert held_bytes(model) == size and greedy(model, [5, 17, 3], 30) == text
    products = [product for layer in static(model).fused.decoder.layers for product in layer.products]
    assert all(bool(product.joined) == (len(product.layers) > 1) for product in products)


def test_weights_that_changed_or_moved_are_read():
    model = tiny("qwen2")
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
    assert not lm.fused.decoder.layers[0].qkv.joined
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
    assert lm.fused is not None and not lm.fused.decoder.layers[0].qkv.joined
    assert_same(predicted(lm, 5), expected(model))
    before = weights_address(model)
    assert weights_address(model) == before
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight._data = weight._data.clone()
    assert weights_address(model) != before


def test_a_model_that_is_built_otherwise_runs_by_its_own_forward():
    assert static(tiny("gemma3", use_bidirectional_attention=True)).faults["not_fused"]
    model = tiny()
    model.model.norm = torch.nn.Identity()  # of another class than the model's class has
    lm = static(model)
    assert lm.fused is None and lm.faults["not_fused"]
    assert_same(predicted(lm, 5), expected(model))


def test_a_fused_forward_that_predicts_otherwise_is_not_used(monkeypatch):
    monkeypatch.setattr(decoder, "rotated", lambda x, cos, sin: x)
    model = tiny()
    lm = static(model)
    assert lm.fused is None and "something other than the model (row 2 of 12 " in lm.faults["not_fused"]
    assert_same(predicted(lm, 5), expected(model))
