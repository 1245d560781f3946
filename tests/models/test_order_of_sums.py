"""How far logits move when a model's sums are made in another order, which is all that a CUDA graph's can
differ in from its step's."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from specdemo.loading.request import resolve
from specdemo.runtime.compared import order_tolerance
from tests.tiny import tiny

pytestmark = pytest.mark.slow
TARGET = next(part.place for part in resolve("embedded", device="cpu").parts if part.role == "target")
LAST = 5  # rows that are compared


class InParts(TorchFunctionMode):
    """Makes each product's sum in parts, which are added in float32, as a kernel for few rows does."""

    def __init__(self, parts):
        super().__init__()
        self.parts, self.products = parts, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "linear":
            x, weight, bias = args[0], args[1].mT, args[2] if len(args) > 2 else None
        elif name == "addmm":
            bias, x, weight = args
        else:
            return function(*args, **(kwargs or {}))
        self.products += 1
        parts = zip(
            x.float().tensor_split(self.parts, -1), weight.float().tensor_split(self.parts), strict=True
        )
        total = sum(mine @ theirs for mine, theirs in parts)
        return (total if bias is None else total + bias).to(x.dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["target", "llama", "gemma2", "gpt2"])
def test_sums_in_another_order_move_logits_less_than_a_graph_s_may_be_apart(name, dtype):
    model = AutoModelForCausalLM.from_pretrained(TARGET) if name == "target" else tiny(name)
    model = model.to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for length in (6, 60, 20):
        ids = torch.randint(2, model.config.vocab_size, (length,), generator=generator)
        expected = model(ids[None]).logits[0, -LAST:]
        for parts in (2, 7):
            with InParts(parts) as mode:
                other = model(ids[None]).logits[0, -LAST:]
            apart = float((other.double() - expected.double()).abs().max())
            assert mode.products and apart <= order_tolerance(expected, [dtype])
