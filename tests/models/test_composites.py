"""Models that also see or hear: their text part runs, as target and as drafter."""

import copy

import pytest
import torch
from optimum.quanto import QTensor
from peft import LoraConfig, get_peft_model

from specdemo import Params, generate, load_pair
from tests.checkpoints import composite, saved_in
from tests.tiny import greedy, tiny

IDS = torch.arange(5, 60)[None]
GREEDY = Params(temperature=0, max_new_tokens=24, ignore_eos=True)
KINDS = {  # and what its text part is
    "gemma3": "Gemma3ForCausalLM",
    "gemma4_unified": "Gemma4UnifiedForCausalLM",
    "qwen3_vl": "Qwen3ForCausalLM",
    "qwen3_vl_moe": "Qwen3MoeForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
}


def logits_of(model):
    with torch.no_grad():
        return model(IDS).logits


def parameters(model) -> int:
    return sum(one.numel() for one in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_part_runs_as_the_whole_would_and_with_a_drafter_of_text_alone(tmp_path, kind):
    whole = composite(kind)
    sees, reads = saved_in(tmp_path / "sees", whole), saved_in(tmp_path / "reads", tiny(vocab_size=304))
    pair = load_pair(target=sees, drafter=reads, device="cpu", dtype="float32")
    assert type(pair.target).__name__ == KINDS[kind] and parameters(pair.target) < parameters(whole)
    torch.testing.assert_close(logits_of(pair.target), logits_of(whole), atol=1e-3, rtol=1e-3)
    assert [(one.key, one.values["name"]) for one in pair.limits] == [("text_part", type(whole).__name__)]
    prompt = [5, 17, 200, 88]
    trace = generate(pair, prompt, GREEDY, measure=False)
    assert trace.output_ids == greedy(whole, prompt, 24) and trace.stats.drafted
    pair.attach(sees)
    assert [one.key for one in pair.limits] == ["text_part"] * 2
    assert generate(pair, prompt, GREEDY, measure=False).stats.accepted


def test_the_text_part_of_qwen3_vl_takes_over_an_adapter_and_quantised_weights(tmp_path):
    """Its class is not that of the whole's text part."""
    whole = composite("qwen3_vl")
    torch.manual_seed(0)
    how = LoraConfig(target_modules=r".*language_model.*(q_proj|down_proj)", init_lora_weights=False)
    trained = get_peft_model(copy.deepcopy(whole), how).eval()
    trained.peft_config["default"].base_model_name_or_path = str(saved_in(tmp_path / "base", whole))
    trained.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    wanted = logits_of(trained)
    assert (logits_of(whole) - wanted).abs().max() > 0.1
    pair = load_pair(target=tmp_path / "adapter", device="cpu", dtype="float32")
    torch.testing.assert_close(logits_of(pair.target), wanted, atol=1e-3, rtol=1e-3)
    for place, exact in (("adapter", wanted), ("base", logits_of(whole))):
        target = load_pair(target=tmp_path / place, device="cpu", dtype="float32", quantize="int8").target
        assert isinstance(target.model.layers[1].mlp.up_proj.weight, QTensor)
        error = (logits_of(target) - exact).pow(2).mean() / exact.pow(2).mean()
        assert 0 < error < 0.1
