"""Quantised weights as optimum-quanto stores them, and what is done with them without its compiled code."""

import pytest
import torch
from optimum.quanto import freeze, qfloat8, qint2, qint4, qint8, quantize
from optimum.quanto.tensor import QBitsTensor, QBytesTensor
from optimum.quanto.tensor.weights.tinygemm import TinyGemmWeightQBitsTensor

from specdemo import Params, generate, load_pair
from specdemo.loading.assemble import _not_finite
from specdemo.loading.pair import held_bytes
from specdemo.runtime.graphs import capture_blocker, stored, weights_address
from tests.tiny import WIDE, noisy, tiny, tokenizer


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
    scales = [
        part for part in stored(model.model.layers[1].mlp.up_proj.weight) if part.dtype == torch.bfloat16
    ]
    with torch.no_grad():
        scales[0].view(-1)[3] = torch.nan
    assert _not_finite(model) == "model.layers.1.mlp.up_proj.weight"


def test_int4_weights_that_torch_has_a_kernel_for_are_only_multiplied(never_dequantised, tmp_path):
    """From loading to the end of a run."""
    model = tiny(**WIDE)
    for name, one in (("target", model), ("drafter", noisy(model))):
        one.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    paths = dict(target=tmp_path / "target", drafter=tmp_path / "drafter")
    pair = load_pair(**paths, device="cpu", dtype="bfloat16", quantize="int4")
    assert type(pair.target.model.layers[1].mlp.up_proj.weight) is TinyGemmWeightQBitsTensor
    assert (
        generate(pair, "the cat sat", Params(temperature=0, max_new_tokens=20)).stats.drafted
        and capture_blocker(pair.target) is None
    )
