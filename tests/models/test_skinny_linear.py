"""The transposed product gives the same result, and the benchmark gets transformers' own layers."""

import pytest
import torch
from torch.nn import Linear

from specdemo import load_pair
from specdemo.runtime.linear import SkinnyLinear, as_loaded, use_skinny_linear
from tests.tiny import tiny, tokenizer


@pytest.mark.parametrize("shape", [(1, 1, 24), (1, 8, 24), (1, 9, 24), (24,)])
def test_the_same_product(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    for bias in (False, True):
        plain, ours = Linear(24, 40, bias=bias), SkinnyLinear(24, 40, bias=bias)
        ours.load_state_dict(plain.state_dict())
        with torch.no_grad():
            assert ours(x).shape == plain(x).shape and ours(x).is_contiguous()
            torch.testing.assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)


def layers_of(model):
    return {type(module) for module in model.modules() if isinstance(module, Linear)}


def test_transformers_is_measured_with_its_own_layers():
    ours, theirs = tiny(), tiny()
    use_skinny_linear(ours)
    with as_loaded(ours, theirs, None):
        assert layers_of(ours) == layers_of(theirs) == {Linear}
    assert layers_of(ours) == {SkinnyLinear} and layers_of(theirs) == {Linear}


def test_a_pair_uses_it_in_float32_only(tmp_path):
    tiny().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for dtype, layer in (("float32", SkinnyLinear), ("bfloat16", Linear)):
        assert layers_of(load_pair(target=tmp_path, device="cpu", dtype=dtype).target) == {layer}
