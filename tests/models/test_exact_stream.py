"""The public way in, with real transformers models: more than a hundred runs of a tiny Llama pair against the
distribution that the target's own forwards give. Caches and rewinding are the real ones here."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdemo import Params, load_pair, stream
from tests.oracle import SOUND, exactness, shaped

V, TOKENS = 7, 2


def tiny_llama(seed, layers=1):
    """One layer, or few, a few hundred weights, large ones, or every distribution would be flat."""
    torch.manual_seed(seed)
    ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, max_position_embeddings=32)
    sizes = dict(hidden_size=8, intermediate_size=16, num_hidden_layers=layers, num_attention_heads=2)
    config = LlamaConfig(vocab_size=V, initializer_range=0.6, **ends, **sizes)
    return LlamaForCausalLM(config).eval()


WANTED = ("accepted", "rejected", "bonus")


def check(params, prompt, runs, *, target, drafter, wanted=WANTED, pair=None):
    @torch.inference_mode()
    def p_of(text):
        return shaped(target(torch.tensor([text])).logits[0, -1], params)

    def run_of(prompt, seed):
        with stream(pair, prompt, replace(params, seed=seed)) as run:
            yield from run

    pair, fates = pair or load_pair(target=target, drafter=drafter), Counter()
    p = exactness(run_of, p_of, [prompt], TOKENS, runs, (), fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in wanted:
        assert fates[fate] > runs / 20, f"too few {fate}: the test shows little about them"


PARAMS = Params(gamma=2, temperature=0.8, top_p=1.0, max_new_tokens=6, ngram=2, alternatives=0)
PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.slow
@pytest.mark.parametrize("runs", [150, pytest.param(4000, marks=pytest.mark.long)])
def test_model_drafter(runs):
    check(PARAMS, PROMPT, runs, target=tiny_llama(3), drafter=tiny_llama(6))


@pytest.mark.slow
def test_lookup():
    check(replace(PARAMS, draft_with="lookup"), [6, 0, 6, 0, 6], 120, target=tiny_llama(2), drafter=None)
