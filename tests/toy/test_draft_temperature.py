"""A drafter with a temperature of its own: q is what it was drawn from, and the text has the target's
distribution."""

from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair
from tests.heads import tiny_head
from tests.runners import with_head
from tests.tiny import tiny

PROMPT = [3, 1, 4, 1, 5]
HOW = Params(temperature=0.9, top_k=6, top_p=1.0, gamma=3, max_new_tokens=60, seed=1, alternatives=3)


def shaped(logits, temperature):
    """[N, V], among the 6 likeliest."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    logits = logits.double() / temperature
    return logits.masked_fill(logits < logits.topk(6).values[:, -1:], -torch.inf).softmax(-1)


@pytest.mark.parametrize(("temperature", "own"), [(0.9, 0.0), (0.9, 1.7), (0.0, 0.4)])
@torch.no_grad()
def test_p_is_of_the_target_s_temperature_and_q_of_the_drafter_s(temperature, own):
    target, drafter = tiny(vocab_size=12, seed=2), tiny(vocab_size=12, seed=3)
    params = replace(HOW, temperature=temperature, draft_temperature=own)
    trace = generate(load_pair(target=target, drafter=drafter), PROMPT, params, measure=False)
    text, judged = list(PROMPT), 0
    for one in trace.rounds:
        drafted = [token.id for token in one.draft]
        ids = torch.tensor([text + drafted])
        p, q = (
            shaped(model(ids).logits[0][len(text) - 1 :], heat)
            for model, heat in ((target, temperature), (drafter, own))
        )
        for place, token in enumerate(one.draft):
            assert token.q == pytest.approx(q[place, token.id].item(), abs=1e-5)
            assert token.p == pytest.approx(p[place, token.id].item(), abs=1e-5)
            judged += 1
        text += one.emitted
    assert judged > 20 and trace.params.draft_temperature == own
    if temperature == 0:
        assert (
            trace.output_ids
            == generate(
                load_pair(target=target), PROMPT, replace(params, draft_with="none"), measure=False
            ).output_ids
        )


def test_a_head_drafts_its_likeliest_tokens():
    target = tiny(vocab_size=12, seed=2)
    trace = generate(with_head(target, tiny_head(target)), PROMPT, replace(HOW, draft_temperature=0.0))
    assert trace.stats.drafted and {token.q for one in trace.rounds for token in one.draft} == {1.0}
