"""The transposed product is the same sum, and a benchmark gets the models as transformers has loaded them."""

import pytest
import torch

from specdemo import load_pair
from specdemo.runtime.skinny_linear import FewRowsLinear, as_loaded


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 24), (1, 2, 24), (1, 8, 24), (1, 9, 24), (5, 24), (2, 3, 24), (24,)]
)
def test_the_same_product(shape, bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(24, 40, bias=bias)
    ours = FewRowsLinear(24, 40, bias=bias)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(shape).transpose(-1, -1)
    with torch.no_grad():
        assert ours(x).shape == plain(x).shape and ours(x).is_contiguous()
        torch.testing.assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_only_where_it_helps_and_not_in_a_benchmark_of_transformers():
    def kinds(pair):
        return {type(module) for module in pair.target.modules() if isinstance(module, torch.nn.Linear)}

    pair = load_pair()
    assert kinds(pair) == {FewRowsLinear}
    with as_loaded(pair.target, pair.drafter, None):
        assert kinds(pair) == {torch.nn.Linear}
    assert kinds(pair) == {FewRowsLinear}
    assert kinds(load_pair(dtype="bfloat16")) == {torch.nn.Linear}
