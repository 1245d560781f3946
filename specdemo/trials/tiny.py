"""A pair so small that every text of two tokens and its probability can be written down: two real Llama
models over a vocabulary of eight words, with weights from fixed seeds."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair

TINY_WORDS = ("the", "a", "fox", "bird", "ran", "sang", "home", "and")  # by token id
TINY_PROMPT = (0, 2)
TARGET_SEED, DRAFTER_SEED = 10, 110
SHARPNESS = 1.2  # of the weights: larger ones make the distributions less even
DISAGREEMENT = 0.6  # share of the drafter's weights that are its own


def tiny_pair() -> Pair:
    """A new tiny pair each time, on the CPU. Nobody else uses it, so that its forwards may be compiled as
    those of a pair that is loaded: a run takes a third of the time."""
    target = _weights(TARGET_SEED)
    drafter = _model()
    for ours, shared, own in zip(
        drafter.parameters(), target.parameters(), _weights(DRAFTER_SEED).parameters(), strict=True
    ):
        ours.data.copy_((1 - DISAGREEMENT) * shared.data + DISAGREEMENT * own.data)
    pair = load_pair(target=target, drafter=drafter)
    assert isinstance(pair, Pair)
    pair.runner.capture = "auto"
    return pair


def next_logits(pair: Pair, text: list[int]) -> torch.Tensor:
    """The target's logits [1, V] after a text, by transformers' own forward without any cache of ours."""
    with torch.no_grad():
        return pair.target(torch.tensor([text]), use_cache=False).logits[:, -1]


def _model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TINY_WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def _weights(seed: int) -> LlamaForCausalLM:
    model, generator = _model(), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # norms stay 1
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(noise * SHARPNESS / parameter.shape[-1] ** 0.5)
    return model
