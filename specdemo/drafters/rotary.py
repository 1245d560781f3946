"""Rotary positions of a drafting head (Su et al. 2021, "RoFormer"), for each token by its own position alone.
So keys can be written by position, and no length is read from the device."""

import torch
from torch import Tensor
from torch.nn import Module
from transformers import LlamaConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class RotaryPositions(Module):
    """The rotary positions that transformers' own module computes for one token after another, with keys that
    stay as they were written.

    partial_rotary_factor: only the first r = d * factor channels of a head are rotated, as vLLM does.
    dynamic: its frequencies depend on the length beyond max_position_embeddings only, where a head does not
    draft. longrope: the long factors are those of positions from original_max_position_embeddings on."""

    inverse_frequencies: Tensor  # [r/2] float32
    long_inverse_frequencies: Tensor | None  # [r/2] float32, of longrope

    def __init__(self, layer: LlamaConfig | Qwen3Config):
        super().__init__()
        rope = layer.rope_parameters
        self.rotated = int(layer.head_dim * rope.get("partial_rotary_factor", 1.0))  # r
        self.scaling, long, self.longer_from = 1.0, None, 0
        with torch.device("cpu"):  # also where the weights are on the meta device
            if (kind := rope["rope_type"]) == "default":
                exponents = torch.arange(0, self.rotated, 2, dtype=torch.float) / self.rotated
                frequencies = 1.0 / rope["rope_theta"] ** exponents
            else:
                frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](layer)
            if kind == "longrope":
                self.longer_from = rope["original_max_position_embeddings"]
                long, _ = ROPE_INIT_FUNCTIONS[kind](layer, seq_len=self.longer_from + 1)
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)
        self.register_buffer("long_inverse_frequencies", long, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [N] or [..., N] -> cos and sin [..., N, 1, r], see decoder.Rotation."""
        frequencies = self.inverse_frequencies
        if self.long_inverse_frequencies is not None:
            is_long = positions[..., None] >= self.longer_from  # [..., N, 1]
            frequencies = torch.where(is_long, self.long_inverse_frequencies, frequencies)
        angles = positions[..., None] * frequencies  # [..., N, r/2]
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        cos = torch.cat([cos, cos], -1)[..., None, :].to(dtype)
        return cos, torch.cat([-sin, sin], -1)[..., None, :].to(dtype)
