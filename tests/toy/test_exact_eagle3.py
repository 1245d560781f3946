"""The EAGLE-3 drafter over tables that play the target and the head: the text is distributed as the target's
own, and the head is given true features wherever the text stands."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specdemo.drafters.eagle3.drafter import Eagle3Drafter
from specdemo.engine.sampling import Sampler, draw
from specdemo.engine.tree import tree_of
from specdemo.events import Round
from specdemo.runtime.steps import EagerSteps
from tests import oracle
from tests.oracle import CPU, TableLM, decoding, random_table
from tests.toy.test_exact_table import BROKEN, FEW, PLAIN, RUNS, SAMPLERS, SOUND, TARGET, TOKENS, p_of

WIDE = 0.6 * random_table(1) + random_table(2)
DRAFTABLE = torch.tensor([True, True, True, False, True])  # the head's own vocabulary
PROMPT = [2, 0, 1]


class TableFeatures(dict):
    """By position. Their buffers are never replaced."""

    buffer_epoch = 0


class TableTarget(TableLM):
    """Its feature at a position is the token there."""

    def forward(self, ids, start, branches=None):
        self.features |= {start.item() + i: token_id for i, token_id in enumerate(ids.tolist())}
        return super().forward(ids, start, branches)

    def keep(self, start, kept):
        self.features |= {start + to: self.features[start + at] for to, at in enumerate(kept)}
        super().keep(start, kept)


class TableHead:
    """Says what its table has for the token before and the token: y is both, and the logits are of the table.
    It knows the text, so a feature of another position is noticed."""

    device, context, drafts_itself = CPU, 1000, False
    kv_length = buffer_epoch = 0

    def __init__(self, features, text):
        self.reads = features
        self.text = text

    def grow(self, length):
        self.reserved = length

    def prefill(self, ids, start, end, is_over):
        if end > start:
            self.grow(end)
            self.begin(torch.tensor(ids[start + 1 : end + 1]), torch.tensor(start))

    def begin(self, tokens, start):
        start = start.item()
        assert tokens.tolist() == self.text[start + 1 : start + 1 + len(tokens)]
        before = [self.reads[start + i] for i in range(len(tokens))]
        assert before == self.text[start : start + len(tokens)]
        assert start + len(tokens) <= self.reserved
        self.next = start + len(tokens)
        return self.predict(torch.tensor([[before[-1], tokens[-1].item()]]))

    def go_on(self, tokens, g, start, branches=None):
        assert start.item() == self.next and self.next + len(tokens) <= self.reserved
        self.next += len(tokens)
        return self.predict(torch.stack([g[:, 1], tokens], 1))

    def predict(self, y):
        logits = WIDE[y[:, 0], y[:, 1]]
        return y, logits.masked_fill(~DRAFTABLE, -torch.inf)


class ForgetsItsVocabulary(Sampler):
    """Draws from the head's own vocabulary, but says that it drew from all tokens."""

    def sample(self, logits, u, settings, seen=None):
        probs, exact = self.shape(logits, settings)
        wide = logits.masked_fill(~DRAFTABLE, logits.amax().item())
        return draw(probs, u), self.shape(wide, settings)[0], exact


def events_of(params, sampler):
    """One run over a target and a head, which knows its text as it grows."""
    text, target = list(PROMPT), TableTarget(TARGET)
    tree = tree_of(params)
    gamma = params.gamma if tree is None else tree.size
    head = TableHead(TableFeatures(), text)
    drafter = Eagle3Drafter(head, target, sampler(params), EagerSteps(), gamma, tree=tree)
    for event in decoding(target, drafter, params, PROMPT):
        if isinstance(event, Round):
            text += event.emitted
            assert all(DRAFTABLE[token.id] for token in event.draft)
        yield event


def exactness(events_of, params, runs, sampler=Sampler, wanted=()):
    """The p-value of so many runs. wanted: fates that must be common in them, or they show little."""
    fates = Counter()
    p = oracle.exactness(
        lambda _, seed: events_of(replace(params, seed=seed), sampler),
        p_of(params),
        [PROMPT],
        TOKENS,
        runs,
        fates=fates,
    )
    assert all(fates[fate] > runs / 20 for fate in wanted), fates
    return p


@pytest.mark.parametrize(
    "params", [SAMPLERS["top-p"], replace(PLAIN, tree=(2, 2, 1)), replace(PLAIN, tree="auto")]
)
def test_the_text_has_the_targets_distribution(params):
    wanted = ("accepted", "rejected", "discarded", "resampled", "bonus")
    wanted = tuple(fate for fate in wanted if params.tree != "auto" or fate != "bonus")
    assert exactness(events_of, params, RUNS, wanted=wanted) > SOUND


def test_a_head_that_forgets_its_vocabulary_is_noticed():
    assert exactness(events_of, PLAIN, FEW, ForgetsItsVocabulary) < BROKEN
