"""Pairs that people use. The sizes are those of their published configs as far as they are known here: no hub
was asked."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specdemo.bench.shapes import LLAMA_8B, SHAPES
from specdemo.drafters.config_reader import EMBEDDINGS
from specdemo.drafters.eagle3.format import Eagle3Reader
from specdemo.drafters.eagle3.head import Eagle3Head
from specdemo.drafters.formats import format_of

SIZES = ("vocab_size", "hidden_size", "intermediate_size")
SIZES += ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
GEMMA = dict(head_dim=256, query_pre_attn_scalar=256, sliding_window=512, max_position_embeddings=32_768)
# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
OF_HEAD = dict(
    architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=32_000, max_position_embeddings=2048
)
OF_HEAD |= dict(rms_norm_eps=1e-5, hidden_act="silu")


def _config(model_type: str, *sizes: int, **others: object) -> dict:
    """sizes: by SIZES."""
    return dict(zip(SIZES, sizes, strict=True)) | {"model_type": model_type} | others


QWEN_7B = _config("qwen2", 152_064, 3584, 18_944, 28, 28, 4, max_position_embeddings=131_072)
QWEN_05B = _config("qwen2", 151_936, 896, 4864, 24, 14, 2, max_position_embeddings=32_768)
QWEN_05B |= dict(tie_word_embeddings=True)
GEMMA_1B = _config("gemma3_text", 262_144, 1152, 6912, 26, 4, 1, **GEMMA)
GEMMA_270M = _config("gemma3_text", 262_144, 640, 2048, 18, 4, 1, **GEMMA)
EAGLE3_FOR_LLAMA_8B = _config("llama", 128_256, 4096, 14_336, 1, 32, 8, **OF_HEAD)


def _models(target: dict, drafter: dict) -> tuple[PreTrainedModel, PreTrainedModel]:
    made = (AutoModelForCausalLM.from_config(AutoConfig.for_model(**one)) for one in (target, drafter))
    return tuple(model.eval() for model in made)


def _shapes(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    return tuple(shape.model().eval() for shape in SHAPES[name])


def _with_eagle3() -> tuple[PreTrainedModel, Eagle3Head]:
    reader = Eagle3Reader(EAGLE3_FOR_LLAMA_8B, format_of(EAGLE3_FOR_LLAMA_8B, ""), "")
    head = Eagle3Head(reader.config({EMBEDDINGS: []}), torch.get_default_dtype())
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
