"""Quantised weights as optimum-quanto stores them, and what is done with them without its compiled code."""

import pytest
import torch
from optimum.quanto import QTensor, freeze, qfloat8, qint2, qint4, qint8, quantize
from optimum.quanto.tensor import QBitsTensor, QBytesTensor
from optimum.quanto.tensor.weights.tinygemm import TinyGemmWeightQBitsTensor

from specdemo import Params, generate, load_pair
from specdemo.loading.assemble import _not_finite
from specdemo.loading.load import plan
from specdemo.loading.pair import held_bytes
from specdemo.loading.request import resolve
from specdemo.runtime.graphs import capture_blocker, stored, weights_address
from tests.checkpoints import saved_in
from tests.small import small_model
from tests.tiny import WIDE, noisy, tiny

GREEDY = Params(temperature=0, max_new_tokens=20)


@pytest.fixture
def never_dequantised(monkeypatch):
    """On CUDA, optimum-quanto compiles code for minutes when it writes out a weight of less than 8 bits."""

    def refuse(weight):
        raise AssertionError("a weight was dequantised")

    for kind in (TinyGemmWeightQBitsTensor, QBitsTensor, QBytesTensor):
        monkeypatch.setattr(kind, "dequantize", refuse)


@pytest.mark.parametrize("kind", [qint8, qint4, qint2, qfloat8], ids=str)
def test_quantised_weights_are_looked_at_as_they_are_stored(never_dequantised, kind):
    model = tiny(**WIDE).bfloat16()
    quantize(model, weights=kind, exclude="lm_head")
    freeze(model)
    assert _not_finite(model) is None and held_bytes(model) and weights_address(model)
    parts = stored(model.model.layers[1].mlp.up_proj.weight)
    with torch.no_grad():
        next(part for part in parts if part.dtype == torch.bfloat16).view(-1)[3] = torch.nan
    assert _not_finite(model) == "model.layers.1.mlp.up_proj.weight"


def test_int4_weights_that_torch_has_a_kernel_for_are_only_multiplied(never_dequantised, tmp_path):
    """From loading to the end of a run."""
    model = tiny(**WIDE)
    both = ("target", model), ("drafter", noisy(model))
    paths = {role: saved_in(tmp_path / role, one) for role, one in both}
    pair = load_pair(**paths, device="cpu", dtype="bfloat16", quantize="int4")
    assert type(pair.target.model.layers[1].mlp.up_proj.weight) is TinyGemmWeightQBitsTensor
    assert generate(pair, "the cat sat", GREEDY, measure=False).stats.drafted
    assert capture_blocker(pair.target) is None


@pytest.mark.parametrize("kind, unit", [("int8", 1 / 127), ("float8", 1 / 14)])
def test_the_layers_of_gpt_2_are_quantised_as_linear_ones(tmp_path, kind, unit):
    """transformers' Conv1D is a linear layer whose weight is transposed."""
    model = tiny("gpt2", vocab_size=304, n_embd=64)
    saved_in(tmp_path, model)
    how = dict(target=tmp_path, drafter=tmp_path, quantize=kind)
    pair = load_pair(**how)
    for loaded in (pair.target, pair.drafter):
        for block, own in zip(loaded.transformer.h, model.transformer.h, strict=True):
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                weight, whole = block.get_submodule(part).weight, own.get_submodule(part).weight.T
                assert isinstance(weight, QTensor)
                limit = whole.abs().amax(1, keepdim=True).detach() * unit
                assert ((weight.dequantize() - whole).abs() <= limit).all()
        assert not isinstance(loaded.lm_head.weight, QTensor)
    assert not pair.limits and pair.bytes_held.target < 0.6 * held_bytes(model)
    assert plan(resolve(**how)).sizes == pytest.approx((pair.bytes_held.target,) * 2, rel=0.01)
    assert generate(pair, "the cat sat", GREEDY, measure=False).stats.accepted


def test_a_share_of_the_weights_that_is_small_is_told(tmp_path):
    """The experts of a mixture are not in linear layers."""
    saved_in(tmp_path, small_model("qwen3_moe"))
    how = dict(target=tmp_path, drafter=tmp_path, quantize={"target": "int8"})
    pair = load_pair(**how)
    weights = dict(pair.target.named_parameters())
    share = sum(one.numel() for one in weights.values() if isinstance(one, QTensor))
    share /= sum(one.numel() for one in weights.values())
    assert 0 < share < 0.5
    assert plan(resolve(**how)).sizes[0] == pytest.approx(pair.bytes_held.target, rel=0.01)
    rest = "the rest, such as model.layers.0.mlp.experts.gate_up_proj, stays in float32"
    told = f"int8 holds {100 * share:.0f} % of the target's weights: {rest}"
    assert pair.limits == (told,)
    pair.detach()
    assert pair.limits == (told,)
