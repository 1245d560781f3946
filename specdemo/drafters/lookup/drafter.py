"""Drafts without a model, from the text itself: what followed the same tokens before."""

import torch

from specdemo.drafters.base import Materials, Way
from specdemo.engine.draft import Draft, Drafter, one_hot_draft


class LookupDrafter(Drafter):
    """Saxena 2023, "Prompt Lookup Decoding". Finds the longest run of at most `longest` last tokens that
    occurred before, takes its latest occurrence, and drafts what followed it. A copy may run into itself, so
    that a repeating text is drafted in full."""

    def __init__(self, longest: int, vocab_size: int, device: torch.device):
        self.longest = longest
        self.vocab_size = vocab_size
        self.device = device
        self.latest: dict[tuple[int, ...], int] = {}  # run of tokens -> index of the token that followed it
        self.indexed = 0  # tokens whose preceding runs are in the dict

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        for here in range(self.indexed, len(ids)):
            for n in range(1, min(self.longest, here) + 1):
                self.latest[tuple(ids[here - n : here])] = here
        self.indexed = len(ids)
        for n in range(min(self.longest, len(ids)), 0, -1):
            following = self.latest.get(tuple(ids[-n:]))
            if following is not None:
                text = list(ids)
                for i in range(k):
                    text.append(text[following + i])
                return one_hot_draft(text[len(ids) :], self.vocab_size, self.device)
        return one_hot_draft([], self.vocab_size, self.device)


class LookupWay(Way):
    def build(self, given: Materials) -> LookupDrafter:
        return LookupDrafter(given.params.ngram, *given.of_target)
