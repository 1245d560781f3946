"""What tests of kernels written in Triton share: where they run, and the shapes of real models."""

from dataclasses import dataclass

import torch

# Without a GPU they run in Triton's interpreter, which conftest.py chooses.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes from its published config, by transformers' names."""

    kind: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


# The columns are ModelShape's fields.
MODELS = {  # of the catalogue, whose linear layers can be quantised and have a fused forward
    "SmolLM2-1.7B": ModelShape("llama", 49_152, 2048, 8192, 32, 32, 64),
    "SmolLM2-135M": ModelShape("llama", 49_152, 576, 1536, 9, 3, 64),
    "Qwen2.5-0.5B": ModelShape("llama", 151_936, 896, 4864, 14, 2, 64),
    "Qwen2.5-1.5B": ModelShape("llama", 151_936, 1536, 8960, 12, 2, 128),
    "Qwen2.5-7B": ModelShape("llama", 152_064, 3584, 18_944, 28, 4, 128),
    "Qwen3-0.6B": ModelShape("qwen3", 151_936, 1024, 3072, 16, 8, 128),
    "Qwen3-8B": ModelShape("qwen3", 151_936, 4096, 12_288, 32, 8, 128),
    "Llama-3.2-1B": ModelShape("llama", 128_256, 2048, 8192, 32, 8, 64),
    "Llama-3.2-3B": ModelShape("llama", 128_256, 3072, 8192, 24, 8, 128),
    "Llama-3.1-8B": ModelShape("llama", 128_256, 4096, 14_336, 32, 8, 128),
    "gemma-3-270m": ModelShape("gemma3", 262_144, 640, 2048, 4, 1, 256),
    "gemma-3-4b": ModelShape("gemma3", 262_208, 2560, 10_240, 8, 4, 256),
    "embedded target": ModelShape("llama", 4096, 256, 704, 4, 2, 64),
    "embedded drafter": ModelShape("llama", 4096, 192, 512, 3, 1, 64),
    "embedded poor drafter": ModelShape("llama", 4096, 48, 128, 3, 1, 16),
}


def products_of(model: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of q, k and v as one, of the attention's output, of gate and up, and of down."""
    size, width = model.hidden_size, model.intermediate_size
    heads = model.num_attention_heads * model.head_dim
    groups = model.num_key_value_heads * model.head_dim
    return [(heads + 2 * groups, size), (size, heads), (2 * width, size), (size, width)]
