"""A draft that somebody else has made: the words that a visitor of the page guesses. No drafting method of
Params chooses it; see `one_round` in session.py."""

import torch

from specdemo.engine.draft import Draft, Drafter, one_hot_draft


class GivenDrafter(Drafter):
    """Drafts these tokens, in one round. q is one-hot at each of them, so by the speculative rule a token is
    accepted with probability p."""

    def __init__(self, ids: list[int], vocab_size: int, device: torch.device):
        self.ids = ids
        self.vocab_size = vocab_size
        self.device = device

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        return one_hot_draft(self.ids[:k], self.vocab_size, self.device)
