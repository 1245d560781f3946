"""An EAGLE head: a decoder layer that continues its target's last hidden states (Li et al. 2024, "EAGLE:
Speculative Sampling Requires Rethinking Feature Uncertainty"; EAGLE-2, Li et al. 2024, has the same weights).

A linear layer makes one hidden state of a token's embedding and the hidden state before it. What the layers
make of that stands for the target's next hidden state after its last norm: so the target's own output layer
reads it, and the next step does. Embeddings and output layer are the target's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, ModuleList
from torch.nn.functional import embedding
from transformers import LlamaConfig, PreTrainedModel

from specdemo.drafters.eagle3.head import CachedEagle3, NativeEagle3
from specdemo.drafters.heads import DraftHead, HeadLayer, OfLayers
from specdemo.runtime.decoder import Attention, Decoder, Layer, Norm, RowMask, TargetStates
from specdemo.runtime.lm import final_norm


@dataclass(frozen=True)
class EagleConfig(OfLayers):
    """What a head is built like. The number and the sizes of its layers, V and the rotary positions are in
    `layer`."""

    layer: LlamaConfig  # of each layer, of which the first has no norm before its attention
    fc_bias: bool = True
    qkv_bias: bool = False  # of queries, keys and values alone

    @property
    def feature_size(self) -> int:
        return self.hidden_size

    @property
    def draft_vocab_size(self) -> int:
        return self.vocab_size

    @property
    def masks(self) -> list[RowMask]:
        return [RowMask()] * self.layer.num_hidden_layers

    def layer_ids_for(self, depth: int) -> tuple[int, ...]:
        """The last layer's output alone."""
        return (depth,)


class EagleHead(DraftHead):
    """An EAGLE head, see `DraftHead`."""

    config: EagleConfig
    reads_normed: ClassVar[bool] = True
    reads_context: ClassVar[bool] = False
    first_position: ClassVar[int] = 0

    def __init__(self, config: EagleConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config)
        layer, size = config.layer, config.hidden_size
        self.fc = Linear(2 * size, size, bias=config.fc_bias, dtype=dtype)
        self.layers = ModuleList(HeadLayer(layer, dtype) for _ in range(layer.num_hidden_layers))
        self.layers[0].input_layernorm = None  # what it reads is made of what is normed
        if config.qkv_bias:
            for each in self.layers:
                for name in ("q_proj", "k_proj", "v_proj"):
                    own = each.self_attn[name]
                    each.self_attn[name] = Linear(own.in_features, own.out_features, dtype=dtype)
        self.decoding = self.layers_by(None)

    @property
    def kind(self) -> str:
        return "eagle"

    @property
    def uses_target_s_embeddings(self) -> bool:
        return True

    def get_output_embeddings(self) -> None:
        return None

    def cached(self, target: PreTrainedModel) -> CachedEagle3:
        return CachedEagle3(self, target)

    def compiled(self, target: PreTrainedModel) -> NativeEagle3:
        return NativeEagle3(self, target)

    def decoder(self, target: PreTrainedModel) -> Decoder:
        if "RMSNorm" not in type(norm := final_norm(target)).__name__:
            raise ValueError("its target's last norm is no RMS norm")
        return Decoder(
            self.dtype,
            target.get_input_embeddings(),
            self.decoding,
            None,
            target.get_output_embeddings(),
            lambda rows: {None: self.rotary(rows + self.first_position, torch.float32)},
            reads=TargetStates([Norm(norm)], self.fc, None, are_keys=False, with_embeddings=True),
        )

    def features(self, hidden: Tensor) -> Tensor:
        """The last layer's outputs of the target [..., H] -> its last hidden states g [..., H]."""
        return self.normed(hidden)

    def forward(
        self,
        tokens: Tensor,
        g: Tensor,
        attention: Sequence[Attention],
        layers: Sequence[Layer] | None = None,
    ) -> Tensor:
        """tokens [..., N] with what came before each: g [..., N, H], the target's hidden state of the token
        before it, or the head's own output for that. attention: that of each layer. layers: the layers as
        they run, if not by torch's operations. Returns y [..., N, H]; see `predict`."""
        embedded = embedding(tokens, self.targets_embedding()).to(g.dtype)  # [..., N, H]
        x = self.fc(torch.cat([embedded, g], -1))
        for layer, attend in zip(layers or self.decoding, attention, strict=True):
            x = layer(x, attend)
        return x

    def predict(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [..., N, H] -> what the next step takes as g [..., N, H], and the logits [..., N, V] of the token
        after each."""
        head = self.verifier_head[0]
        return y, head(y.to(head.weight.dtype))
