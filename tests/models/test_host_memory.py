"""The host's memory that loading onto a GPU takes: what the plan says of it, and how the weights go there.
Without a GPU: torch's meta device stands in for it, and memory is as large as a test says."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdemo.errors import LoadError
from specdemo.loading import plan as plan_module
from specdemo.loading import read
from specdemo.loading.plan import bytes_on_host, check_free_memory, check_memory, plan_from
from specdemo.loading.request import Part, resolve
from tests.heads import tiny_head
from tests.sentences import refusal
from tests.tiny import tiny

GIGABYTE = 10**9
SIZES = {  # of Qwen3's target of 8B and drafter of 0.6B, in embeddings, layers and feed-forward layers
    "target": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36),
    "drafter": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, tie_word_embeddings=True),
}
HEADS = dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151_936)


@pytest.fixture(scope="module")
def skeletons():
    with torch.device("meta"):
        return [AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **HEADS)) for sizes in SIZES.values()]


@pytest.fixture
def planned(monkeypatch, skeletons):
    """`planned(memory, device, **how)`: the plan of such a pair, on a machine with so many GB."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def make(memory: dict[str, float], device, **how):
        in_bytes = lambda device: int(memory[device] * GIGABYTE)  # noqa: E731
        monkeypatch.setattr(plan_module, "memory_of", in_bytes)
        monkeypatch.setattr(plan_module, "free_memory", in_bytes)
        return plan_from(resolve(target="big", drafter="small", device=device, **how), skeletons)

    return make


def test_a_small_host_loads_a_model_that_is_larger_than_its_memory(planned):
    plan = planned({"cuda": 24, "cpu": 15}, "cuda")
    check_memory(plan), check_free_memory(plan)
    assert plan.sizes[0] > 15 * GIGABYTE > 5 * plan.needs[3].bytes > 5 * plan.needs[4].bytes > 0


@pytest.mark.parametrize(
    ("memory", "told", "short"),
    [
        ({"cuda": 24, "cpu": 2}, "target big, on its way to cuda, needs about 2.7 GB", "cpu"),
        ({"cuda": 12, "cpu": 2}, "target big needs about 16.4 GB", "cuda"),
        ({"cuda": 17, "cpu": 15}, "target big and drafter small need about 17.8 GB", "cuda"),
    ],
    ids=str,
)
def test_one_sentence_names_what_is_short(planned, memory, told, short):
    plan = planned(memory, "cuda")
    for check in (check_free_memory, check_memory):
        message = refusal(check, plan, kind=LoadError)
        assert message.startswith(told) and f"{memory[short]}.0 GB" in message and short in message


def test_a_target_on_the_cpu_is_there_while_its_drafter_goes_to_the_gpu(planned, skeletons):
    plan = planned({"cuda": 2, "cpu": 16.5}, {"target": "cpu", "drafter": "cuda"}, dtype="bfloat16")
    of_host, drafters = plan.needs[-1], bytes_on_host(skeletons[1], torch.bfloat16)
    assert of_host.device == "cpu" and of_host.bytes == plan.sizes[0] + drafters
    with pytest.raises(LoadError):
        check_free_memory(plan)
    other = planned({"cuda": 17, "cpu": 3}, {"target": "cuda", "drafter": "cpu"}, dtype="bfloat16")
    check_free_memory(other)  # the drafter comes to the host when the target has left it


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


def test_a_head_passes_through_the_host_as_a_whole():
    head = tiny_head(tiny("llama"))
    weights = sum(parameter.numel() for parameter in head.parameters())
    assert bytes_on_host(head, torch.float32) >= 4 * weights
