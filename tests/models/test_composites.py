"""Models that also see or hear: their text part runs, as target and as drafter."""

import pytest
import torch

from specdemo import Params, generate, load_pair
from tests.checkpoints import composite, saved_in
from tests.tiny import greedy, tiny

IDS = torch.arange(5, 60)[None]
GREEDY = Params(temperature=0, max_new_tokens=24, ignore_eos=True)
KINDS = {  # and what its text part is
    "gemma3": "Gemma3ForCausalLM",
    "gemma4_unified": "Gemma4UnifiedForCausalLM",
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
