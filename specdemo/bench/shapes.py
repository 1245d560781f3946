"""Models of real shapes without a download, whose acceptance rate is known by construction.

Speed does not depend on the weights' values, but acceptance does. So every layer is computed in full and
adds nothing (its o_proj and down_proj are zero). What remains is a bigram model: the normed embedding of x
times the output matrix. Row next(x) of that matrix is the embedding of x, so next(x) wins by a large margin.
The target's next is one cycle through the whole vocabulary; the drafter's is wrong for a random share of the
tokens. So greedy acceptance is the same for every contestant. The output matrix can't be the embedding table,
which it is in some of the real models (tied), but a forward reads the same bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from specdemo.errors import LoadError
from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair
from specdemo.runtime.device import memory_of
from specdemo.runtime.linear import join_weights


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes from its published config, by transformers' names."""

    kind: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 131_072

    def model(self) -> PreTrainedModel:
        """A model with random weights, on the current default device and in the default dtype."""
        sizes = asdict(self)
        config, model = ARCHITECTURES[sizes.pop("kind")]
        rope = {"rope_type": "default", "rope_theta": 500_000.0}
        special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        return model(config(**sizes, **special, rope_parameters=rope, tie_word_embeddings=False))


ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}

# The columns are ModelShape's fields.
LLAMA_1B = ModelShape("llama", 128_256, 2048, 8192, 16, 32, 8, 64)
LLAMA_3B = ModelShape("llama", 128_256, 3072, 8192, 28, 24, 8, 128)
LLAMA_8B = ModelShape("llama", 128_256, 4096, 14_336, 32, 32, 8, 128)
QWEN3_06B = ModelShape("qwen3", 151_936, 1024, 3072, 28, 16, 8, 128, 40_960)
QWEN3_8B = ModelShape("qwen3", 151_936, 4096, 12_288, 36, 32, 8, 128, 40_960)
TINY_TARGET = ModelShape("llama", 512, 128, 256, 2, 4, 2, 32, 8192)
TINY_DRAFTER = ModelShape("llama", 512, 64, 128, 1, 2, 1, 32, 8192)

SHAPES = {  # name: (target, drafter)
    "llama-3.2-3b-1b": (LLAMA_3B, LLAMA_1B),
    "qwen3-8b-0.6b": (QWEN3_8B, QWEN3_06B),
    "llama-3.1-8b-1b": (LLAMA_8B, LLAMA_1B),
    "tiny": (TINY_TARGET, TINY_DRAFTER),
}


@dataclass(frozen=True)
class Bigrams:
    """After token x comes `target[x]`, and the drafter predicts `drafter[x]`. All are [V], on the CPU."""

    order: Tensor  # the cycle, token by token
    target: Tensor
    drafter: Tensor

    def prompts(self, count: int, length: int | None = None) -> list[list[int]]:
        """Parts of the cycle with evenly spaced starts, each of `length` tokens (None: 16)."""
        vocab = len(self.order)
        positions = [vocab * i // count + torch.arange(length or 16) for i in range(count)]
        return [self.order[each % vocab].tolist() for each in positions]


def bigrams(vocab: int, accept: float, seed: int) -> Bigrams:
    """A random cycle through all tokens; the drafter is wrong after a random share 1 - accept of them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(vocab, generator=generator)
    target = torch.empty_like(order)
    target[order] = order.roll(-1)
    wrong = (torch.rand(vocab, generator=generator) >= accept).nonzero()[:, 0]
    drafter = target.clone()
    drafter[wrong] = target[wrong.roll(1)]  # still a permutation: the wrong ones are rotated
    return Bigrams(order, target, drafter)


def shaped_pair(
    name: str,
    device: str,
    dtype: torch.dtype,
    accept: float = 0.8,
    seed: int = 0,
    cudnn_attention: bool = False,
) -> tuple[Pair, Bigrams]:
    """A pair with the sizes of `SHAPES[name]`, made on the device. Prompts are token ids: no tokenizer.

    Raises LoadError if the device has too little memory."""
    shapes = SHAPES[name]
    with torch.device("meta"):
        needed = sum(shape.model().num_parameters() for shape in shapes) * dtype.itemsize
    if needed > (memory := memory_of(device)):
        found = f"{device} has {memory / 1e9:.1f} GB"
        raise LoadError(f"shapes {name} need about {needed / 1e9:.1f} GB, but {found}")
    follows = bigrams(shapes[0].vocab_size, accept, seed)
    target = _model(shapes[0], follows.target, device, dtype, seed)
    drafter = _model(shapes[1], follows.drafter, device, dtype, seed + 1)
    target.name_or_path, drafter.name_or_path = f"shape of {name}'s target", f"shape of {name}'s drafter"
    pair = load_pair(target=target, drafter=drafter, cudnn_attention=cudnn_attention)
    return pair.with_capture("auto"), follows  # "off" for models in memory, which others may use


def _model(shape: ModelShape, next_of: Tensor, device: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    with _default_dtype(dtype), torch.device(device), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = shape.model().eval()
        embedding = model.get_input_embeddings().weight  # [V, H]
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            # +1 and -1: all rows have the same length, and every dtype represents them exactly.
            embedding.bernoulli_(0.5).mul_(2).sub_(1)
            model.get_output_embeddings().weight[next_of.to(device)] = embedding
    join_weights(model)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Models are created in this dtype: 8 billion parameters would not fit in memory as float32 first."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
