"""The MTP drafter over tables that play the target and its layers: the text is distributed as the target's
own, and each layer is given true hidden states wherever the text stands, and otherwise what the layer before
it has made."""

from dataclasses import replace

import pytest
import torch

from specdemo.drafters.mtp.drafter import MtpDrafter
from specdemo.engine.sampling import Sampler, draw
from specdemo.events import Round
from specdemo.runtime.steps import EagerSteps
from tests.oracle import CPU, decoding, random_table
from tests.toy.test_exact_eagle3 import PROMPT, TableFeatures, TableTarget, exactness
from tests.toy.test_exact_table import BROKEN, FEW, PLAIN, RUNS, SAMPLERS, SOUND, TARGET

OF_LAYERS = [0.6 * random_table(seed) + random_table(seed + 1) for seed in (1, 3)]


class TableLayers:
    """A layer says what its table has for the token before and the token. What it returns is both, and which
    layer it is. It knows the text, so a hidden state of another position is noticed."""

    device, context, count = CPU, 1000, 2

    def __init__(self, features, text):
        self.reads = features
        self.text = text
        self.held = [{}, {}]  # of each layer: the token that was written to a slot
        self.drafted = {}  # the latest token of each position
        self.deepest = 0  # turns of a draft

    def grow(self, slots):
        self.reserved = slots

    def hidden(self, start, end):
        before = [self.reads[at] for at in range(start, end)]
        assert before == self.text[start:end]
        return torch.tensor([[0, token, -1] for token in before]).reshape(-1, 3)

    def forward(self, layer, tokens, hidden, slot, position):
        n, held = len(tokens), self.held[layer]
        assert len(hidden) == n and slot + n <= self.reserved
        known = self.text[position : position + n]
        assert tokens[: len(known)].tolist() == known
        turn = position - slot - 1 - layer  # 0, unless the layers are used again
        assert turn >= 0 and turn % (self.count - 1) == 0
        self.deepest = max(self.deepest, turn)
        assert (hidden[:, 2] == (layer - 1 if layer or not turn else self.count - 1)).all()
        held |= {slot + i: token for i, token in enumerate(tokens.tolist())}
        # What it attends to: the slots of the text, without a gap, and then those of this draft.
        assert sorted(held)[: slot + n] == list(range(slot + n))
        ends = min(slot, len(self.text) - 1 - layer)
        assert [held[at] for at in range(ends)] == self.text[1 + layer : 1 + layer + ends]
        # What came before each token, be it the target's or of another layer, is of the token before it.
        before = self.drafted | dict(enumerate(self.text))
        assert hidden[:, 1].tolist() == [before[position - 1 + i] for i in range(n)]
        self.drafted |= {position + i: token for i, token in enumerate(tokens.tolist())}
        return torch.stack([hidden[:, 1], tokens, torch.full((n,), layer)], 1)

    def predict(self, hidden):
        return torch.stack([OF_LAYERS[layer][before, token] for before, token, layer in hidden.tolist()])

    def prefill(self, ids, start, end, used, is_over):
        self.grow(end)
        hidden = self.hidden(start, end)
        for layer in range(used):
            position = start + 1 + layer
            hidden = self.forward(
                layer, torch.tensor(ids[position : end + 1 + layer]), hidden, start, position
            )


class TellsAnother(Sampler):
    """Draws from another distribution than it tells."""

    def sample(self, logits, u, settings, seen=None):
        _, probs, exact = super().sample(logits, u, settings, seen)
        return draw(probs.roll(1, -1), u), probs, exact


def events_of(params, sampler):
    """One run over a target and its layers, which know its text as it grows."""
    text, target = list(PROMPT), TableTarget(TARGET)
    layers = TableLayers(TableFeatures(), text)
    drafter = MtpDrafter(layers, target, sampler(params), EagerSteps(), params.gamma)
    for event in decoding(target, drafter, params, PROMPT):
        if isinstance(event, Round):
            text += event.emitted
        yield event
    assert layers.deepest == (params.gamma - 1) // layers.count


@pytest.mark.parametrize(("sampler", "gamma"), [("top-p", 1), ("multinomial", 2), ("top-k with top-p", 5)])
def test_the_text_has_the_targets_distribution(sampler, gamma):
    """With drafts that use one of two layers, both, and each more than once."""
    params = replace(SAMPLERS[sampler], gamma=gamma)
    assert exactness(events_of, params, RUNS // 2, wanted=("accepted", "rejected", "resampled")) > SOUND


def test_a_draft_from_another_distribution_is_noticed():
    assert exactness(events_of, PLAIN, FEW, TellsAnother) < BROKEN
