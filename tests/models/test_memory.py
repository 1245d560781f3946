"""The memory that loading onto a GPU takes: what the plan says of it, and how the weights go there.
Without a GPU: torch's meta device stands in for it, and memory is as large as a test says."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdemo.errors import LoadError
from specdemo.loading import load, read
from specdemo.loading.request import Part, resolve
from tests.sentences import refusal
from tests.tiny import tiny

SIZES = {  # of Qwen3's target of 8B and drafter of 0.6B, in embeddings, layers and feed-forward layers
    "target": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36),
    "drafter": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, tie_word_embeddings=True),
}
HEADS = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151_936)


@pytest.mark.parametrize(
    ("gigabytes", "told"),
    [(12, "target big needs about 16.4 GB"), (17, "target big and drafter small need about 17.8 GB")],
)
def test_one_sentence_names_what_is_short(monkeypatch, gigabytes, told):
    for name, value in {"is_available": True, "device_count": 1, "get_device_capability": (9, 0)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    for name in ("memory_of", "free_memory"):
        monkeypatch.setattr(load, name, lambda device: gigabytes * 10**9)
    with torch.device("meta"):
        skeletons = [AutoModelForCausalLM.from_config(LlamaConfig(**one, **HEADS)) for one in SIZES.values()]
    planned = load.plan_from(resolve(target="big", drafter="small", device="cuda"), skeletons)
    said = refusal(load.check_free_memory, planned, kind=LoadError)
    assert said.startswith(told) and f"{gigabytes}.0 GB" in said and "cuda" in said


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(dtype, device)`: a model whose files are of the dtype."""
    folder = tmp_path_factory.mktemp("saved")
    for dtype in (torch.float32, torch.bfloat16):
        tiny("llama").to(dtype).save_pretrained(folder / str(dtype), max_shard_size="30KB")
    return lambda dtype, device: Part("target", "own", str(folder / str(dtype)), device, None, None)


@pytest.fixture
def loaded(monkeypatch):
    """`loaded(part, dtype)`: the model, and where transformers had put it."""
    devices = []
    own = read.AutoModelForCausalLM.from_pretrained

    def from_pretrained(*args, **options):
        model, info = own(*args, **options)
        devices.append(model.device.type)
        return model, info

    monkeypatch.setattr(read.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    return lambda part, dtype: (read.read_model(part, dtype), devices.pop())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_another_dtype_go_straight_to_the_gpu(saved, loaded, monkeypatch, stored):
    part = saved(stored, "meta")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model, by_transformers = loaded(part, dtype)
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        assert by_transformers == ("cpu" if dtype == stored else "meta"), dtype
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert loaded(part, torch.float16)[1] == "cpu", "that follows the calls of `to` alone"
    monkeypatch.delenv("SPACES_ZERO_GPU")
    assert not read.takes_host_memory({"weight": "F32", "scale": "F8_E8M0"}, torch.float32)
    monkeypatch.setattr(sys, "platform", "win32")
    assert read.takes_host_memory({"weight": "F32"}, torch.float32), "transformers maps no files there"
