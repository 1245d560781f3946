"""A DFlash 2 head: a DFlash head in whose block each row is also mixed with the rows before it, and which
draws the tokens of a block one after another, each by the one before it (Z Lab and Inco AI 2026; their class
`DFlash2DraftModel` in github.com/z-lab/dflash defines it)."""

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import embedding, pad
from transformers import PreTrainedModel

from specdemo.drafters.dflash.head import DFlashConfig, DFlashHead
from specdemo.runtime.decoder import Attention, Decoder, Heads, Layer


@dataclass(frozen=True, kw_only=True)
class DFlash2Config(DFlashConfig):
    taps: int  # rows that a convolution reads: a row's own, and those before it
    group_size: int  # channels that share what a convolution adds to its weights
    selector_rank: int  # r
    candidates: int  # C: the tokens of a place that the selector chooses from


class Convolution(Module):
    """Mixes each row of a block with the rows before it, channel by channel: once what a layer's attention or
    MLP reads, and once what it gives. The weights of both are learned, plus what is made of each row read."""

    def __init__(self, config: DFlash2Config, dtype: torch.dtype):
        super().__init__()
        size, self.group_size = config.hidden_size, config.group_size
        self.of_groups = 2, config.taps, size // config.group_size
        self.base_kernel = Parameter(torch.zeros(2, config.taps, size, dtype=dtype))
        self.kernel_projection = Linear(size, 2 * config.taps * self.of_groups[-1], bias=False, dtype=dtype)

    def forward(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """read [..., N, H] -> the same mixed, and the weights [..., N, taps, H] for what comes of it."""
        added = self.kernel_projection(read).unflatten(-1, self.of_groups)  # [..., N, 2, taps, groups]
        base = self.base_kernel.unflatten(-1, (-1, self.group_size))  # [2, taps, groups, group_size]
        before, after = (base + added[..., None]).flatten(-2).unbind(-3)
        return mixed(read, before), after


def mixed(x: Tensor, weights: Tensor) -> Tensor:
    """x [..., N, H] and weights [..., N, taps, H] -> [..., N, H]: of each row its own weighted, plus the rows
    before it, as far as the block has them."""
    first, *earlier = weights.unbind(-2)
    result = first * x
    for back, weight in enumerate(earlier, 1):
        result = torch.addcmul(result, weight, pad(x, (0, 0, back, 0))[..., : x.shape[-2], :])
    return result


class ConvolvedLayer(Layer):
    """A layer with a convolution around its attention, and one around its MLP."""

    def __init__(
        self,
        part: Module,
        attends: Heads,
        activation: str,
        kernels: ModuleType | None = None,
        reads_context: bool = False,
    ):
        super().__init__(part, attends, activation, kernels, reads_context)
        self.around_attention, self.around_mlp = part.attention_conv, part.mlp_conv

    def __call__(self, x: Tensor, attention: Attention, embedded: Tensor | None = None) -> Tensor:
        assert self.before_attention is not None and self.before_mlp is not None
        read, weights = self.around_attention(self.before_attention(x))
        x = x + mixed(self.out(attention(self, self.qkv(read))), weights)
        read, weights = self.around_mlp(self.before_mlp(x))
        return x + mixed(self.down(self._gated(self.gate_up(read))), weights)


class CandidateSelector(Module):
    """Scores a place's candidates, its C likeliest tokens, by the token before: their logits, plus a product
    of rank r."""

    def __init__(self, config: DFlash2Config, dtype: torch.dtype):
        super().__init__()
        self.count = config.candidates
        self.predecessor_codebook, self.successor_codebook = (
            Parameter(torch.zeros(config.vocab_size, config.selector_rank, dtype=dtype)) for _ in range(2)
        )
        self.hidden_projection = Linear(config.hidden_size, config.selector_rank, bias=False, dtype=dtype)

    def candidates(
        self, hidden: Tensor, logits: Tensor, told: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [k, H] and logits [k, V] of the rows that draft -> gates, likeliest and ids, see `forward`.
        told: see draft_in_turn. Its candidates are taken, since rounding may have chosen others there."""
        ids = (logits if told is None else told).topk(self.count).indices
        return self.hidden_projection(hidden), logits.gather(-1, ids), ids

    def forward(self, before: Tensor, gates: Tensor, likeliest: Tensor, ids: Tensor) -> Tensor:
        """before [k]: the token before each place. gates [k, r]: of the places' hidden states. likeliest, ids
        [k, C]: the candidates' logits, and which they are -> the logits [k, V], -inf for all others."""
        asked = embedding(before, self.predecessor_codebook) * gates  # [k, r]
        scores = likeliest + (embedding(ids, self.successor_codebook) @ asked[..., None])[..., 0]
        return scores.new_full((len(ids), len(self.successor_codebook)), -torch.inf).scatter(-1, ids, scores)


class DFlash2Head(DFlashHead):
    """A DFlash 2 head, see `DraftHead`."""

    config: DFlash2Config
    layer_type: ClassVar[type[Layer]] = ConvolvedLayer

    def __init__(self, config: DFlash2Config, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.candidate_selector = CandidateSelector(config, dtype)

    def new_layer(self, dtype: torch.dtype) -> Module:
        layer = super().new_layer(dtype)
        layer.attention_conv = Convolution(self.config, dtype)
        layer.mlp_conv = Convolution(self.config, dtype)
        return layer

    @property
    def kind(self) -> str:
        return "dflash2"

    @property
    def bytes_of_a_block(self) -> int:
        return super().bytes_of_a_block + self.candidate_selector.hidden_projection.weight.nbytes

    @property
    def bytes_of_a_token(self) -> int:
        """The rows of the codebooks: of the token before, and of its candidates."""
        return (1 + self.config.candidates) * self.config.selector_rank * self.dtype.itemsize

    def decoder(self, target: PreTrainedModel) -> Decoder:
        raise ValueError("its layers have convolutions")
