"""Drafts without a model, from the text itself: what followed the same tokens before. Also two methods that
are joined by "+": copies cost nothing where the text repeats itself, and the second drafts where it does
not."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest

from specdemo.drafters.base import Materials
from specdemo.engine.draft import LONGEST_DRAFT, Draft, Drafter, one_hot_draft
from specdemo.engine.tree import Tree, listed_draft
from specdemo.runtime.states import States


class LookupDrafter(Drafter):
    """Saxena 2023, "Prompt Lookup Decoding". Finds the longest run of at most `longest` last tokens that
    occurred before, takes its latest occurrence, and drafts what followed it. A copy may run into itself, so
    that a repeating text is drafted in full."""

    def __init__(self, given: Materials):
        self.longest = given.params.ngram
        self.vocab_size, self.device = given.of_target
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


class NgramDrafter(Drafter):
    """Ou et al. 2024, "Lossless Acceleration of Large Language Models via Adaptive N-gram Parallel Decoding".
    Counts what follows each context of up to `longest` tokens and drafts the likeliest, token by token; of a
    tree several, the likeliest first.

    Several levels: contexts of every length are stored and the longest known one decides. One level: only
    contexts of exactly `longest` tokens. Each token of the text so far counts once. Top-k fill: at every
    verified position the target's likeliest tokens are added too, weighted by their probability, so one
    forward teaches several continuations."""

    wants_top = 5

    def __init__(self, given: Materials, several_levels: bool = True):
        self.longest = given.params.ngram
        self.lengths = range(self.longest, 0, -1) if several_levels else (self.longest,)
        self.vocab_size, self.device = given.of_target
        self.tree: Tree | None = given.tree  # `Pair.check` refuses one that grows
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


DEPTH = 2 * LONGEST_DRAFT  # tokens of the longest path: as many can be matched as are drafted
# vLLM's defaults. A draft ends where the product of its tokens' shares is smaller, and has at most so many
# times the tokens that were matched.
LEAST_SHARE, LONGER_THAN_MATCH = 0.1, 1


@dataclass(slots=True)
class Node:
    """A sequence of tokens: how often it has come, and what has followed it."""

    count: int = 0
    after: dict[int, "Node"] = field(default_factory=dict)


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
    """Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications";
    `suffix` in vLLM. Counts all sequences of at most DEPTH tokens in the text; q is one-hot at each token.

    It knows this text alone. With texts of earlier runs a seed that comes again would meet tokens that were
    drawn with the same uniform numbers, and then the text would not have the target's distribution."""

    def __init__(self, given: Materials):
        self.vocab_size, self.device = given.of_target
        self.tree: Tree | None = given.tree  # `Pair.check` refuses one that grows
        self.root = Node()
        self.ends: list[Node] = []  # the end of the text: its last token, its last two, and so on
        self.read = 0  # tokens of the text that are counted

    def start(self, ids: list[int]) -> None:
        for token in ids[self.read :]:
            ends = [self.root, *self.ends[: DEPTH - 1]]
            self.ends = []
            for node in ends:
                if (following := node.after.get(token)) is None:
                    following = node.after[token] = Node()
                following.count += 1
                self.ends.append(following)
        self.read = len(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        self.start(ids)
        matched = self._matched(k if self.tree is None else self.tree.first(k).depth)
        following = partial(self._after, matched)
        return listed_draft(following, self.tree, k, self.vocab_size, self.device)

    def _matched(self, k: int) -> int:
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

    def _after(self, matched: int, path: list[int], count: int) -> list[int]:
        """The tokens that have come most often after so many last tokens of the text, and the path."""
        if len(path) >= LONGER_THAN_MATCH * matched:
            return []
        node, share = self.ends[matched - 1], 1.0
        for token in path:
            share *= node.after[token].count / _total(node)
            node = node.after[token]
        return [token for token, _, _ in _following(node, share, count)]


@dataclass(eq=False)
class JoinedDrafter(Drafter):
    """Two drafters, of which the first that has a draft gives it. Which of the two drafts depends on the text
    alone, and each draft is judged by the q that it was drawn from: so speculation stays lossless."""

    first: Drafter
    second: Drafter

    def __post_init__(self) -> None:
        self.wants_top = max(self.first.wants_top, self.second.wants_top)

    @property
    def states(self) -> States | None:
        return self.second.states

    def start(self, ids: list[int]) -> None:
        self.first.start(ids)
        self.second.start(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        draft = self.first.propose(ids, k, u)
        if draft.k == 0:
            return self.second.propose(ids, k, u)
        self.second.skip(ids)
        return draft

    def skip(self, ids: list[int]) -> None:
        self.second.skip(ids)  # the first reads the text alone

    def learn(self, ids: list[int], draft: list[int], likely: list[list[tuple[int, float]]]) -> None:
        for one in (self.first, self.second):
            if one.wants_top:
                one.learn(ids, draft, [row[: one.wants_top] for row in likely])
