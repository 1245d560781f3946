"""Pairs that people use. The sizes are those of their published configs as far as they are known here: no hub
was asked."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specdemo.bench.shapes import LLAMA_8B, SHAPES
from specdemo.loading.heads import format_of
from specdemo.loading.speculator import EMBEDDINGS, Eagle3Reader
from specdemo.runtime.eagle3 import Eagle3Head

QWEN_7B = dict(
    model_type="qwen2",
    vocab_size=152_064,
    hidden_size=3584,
    intermediate_size=18_944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=131_072,
)
QWEN_05B = dict(
    model_type="qwen2",
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    max_position_embeddings=32_768,
    tie_word_embeddings=True,
)
GEMMA_1B = dict(
    model_type="gemma3_text",
    vocab_size=262_144,
    hidden_size=1152,
    intermediate_size=6912,
    num_hidden_layers=26,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    query_pre_attn_scalar=256,
    sliding_window=512,
    max_position_embeddings=32_768,
)
GEMMA_270M = GEMMA_1B | dict(hidden_size=640, intermediate_size=2048, num_hidden_layers=18)
# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
EAGLE3_FOR_LLAMA_8B = dict(
    architectures=["LlamaForCausalLMEagle3"],
    model_type="llama",
    vocab_size=128_256,
    draft_vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=1,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    hidden_act="silu",
)


def _models(target: dict, drafter: dict) -> tuple[PreTrainedModel, PreTrainedModel]:
    made = (AutoModelForCausalLM.from_config(AutoConfig.for_model(**one)) for one in (target, drafter))
    return tuple(model.eval() for model in made)


def _shapes(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    return tuple(shape.model().eval() for shape in SHAPES[name])


def _with_eagle3() -> tuple[PreTrainedModel, Eagle3Head]:
    reader = Eagle3Reader(EAGLE3_FOR_LLAMA_8B, format_of(EAGLE3_FOR_LLAMA_8B, ""), "")
    head = Eagle3Head(reader.config({EMBEDDINGS}), torch.get_default_dtype())
    head.begin_run()
    return LLAMA_8B.model().eval(), head.eval()


# What makes target and drafter, on the current default device and in the default dtype. The names are those
# of COUNTED_PAIRS in specdemo/bench/by_count.py.
PAIRS: dict[str, Callable[[], tuple[PreTrainedModel, Module]]] = {
    "llama-3.2-3b-1b": partial(_shapes, "llama-3.2-3b-1b"),
    "qwen3-8b-0.6b": partial(_shapes, "qwen3-8b-0.6b"),
    "llama-3.1-8b-1b": partial(_shapes, "llama-3.1-8b-1b"),
    "llama-3.1-8b-eagle3": _with_eagle3,
    "qwen2.5-7b-0.5b": partial(_models, QWEN_7B, QWEN_05B),
    "gemma-3-1b-270m": partial(_models, GEMMA_1B, GEMMA_270M),
}
