"""Drafts without a model, from a tree of what has followed what (Oliaro et al. 2024, "SuffixDecoding: Extreme
Speculative Decoding for Emerging AI Applications"; `suffix` in vLLM)."""

from dataclasses import dataclass, field

import torch

from specdemo.drafters.base import Materials, Way
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, one_hot_draft

DEPTH = 2 * LONGEST_DRAFT  # tokens of the longest path: as many can be matched as are drafted
# vLLM's defaults. A draft ends where the product of its tokens' shares is smaller, and has at most so many
# times the tokens that were matched.
LEAST_SHARE, LONGER_THAN_MATCH = 0.1, 1


@dataclass(slots=True)
class Node:
    """A sequence of tokens: how often it has come, and what has followed it."""

    count: int = 0
    after: dict[int, "Node"] = field(default_factory=dict)


class SuffixTree:
    """All sequences of at most DEPTH tokens in a text, counted."""

    def __init__(self) -> None:
        self.root = Node()
        self.ends: list[Node] = []  # the end of the text: its last token, its last two, and so on

    def add(self, token: int) -> None:
        ends = [self.root, *self.ends[: DEPTH - 1]]
        self.ends = []
        for node in ends:
            if (following := node.after.get(token)) is None:
                following = node.after[token] = Node()
            following.count += 1
            self.ends.append(following)

    def draft(self, k: int) -> list[int]:
        """At most k tokens after the text. Each end of it gives a draft: the token that has come most often
        after it, and so on. The draft is taken whose tokens have the largest sum of shares; the share of a
        token is that of the whole draft up to it."""
        best, most = [], 0.0
        for matched, node in enumerate(self.ends, start=1):
            draft, share, score = [], 1.0, 0.0
            while len(draft) < min(k, LONGER_THAN_MATCH * matched) and node.after:
                token, following = max(node.after.items(), key=lambda item: item[1].count)
                share *= following.count / sum(each.count for each in node.after.values())
                if share < LEAST_SHARE:
                    break
                draft.append(token)
                score += share
                node = following
            if score >= most:  # of two that are as good the one that has matched more
                best, most = draft, score
        return best


class SuffixDrafter(Drafter):
    """Drafts from the text's SuffixTree; q is one-hot at each token.

    It knows this text alone. With texts of earlier runs a seed that comes again would meet tokens that were
    drawn with the same uniform numbers, and then the text would not have the target's distribution."""

    def __init__(self, vocab_size: int, device: torch.device):
        self.tree = SuffixTree()
        self.vocab_size = vocab_size
        self.device = device
        self.read = 0  # tokens of the text that are in the tree

    def start(self, ids: list[int]) -> None:
        for token in ids[self.read :]:
            self.tree.add(token)
        self.read = len(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        self.start(ids)
        return one_hot_draft(self.tree.draft(k), self.vocab_size, self.device)


class SuffixWay(Way):
    def build(self, given: Materials) -> SuffixDrafter:
        return SuffixDrafter(*given.of_target)
