"""A P-EAGLE head: an EAGLE-3 head that was trained to draft in parallel (speculators' `peagle`). Where the
token before a place is not known yet, it reads a mask token, and in place of the target's hidden states one
vector that was learned (`mask_hidden`)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from specdemo.drafters.eagle3.head import CachedEagle3, Eagle3Config, Eagle3Head


@dataclass(frozen=True, kw_only=True)
class PEagleConfig(Eagle3Config):
    mask_token_id: int


class PEagleHead(Eagle3Head):
    """A P-EAGLE head, see `DraftHead`."""

    config: PEagleConfig
    first_position: ClassVar[int] = 0

    def __init__(self, config: PEagleConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.mask_hidden = Parameter(torch.zeros(1, 1, config.features * config.feature_size, dtype=dtype))

    @property
    def kind(self) -> str:
        return "peagle"

    def cached(self, target: PreTrainedModel) -> "CachedPEagle":
        return CachedPEagle(self, target)

    def compiled(self, target: PreTrainedModel) -> "CachedPEagle":
        """Compiled code begins with the target's hidden states in every row or in none, so there is none for
        masks."""
        return self.cached(target)


class CachedPEagle(CachedEagle3):
    """A P-EAGLE head with its cache."""

    model: PEagleHead

    def block(self, tokens: Tensor, start: Tensor, count: int) -> Tensor:
        """tokens [N], with the target's true features before them, in the rows start [], start + 1, ..., and
        a mask in each of count - 1 rows after them -> the logits [count, V] of the tokens after the last
        one."""
        model, masks = self.model, count - 1
        true = self.true_features(start + torch.arange(len(tokens), device=self.device))  # [N, A * T]
        hidden = torch.cat([true, model.mask_hidden[0].expand(masks, -1)])
        tokens = torch.cat([tokens, tokens.new_full((masks,), model.config.mask_token_id)])
        y = self.rows(tokens, model.features(hidden), start)  # [N + count - 1, H]
        return self.predict(y[-count:])[1]
