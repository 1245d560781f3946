"""Medusa heads: small networks beside the target's output layer, each of which predicts another token further
on (Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads").

All read the hidden state from which the target has predicted the last token of the text. The first head
predicts the token after that one, the next head the one after it. They keep nothing of the text. The modules
are named as the tensors of vLLM's format."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, ModuleDict, ModuleList
from torch.nn.functional import silu
from transformers import PreTrainedModel

from specdemo.drafters.heads import DraftHead
from specdemo.runtime.cache import Cached, Features


@dataclass(frozen=True)
class MedusaConfig:
    """What the heads are built like."""

    vocab_size: int  # V
    hidden_size: int  # H, the target's
    heads: int  # the most tokens of a draft
    layers: int = 1  # residual layers of each head
    bias: bool = False  # of these
    shares_output: bool = False  # one output layer for all heads

    def get_text_config(self) -> "MedusaConfig":
        """What `context_of` asks of a transformers config: there is no limit."""
        return self

    @property
    def draft_vocab_size(self) -> int:
        return self.vocab_size

    @property
    def feature_size(self) -> int:
        return self.hidden_size

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The last layer's output alone."""
        return (depth,)


class MedusaHead(DraftHead):
    """All heads of a target, see `DraftHead`."""

    config: MedusaConfig
    reads_normed: ClassVar[bool] = True

    def __init__(self, config: MedusaConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        size = config.hidden_size
        outputs = 1 if config.shares_output else config.heads
        self.blocks = ModuleList(
            ModuleDict(
                {
                    "layers": ModuleList(
                        Linear(size, size, bias=config.bias, dtype=dtype) for _ in range(config.layers)
                    )
                }
            )
            for _ in range(config.heads)
        )
        self.lm_heads = ModuleList(
            Linear(size, config.vocab_size, bias=False, dtype=dtype) for _ in range(outputs)
        )

    @property
    def kind(self) -> str:
        return "medusa"

    @property
    def uses_target_s_embeddings(self) -> bool:
        return False

    def get_output_embeddings(self) -> None:
        return None

    def cached(self, target: PreTrainedModel) -> "CachedMedusa":
        return CachedMedusa(self, target)

    compiled = cached

    def forward(self, hidden: Tensor, count: int) -> Tensor:
        """The target's hidden state [..., H] after its last norm -> the logits [..., count, V] of the first
        heads."""
        said = []
        for index in range(count):
            x = hidden
            for layer in self.blocks[index]["layers"]:
                x = x + silu(layer(x))
            said.append(self.lm_heads[0 if self.config.shares_output else index](x))
        return torch.stack(said, -2)


class CachedMedusa(Cached):
    """Medusa heads with the last hidden states of their target. They have no keys and values."""

    written_for_capture = True
    reads: Features

    def __init__(self, head: MedusaHead, target: PreTrainedModel):
        self.model = head
        self.device, self.dtype = head.device, head.dtype
        head.attach_verifier(target)
        head.begin_run()
        depth = target.config.get_text_config().num_hidden_layers
        self.reads = Features(target, head.config.layer_ids_for(depth))

    def make_room(self, length: int) -> None:
        pass

    def places(self, rows: Tensor, count: int) -> Tensor:
        """The logits [N, count, V] of the first heads from the target's hidden states at `rows` [N]. The
        first head's are those of the token at the position two after the row."""
        states = self.reads.at(rows.to(self.reads.states.device))  # [N, H]
        return self.model(self.model.normed(states), count)
