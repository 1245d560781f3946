"""A drafter between noise and the target itself: of what it is mixed, and that the text is the target's."""

from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate
from specdemo.errors import PairError
from specdemo.trials.alterations import OWN, STOPS, shares_at, world
from specdemo.trials.runs import TINY_PROMPT, tiny_pair
from tests.heads import tiny_head
from tests.runners import with_head
from tests.tiny import tiny

HOW = Params(temperature=0.8, top_p=1.0, gamma=3, max_new_tokens=30, seed=3, alternatives=0)
GREEDY = replace(HOW, temperature=0.0)


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


def test_the_stops_go_from_noise_over_the_drafter_to_the_target():
    assert shares_at(0) == (1, 0, 0) and shares_at(OWN) == (0, 1, 0) and shares_at(STOPS - 1) == (0, 0, 1)
    assert shares_at(1) == (0.75, 0.25, 0) and shares_at(STOPS - 2) == (0, 0.25, 0.75)


@pytest.mark.parametrize("stop", [0, 2, OWN, 6, STOPS - 1])
@torch.no_grad()
def test_q_is_what_the_token_was_drawn_from(pair, stop):
    """By transformers' own forwards, without any cache."""
    trace, text = world(pair, list(TINY_PROMPT), HOW, stop), list(TINY_PROMPT)
    noise, own, target = shares_at(stop)
    for one in trace.rounds:
        ids = torch.tensor([text + [token.id for token in one.draft]])
        p, q = (
            (model(ids).logits[0][len(text) - 1 :].double() / HOW.temperature).softmax(-1)
            for model in (pair.target, pair.drafter)
        )
        mixture = noise / p.shape[-1] + own * q + target * p
        for row, token in enumerate(one.draft):
            assert token.q == pytest.approx(mixture[row, token.id].item(), rel=1e-4)
            assert token.p == pytest.approx(p[row, token.id].item(), rel=1e-4)
        text += one.emitted
    assert text[len(TINY_PROMPT) :] == trace.output_ids and trace.finish == "length"


def test_greedy_text_stays_and_the_better_drafter_has_more_accepted(pair):
    plain = generate(pair, list(TINY_PROMPT), replace(GREEDY, draft_with="none"), measure=False).output_ids
    traces = [world(pair, list(TINY_PROMPT), GREEDY, stop) for stop in range(STOPS)]
    assert all(trace.output_ids == plain for trace in traces)
    assert all(token.q == 1 for trace in traces for one in trace.rounds for token in one.draft)
    rates = [trace.stats.acceptance_rate for trace in traces]
    assert rates[0] < rates[OWN] < rates[-1] == 1
    assert traces[0].rounds != traces[1].rounds


def test_a_head_cannot_be_mixed():
    target = tiny(vocab_size=12, seed=2)
    with pytest.raises(PairError, match="smaller model"):
        world(with_head(target, tiny_head(target)), [3, 1, 4, 1, 5], HOW, 0)
