"""Drafts without a model, from a tree of what has followed what (Oliaro et al. 2024, "SuffixDecoding: Extreme
Speculative Decoding for Emerging AI Applications"; `suffix` in vLLM)."""

from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest

import torch

from specdemo.drafters.base import Materials, Way, regular
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter
from specdemo.engine.tree import Tree, listed_draft

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

    def matched(self, k: int) -> int:
        """How many of the text's last tokens a draft of at most k follows; 0: nothing is known. Each end of
        the text gives a draft: the token that has come most often after it, and so on. The draft is taken
        whose tokens have the largest sum of shares."""
        best, most = 0, 0.0
        for matched, node in enumerate(self.ends, start=1):
            share, score = 1.0, 0.0
            for _ in range(min(k, LONGER_THAN_MATCH * matched)):
                likeliest = _following(node, share, 1)
                if not likeliest:
                    break
                share, node = likeliest[0][1:]
                score += share
            if score >= most and score:  # of two that are as good the one that has matched more
                best, most = matched, score
        return best

    def following(self, matched: int, path: list[int], count: int) -> list[int]:
        """The tokens that have come most often after so many last tokens of the text, and the path."""
        if len(path) >= LONGER_THAN_MATCH * matched:
            return []
        node, share = self.ends[matched - 1], 1.0
        for token in path:
            share *= node.after[token].count / _total(node)
            node = node.after[token]
        return [token for token, _, _ in _following(node, share, count)]


def _total(node: Node) -> int:
    return sum(each.count for each in node.after.values())


def _following(node: Node, share: float, count: int) -> list[tuple[int, float, Node]]:
    """The tokens that have come most often after a sequence: each with its share, which is that of the whole
    draft up to it, and what it makes of the sequence. share: that of the sequence."""
    total = _total(node)
    found = nlargest(count, node.after.items(), key=lambda item: item[1].count)
    shares = ((token, share * (after.count / total), after) for token, after in found)
    return [one for one in shares if one[1] >= LEAST_SHARE]


class SuffixDrafter(Drafter):
    """Drafts from the text's SuffixTree; q is one-hot at each token.

    It knows this text alone. With texts of earlier runs a seed that comes again would meet tokens that were
    drawn with the same uniform numbers, and then the text would not have the target's distribution."""

    def __init__(self, vocab_size: int, device: torch.device, tree: Tree | None = None):
        self.store = SuffixTree()
        self.tree = tree  # what is drafted; None: a chain
        self.vocab_size = vocab_size
        self.device = device
        self.read = 0  # tokens of the text that are in the store

    def start(self, ids: list[int]) -> None:
        for token in ids[self.read :]:
            self.store.add(token)
        self.read = len(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        self.start(ids)
        matched = self.store.matched(k if self.tree is None else self.tree.first(k).depth)
        following = partial(self.store.following, matched)
        return listed_draft(following, self.tree, k, self.vocab_size, self.device)


class SuffixWay(Way):
    def build(self, given: Materials) -> SuffixDrafter:
        return SuffixDrafter(*given.of_target, tree=regular(given.tree))
