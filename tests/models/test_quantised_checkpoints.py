"""Checkpoints in few bits of packages that are no requirements: each runs as target and as drafter where its
package is installed."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from specdemo import Params, generate, load_pair
from specdemo.runtime.weights import rounds_activations
from tests.checkpoints import change_config, change_tensors, saved_in
from tests.tiny import tiny

pytestmark = pytest.mark.long
SHAPE = dict(vocab_size=304, hidden_size=128, intermediate_size=256)
GREEDY = Params(temperature=0, max_new_tokens=20)
IDS = torch.arange(5, 40)[None]


@pytest.fixture
def base(tmp_path):
    return saved_in(tmp_path / "base", tiny(**SHAPE))


def compressed(folder, kind: str, bits: int, rounds: bool):
    """As compressed-tensors stores weights: in int8, float8, or several in a number of int32 each."""
    pytest.importorskip("compressed_tensors")
    packed, is_float = kind == "pack-quantized", kind == "float-quantized"

    def change(tensors):
        for name in [one for one in tensors if one.endswith("_proj.weight")]:
            weight = tensors.pop(name)
            most = 448 if is_float else 2 ** (bits - 1) - 1
            scale = weight.abs().amax(1, keepdim=True) / most  # [out, 1]
            numbers = weight / scale
            numbers = numbers.to(torch.float8_e4m3fn) if is_float else numbers.round().to(torch.int8)
            tensors[f"{name}_scale"] = scale
            if packed:
                from compressed_tensors.compressors.pack_quantized import pack_to_int32

                tensors[f"{name}_packed"] = pack_to_int32(numbers, bits)
                tensors[f"{name}_shape"] = torch.tensor(weight.shape)
            else:
                tensors[name] = numbers

    number = dict(num_bits=bits, type="float" if is_float else "int", symmetric=True)
    group = {"targets": ["Linear"], "weights": dict(number, strategy="channel")}
    if rounds:
        group["input_activations"] = dict(number, strategy="token", dynamic=True)
    change_tensors(folder, change)
    method = dict(quant_method="compressed-tensors", format=kind, quantization_status="compressed")
    change_config(
        folder, quantization_config=dict(method, config_groups={"group_0": group}, ignore=["lm_head"])
    )


def torchao(folder, kind: str):
    quantization = pytest.importorskip("torchao.quantization")
    how = TorchAoConfig(getattr(quantization, kind)())
    saved_with(folder, how, dtype="bfloat16")


def bitsandbytes(folder, **how):
    pytest.importorskip("bitsandbytes")
    saved_with(folder, BitsAndBytesConfig(**how, bnb_4bit_quant_type="nf4"), device_map="cpu")


def saved_with(folder, how, **more):
    AutoModelForCausalLM.from_pretrained(folder, quantization_config=how, **more).save_pretrained(folder)


ROUND, WEIGHTS = "Int8DynamicActivationInt8WeightConfig", "Int8WeightOnlyConfig"
KINDS = {  # how it is made, and what is told of it
    "compressed-tensors float8": (lambda path: compressed(path, "float-quantized", 8, True), "written_out"),
    "compressed-tensors int4": (lambda path: compressed(path, "pack-quantized", 4, False), "written_out"),
    "torchao int8": (lambda path: torchao(path, WEIGHTS), None),
    "torchao rounded": (lambda path: torchao(path, ROUND), "rounded_activations"),
    "bitsandbytes int8": (lambda path: bitsandbytes(path, load_in_8bit=True), "rounded_activations"),
    "bitsandbytes nf4": (lambda path: bitsandbytes(path, load_in_4bit=True), None),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_in_few_bits_runs_as_target_and_as_drafter(base, tmp_path, kind, dtype):
    make, told = KINDS[kind]
    few, plain = saved_in(tmp_path / "few", tiny(**SHAPE)), tiny(**SHAPE)
    make(few)
    pair = load_pair(target=few, drafter=few, device="cpu", dtype=dtype)
    assert [note.key for note in pair.limits].count(told) == 2 * (told is not None)
    assert rounds_activations(pair.target) == (told == "rounded_activations")
    with torch.no_grad():
        got, wanted = pair.target(IDS).logits.float(), plain(IDS).logits
    error = (got - wanted).pow(2).mean() / wanted.pow(2).mean()
    assert 0 < error < (0.5 if "4" in kind else 0.15)  # noise would be 1 and more
    held = load_pair(target=base, device="cpu", dtype=dtype).bytes_held.target
    assert (pair.bytes_held.target < 0.9 * held) != (told == "written_out")
    trace = generate(pair, "the cat sat", GREEDY, measure=False)
    assert trace.stats.accepted and len(trace.output_ids) == 20
    pair = load_pair(target=base, drafter=few, device="cpu", dtype=dtype)
    assert generate(pair, "the cat sat", GREEDY, measure=False).stats.drafted
