"""The repetition penalty of a model's generation config is a part of its distribution."""

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.engine.drafters.other_tokenizer import SharedTokensDrafter
from specdemo.engine.sampling import Sampler
from specdemo.runtime.graphs import EagerSteps
from specdemo.runtime.lm import CachedLM
from specdemo.ui.view.settings import FIRST, params_from_controls, values_of
from tests.heads import save_head, tiny_head
from tests.pure.test_detokenize import byte_level
from tests.tiny import greedy, noisy, tiny, tokenizer

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
NEW = 50
CPU = torch.device("cpu")


def penalised(penalty=1.3, **shape):
    target = tiny("llama", **shape)
    target.generation_config.repetition_penalty = penalty
    return target


@pytest.mark.parametrize("draft_with", ["model", "lookup", "ngram", "early-exit", "none"])
def test_greedy_text_is_that_of_generate(draft_with):
    target = penalised()
    pair = load_pair(target=target, drafter=noisy(target))
    params = Params(temperature=0, max_new_tokens=NEW, draft_with=draft_with, exit_layer=1, gamma=3)
    trace = generate(pair, PROMPT, params)
    expected = greedy(target, PROMPT, NEW)
    assert trace.output_ids == expected and trace.params.repetition_penalty == 1.3
    assert not any("repetition_penalty" in limit for limit in pair.limits)
    without = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW, repetition_penalty=1))
    assert without.output_ids != expected and without.params.repetition_penalty == 1


def test_a_drafter_is_penalised_as_the_target_is():
    """So with the target as its own drafter all drafts are accepted, greedily and sampled."""
    target = penalised(2.0)
    pair = load_pair(target=target, drafter=target)
    for temperature in (0, 1):
        params = Params(temperature=temperature, top_p=1, seed=2, max_new_tokens=NEW, gamma=4)
        stats = generate(pair, PROMPT, params, measure=False).stats
        assert stats.drafted and stats.accepted == stats.drafted


def test_a_head_drafts_with_it(tmp_path):
    target = penalised()
    head = tiny_head(target, draft_ids=list(range(0, target.config.vocab_size, 2)))
    pair = load_pair(target=target, drafter=save_head(head, tmp_path))
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW))
    assert trace.stats.drafted and trace.output_ids == greedy(target, PROMPT, NEW)


def test_recorded_probabilities_are_of_the_penalised_logits_and_raw_ones_of_the_models():
    target = penalised(1.7)
    trace = generate(
        load_pair(target=target, drafter=noisy(target)),
        PROMPT,
        Params(temperature=0.9, top_p=1, seed=1, max_new_tokens=20, alternatives=3),
        measure=False,
    )
    ids = list(PROMPT)
    for one in trace.rounds:
        text = ids + [token.id for token in one.draft]
        with torch.no_grad():
            logits = target(torch.tensor([text])).logits[0, len(ids) - 1 :]
        for row, token in enumerate(one.draft):
            own, seen = logits[row].clone(), sorted(set(text[: len(ids) + row]))
            own[seen] = torch.where(own[seen] < 0, own[seen] * 1.7, own[seen] / 1.7)
            told = (token.p, token.raw_p)
            shaped, raw = ((each.softmax(-1))[token.id].item() for each in (own / 0.9, logits[row]))
            assert told == pytest.approx((shaped, raw), rel=1e-3, abs=1e-6)
        ids += one.emitted


def test_the_page_holds_it():
    assert params_from_controls(FIRST).repetition_penalty is None
    for given in (None, 1.0, 1.25):
        values = values_of(Params(repetition_penalty=given))
        assert params_from_controls(values).repetition_penalty == given
    for wrong in ("much", "0", "-1", "nan", "11"):
        with pytest.raises(ValueError, match="^repetition_penalty must be a number above 0 to 10"):
            params_from_controls(FIRST | {"repetition_penalty": wrong})


def test_a_drafter_with_another_tokenizer_drafts_with_it():
    target, drafter = penalised(vocab_size=300), tiny("gpt2", vocab_size=400)
    pair = load_pair(
        target=target, drafter=drafter, tokenizer={"target": tokenizer(), "drafter": byte_level(400)}
    )
    assert pair.other_tokenizer is not None
    trace = generate(pair, "the cat sat on the mat", Params(temperature=0, max_new_tokens=20))
    assert trace.stats.drafted
    assert trace.output_ids == greedy(target, list(trace.prompt_ids), 20)[: len(trace.output_ids)]
    # Sampled, it drafts by the target's ids: those that its text has, too.
    shared = pair.other_tokenizer.shared
    text = [own for _, own in shared[3:9]]
    lm, sampler = CachedLM(drafter), Sampler(Params(repetition_penalty=1.3))
    drafts = SharedTokensDrafter(pair.own_ids(CPU), lm, 100, sampler, 300, CPU, EagerSteps(), 3)
    seen = drafts.seen(text).nonzero()[:, 0].tolist()
    assert seen == sorted(ours for ours, own in shared if own in text) and len(seen) >= 6
    sampled = Params(temperature=0.8, seed=1, max_new_tokens=20)
    assert generate(pair, "the cat sat on the mat", sampled, measure=False).stats.drafted
