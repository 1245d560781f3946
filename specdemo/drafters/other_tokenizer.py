"""A model with another tokenizer drafts the tokens that both vocabularies have, by the target's ids (Timor et
al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies": their token-level intersection, TLI). q is its distribution over these, renormalised. That is
lossless however the drafter reads the text, because a draft is judged by the q that it was drawn from.

It reads the prompt as its own tokenizer does, and of what follows each token by itself."""

import torch
from torch import Tensor

from specdemo.drafters.base import Materials
from specdemo.drafters.model import ModelDrafter
from specdemo.engine.draft import Draft


class SharedTokensDrafter(ModelDrafter):
    """Drafts tokens that both vocabularies have, after a text in the drafter's ids. own_ids: [V] int64, on
    the drafter's device: the drafter's id of each of the target's tokens, -1 where it has none. A captured
    step reads it where it is."""

    other_ids = True
    follows_any = False

    def __init__(self, given: Materials):
        super().__init__(given)
        assert given.tokenizer is not None and given.other_tokenizer is not None, "they have been compared"
        self.tokenizer, self.other = given.tokenizer, given.other_tokenizer
        self.own_ids = self.other.own_ids(self.vocab_size, self.lm.device)
        self.ids: list[int] = []  # the text so far, in the target's ids
        self.own: list[int] = []  # the same in the drafter's

    def start(self, ids: list[int]) -> None:
        self.ids = list(ids)
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        self.own = self.other.read(str(self.tokenizer.decode(ids, **options)))
        super().start(self.own)

    def skip(self, ids: list[int]) -> None:
        self._read(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        self._read(ids)
        return super().propose(self.own, k if self.own else 0, u)

    def _read(self, ids: list[int]) -> None:
        """Takes the tokens that have come. Those that can have been drafted are in the drafter's cache, but
        for the last two, which a draft begins with."""
        new, at, shared = ids[len(self.ids) :], len(self.own), self.other.shared
        drafted = next((i for i, token_id in enumerate(new) if token_id not in shared), len(new))
        self.ids += new
        self.own += [own_id for token_id in new for own_id in self.other.own(token_id)]
        if self.lacks_from is None:
            self.lacks_from = min(at + drafted - 1, len(self.own) - 2)

    def seen(self, ids: list[int]) -> Tensor | None:
        return super().seen(self.ids)

    def in_targets_ids(self, logits: Tensor) -> Tensor:
        lacking = self.own_ids < 0
        return logits.index_select(1, self.own_ids.clamp(min=0)).masked_fill(lacking, -torch.inf)

    def in_own_ids(self, tokens: Tensor) -> Tensor:
        return self.own_ids.index_select(0, tokens).clamp(min=0)  # NaN can draw a token that it lacks
