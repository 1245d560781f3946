"""Models of real shapes without a download, whose acceptance is known by construction.

Speed does not depend on what the weights say; acceptance does. So every layer is computed in full and adds nothing (its
o_proj and down_proj are zero), and what is left is a bigram model: the embedding of x, normed, times the output matrix.
Row next(x) of that matrix is the embedding of x, so next(x) wins with a large margin. The target's next is one cycle through the
whole vocabulary; the drafter's is wrong for a drawn share of the tokens. So greedy acceptance is the same for every contestant.
The output matrix cannot be the embedding table then, as it is in some of the real models (tied), but a forward reads the same bytes.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from specdemo.loading.errors import LoadError
from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair
from specdemo.runtime.device import memory_of


@dataclass(frozen=True)
class Shape:
    """A model's sizes, from its published config."""

    kind: str
    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int = 131_072

    def config(self) -> LlamaConfig | Qwen3Config:
        return {"llama": LlamaConfig, "qwen3": Qwen3Config}[self.kind](
            vocab_size=self.vocab, hidden_size=self.hidden, intermediate_size=self.ffn, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, head_dim=self.head_dim,
            max_position_embeddings=self.context, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip


LLAMA_1B = Shape("llama", vocab=128_256, hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8, head_dim=64)
LLAMA_3B = Shape("llama", vocab=128_256, hidden=3072, ffn=8192, layers=28, heads=24, kv_heads=8, head_dim=128)
LLAMA_8B = Shape(
    "llama", vocab=128_256, hidden=4096, ffn=14_336, layers=32, heads=32, kv_heads=8, head_dim=128
)
QWEN3_06B = Shape(
    "qwen3",
    vocab=151_936,
    hidden=1024,
    ffn=3072,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    context=40_960,
)
QWEN3_8B = Shape(
    "qwen3",
    vocab=151_936,
    hidden=4096,
    ffn=12_288,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context=40_960,
)
TINY_TARGET = Shape(
    "llama", vocab=512, hidden=128, ffn=256, layers=2, heads=4, kv_heads=2, head_dim=32, context=8192
)
TINY_DRAFTER = Shape(
    "llama", vocab=512, hidden=64, ffn=128, layers=1, heads=2, kv_heads=1, head_dim=32, context=8192
)

SHAPES = {  # name: (target, drafter)
    "llama-3.2-3b-1b": (LLAMA_3B, LLAMA_1B),
    "qwen3-8b-0.6b": (QWEN3_8B, QWEN3_06B),
    "llama-3.1-8b-1b": (LLAMA_8B, LLAMA_1B),
    "tiny": (TINY_TARGET, TINY_DRAFTER),
}


@dataclass(frozen=True)
class Bigrams:
    """Who follows whom: `target[x]` stands behind x, `drafter[x]` is what the drafter takes for it. All are [V], on the CPU."""

    order: Tensor  # the cycle, token by token
    target: Tensor
    drafter: Tensor

    def prompts(self, count: int, length: int | None = None) -> list[list[int]]:
        """Stretches of the cycle, beginning at evenly spaced places, of `length` tokens (None: 16)."""
        vocab = len(self.order)
        places = [vocab * i // count + torch.arange(length or 16) for i in range(count)]
        return [self.order[place % vocab].tolist() for place in places]


def bigrams(vocab: int, accept: float, seed: int) -> Bigrams:
    """A random cycle through all tokens, and a drafter that is wrong behind a drawn share 1 - accept of them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(vocab, generator=generator)
    target = torch.empty_like(order)
    target[order] = order.roll(-1)
    wrong = (torch.rand(vocab, generator=generator) >= accept).nonzero()[:, 0]
    drafter = target.clone()
    drafter[wrong] = target[wrong.roll(1)]  # still a permutation: the wrong ones have changed places
    return Bigrams(order, target, drafter)


def shaped_pair(
    name: str, device: str, dtype: torch.dtype, accept: float = 0.8, seed: int = 0
) -> tuple[Pair, Bigrams]:
    """A pair with the sizes of `SHAPES[name]`, made on the device, without a tokenizer: its prompts are token ids.

    Raises LoadError where the device has too little memory."""
    shapes = SHAPES[name]
    with torch.device("meta"):
        bytes = sum(_bare(shape).num_parameters() for shape in shapes) * dtype.itemsize
    if bytes > (there := memory_of(device)):
        raise LoadError(
            f"shapes {name} need about {bytes / 1e9:.1f} GB, but {device} has {there / 1e9:.1f} GB"
        )
    follows = bigrams(shapes[0].vocab, accept, seed)
    target = _model(shapes[0], follows.target, device, dtype, seed)
    drafter = _model(shapes[1], follows.drafter, device, dtype, seed + 1)
    target.name_or_path, drafter.name_or_path = (
        f"shape of {name}'s {role}" for role in ("target", "drafter")
    )
    pair = load_pair(target=target, drafter=drafter, tokenizer=None)
    return pair.with_capture("auto"), follows  # these models have no other owner


def _bare(shape: Shape) -> PreTrainedModel:
    return {"llama": LlamaForCausalLM, "qwen3": Qwen3ForCausalLM}[shape.kind](shape.config())


def _model(shape: Shape, next_of: Tensor, device: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    with _default_dtype(dtype), torch.device(device), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _bare(shape).eval()
        table = model.get_input_embeddings().weight  # [V, H]
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            table.bernoulli_(0.5).mul_(2).sub_(
                1
            )  # +1 and -1: all rows equally long, and exact in every dtype
            model.get_output_embeddings().weight[next_of.to(device)] = table
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype):
    """The models are born in their dtype: 8 billion parameters would not fit as float32 first."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
