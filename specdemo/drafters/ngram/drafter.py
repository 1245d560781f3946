"""Drafts without a model, from the n-grams of the text itself, which are counted."""

from collections import defaultdict
from heapq import nlargest

import torch

from specdemo.drafters.base import Materials, Way, regular
from specdemo.engine.draft import Draft, Drafter
from specdemo.engine.tree import Tree, listed_draft


class NgramDrafter(Drafter):
    """Ou et al. 2024, "Lossless Acceleration of Large Language Models via Adaptive N-gram Parallel Decoding".
    Counts what follows each context of up to `longest` tokens and drafts the likeliest, token by token; of a
    tree several, the likeliest first.

    Several levels: contexts of every length are stored and the longest known one decides. One level: only
    contexts of exactly `longest` tokens. Each token of the text so far counts once. Top-k fill: at every
    verified position the target's likeliest tokens are added too, weighted by their probability, so one
    forward teaches several continuations."""

    wants_top = 5

    def __init__(
        self,
        longest: int,
        several_levels: bool,
        vocab_size: int,
        device: torch.device,
        tree: Tree | None = None,
    ):
        self.longest = longest
        self.lengths = range(longest, 0, -1) if several_levels else (longest,)
        self.vocab_size = vocab_size
        self.device = device
        self.tree = tree
        self.counted = 1  # tokens of the text that are in the store
        self.weights: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        for here in range(self.counted, len(ids)):
            self._add(ids[max(0, here - self.longest) : here], ids[here], 1.0)
        self.counted = len(ids)
        text = ids[-self.longest :]

        def following(path: list[int], count: int) -> list[int]:
            found = self._following(text + path)
            return nlargest(count, found, key=found.__getitem__)

        return listed_draft(following, self.tree, k, self.vocab_size, self.device)

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        text = ids[-self.longest :]
        for i, tokens in enumerate(likely):
            for token_id, p in tokens:
                self._add(text + draft[:i], token_id, p)

    def _following(self, text: list[int]) -> dict[int, float]:
        for n in self.lengths:
            if n <= len(text) and (following := self.weights.get(tuple(text[-n:]))):
                return following
        return {}

    def _add(self, text: list[int], token_id: int, weight: float) -> None:
        for n in self.lengths:
            if n <= len(text):
                self.weights[tuple(text[-n:])][token_id] += weight


class NgramWay(Way):
    def __init__(self, several_levels: bool):
        self.several_levels = several_levels

    def build(self, given: Materials) -> NgramDrafter:
        return NgramDrafter(
            given.params.ngram, self.several_levels, *given.of_target, tree=regular(given.tree)
        )
