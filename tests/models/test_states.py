"""Targets and drafters with recurrent layers, which keep a state in place of keys and values: it is put back
after rejected drafts, so that text and probabilities are those of the model's own forward without a cache."""

from functools import cache

import pytest
import torch
from transformers import logging

from specdemo import Params, generate, load_pair, session
from specdemo.drafters.table import BY_METHOD, cached_drafter
from specdemo.engine.draft import Drafter, one_hot_draft
from specdemo.engine.sampling import uniforms
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.probe import capture_blocker
from specdemo.runtime.runner import Runner
from specdemo.runtime.states import MOST_CARRIED, ROWS, States, tried_rows
from tests.sentences import refusal
from tests.small import PROMPT, cacheless, small_model
from tests.tiny import noisy, tiny

# One of each way of feeding: any number of rows, convolutions only, one row, and several.
by_kind = pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba", "nemotron_h"])
GREEDY = dict(temperature=0, alternatives=0)
WRONG = {  # at which place of the draft that begins at a position
    "never": lambda at: None,
    "always": lambda at: 0,
    "at random": lambda at: int(uniforms(5, at, 1).next * 6),
}


@cache
def model_of(name):
    logging.set_verbosity_error()
    return small_model(name)


def run(pair, **params):
    return generate(pair, PROMPT, Params(**params), measure=False)


def scripted(pair, monkeypatch, text, wrong_at, **params):
    """A run whose drafts are of a text."""
    drafter = Scripted(PROMPT + text, wrong_at, pair.vocab_size)
    monkeypatch.setattr(BY_METHOD["lookup"], "build", lambda _: drafter)
    return run(pair, draft_with="lookup", **GREEDY, **params)


class Scripted(Drafter):
    """Knows the text. `wrong_at` of a position: the place in the draft there that is wrong, if any is."""

    def __init__(self, text, wrong_at, vocab_size):
        self.text, self.wrong_at, self.vocab_size = text, wrong_at, vocab_size

    def propose(self, ids, k, u):
        draft = self.text[len(ids) : len(ids) + k]
        if (place := self.wrong_at(len(ids))) is not None and place < len(draft):
            draft[place] = (draft[place] + 1) % self.vocab_size
        return one_hot_draft(draft, self.vocab_size, torch.device("cpu"))


def places(trace, fate):
    """At which places of a draft a token had this fate."""
    return {place for one in trace.rounds for place, token in enumerate(one.draft) if token.fate == fate}


def check_own(model, trace):
    """By induction, each token is the likeliest by the model's own forward without a cache."""
    text = trace.output_ids
    assert cacheless(model, PROMPT + text)[len(PROMPT) - 1 : -1].argmax(-1).tolist() == text


@pytest.mark.slow
@by_kind
def test_greedy_text_is_the_models_own_wherever_drafts_are_rejected(name, monkeypatch):
    model = model_of(name)
    pair = load_pair(target=model)
    plain = run(pair, draft_with="none", max_new_tokens=24, **GREEDY)
    text = plain.output_ids
    check_own(model, plain)
    for wrong, gamma in (("never", 5), ("always", 5), ("at random", 5), ("at random", 1)):
        trace = scripted(pair, monkeypatch, text, WRONG[wrong], gamma=gamma, max_new_tokens=24)
        assert trace.output_ids == text, (wrong, gamma)
        rejected, accepted = places(trace, "rejected"), places(trace, "accepted")
        expected = {"never": (set(), set(range(gamma))), "always": ({0}, set())}
        if wrong in expected:
            assert (rejected, accepted) == expected[wrong]
        else:
            assert rejected == set(range(gamma))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_next", "nemotron_h"])
def test_as_target_and_as_drafter_its_probabilities_are_its_own(name):
    model = model_of(name)
    drafter = noisy(model, 0.2)
    params = dict(temperature=0.9, gamma=4, seed=3, max_new_tokens=30, alternatives=0)
    trace = run(load_pair(target=model, drafter=drafter), **params)
    assert len(places(trace, "rejected")) > 1 and places(trace, "accepted")
    ids = list(PROMPT)
    for one in trace.rounds:
        drafted = [token.id for token in one.draft]
        p, q = (cacheless(each, ids + drafted)[len(ids) - 1 :] for each in (model, drafter))  # [k+1, V]
        for place, token in enumerate(one.draft):
            told = (token.raw_p, token.raw_q)
            assert told == pytest.approx((p[place, token.id].item(), q[place, token.id].item()), abs=1e-4)
        ids += one.emitted
    both = run(load_pair(target=model, drafter=model), **params)
    assert not places(both, "rejected"), "it is its own drafter: p is q"


def test_it_drafts_for_a_target_without_states():
    """What a drafter is fed again is told, too."""
    target = tiny("llama")
    pair = load_pair(target=target, drafter=model_of("qwen3_5_text"))
    trace = run(pair, gamma=3, max_new_tokens=30, **GREEDY)
    check_own(target, trace)
    assert max(one.fed_again for one in trace.rounds[:-1]) > 1
    assert {one.target_forwards for one in trace.rounds} == {1}
    alone = run(load_pair(target=target), draft_with="none", max_new_tokens=3)
    assert {one.fed_again for one in alone.rounds} == {None}


def test_a_round_tells_what_the_target_was_fed_again_and_in_how_many_forwards(monkeypatch):
    pair, most = load_pair(target=model_of("qwen3_5_text")), MOST_CARRIED
    plain = run(pair, draft_with="none", max_new_tokens=40, **GREEDY)
    assert {one.fed_again for one in plain.rounds} == {0}
    assert plain.stats.target_forwards == len(plain.rounds) + 1
    trace = scripted(pair, monkeypatch, plain.output_ids, WRONG["always"], gamma=4, max_new_tokens=40)
    told = [(one.fed_again, one.target_forwards) for one in trace.rounds]
    assert told[: most + 3] == [*((n, 1) for n in range(most + 1)), (most + 1, 2), (1, 1)]
    assert trace.stats.target_forwards == 1 + sum(forwards for _, forwards in told)
    # Where only one row is fed at a time, each is a forward.
    model = model_of("mamba")
    trace = run(load_pair(target=model, drafter=model), gamma=3, max_new_tokens=21, **GREEDY)
    assert {one.target_forwards for one in trace.rounds[:-1]} == {4}
    assert {one.fed_again for one in trace.rounds} == {0}


PARTS = [(50, 55), (51, 52), (52, 54), (54, 90), (50, 51), (3, 9), (0, 1), (1, 117)]


@pytest.mark.parametrize("rows", ROWS)
def test_a_forward_begins_from_any_position_before(rows):
    """Positions up and down, further back than what is carried, and from the text's beginning."""
    lm = CachedLM(model_of("granitemoehybrid"))
    lm.states.rows = rows
    ids = torch.randint(0, 90, (120,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = lm.model(ids[None], use_cache=False).logits[0]
        lm.prefill(ids[:50])
        for start, end in PARTS:
            lm.reserve(start, end + 3)
            logits = lm.forward(ids[start:end], torch.tensor(start))
            assert (logits - expected[start:end]).abs().max() < 1e-3, (start, end)
            lm.forward(ids[:3], torch.tensor(end))  # a rejected draft


def test_the_next_run_begins_anew_also_after_a_run_in_inference_mode():
    model = model_of("qwen3_5_text")
    pair = load_pair(target=model, drafter=noisy(model, 0.2))
    params = Params(temperature=0, gamma=3, max_new_tokens=20)
    with torch.inference_mode():
        first = generate(pair, PROMPT, params).output_ids
    generate(pair, PROMPT[::-1], params)
    assert generate(pair, PROMPT, params).output_ids == first
    assert len(generate(pair, PROMPT[:1], params).output_ids) == 20


@pytest.mark.slow
def test_plain_rounds_follow_each_other_so_that_nothing_is_fed_again(monkeypatch):
    timed, own = [], session.plain_rounds

    def plain_rounds(*given):
        for one in own(*given):
            timed.append(one)
            yield one

    monkeypatch.setattr(session, "plain_rounds", plain_rounds)
    model = model_of("qwen3_5_text")
    pair = load_pair(target=model, drafter=noisy(model))
    generate(pair, PROMPT, Params(gamma=3, max_new_tokens=60, **GREEDY))
    assert len(timed) >= 8 and {(one.fed_again, one.target_forwards) for one in timed} == {(0, 1)}


def test_a_state_that_is_not_put_back_is_found_before_the_first_run(monkeypatch):
    def put_back(self, position):
        self._position = max((at for at in self._saved if at <= position), default=0)

    monkeypatch.setattr(States, "_put_back", put_back)
    assert "with a cache" in refusal(load_pair, target=small_model("qwen3_next"))


def test_it_runs_as_it_is_and_is_not_captured_on_cuda():
    setup = Runner(model_of("qwen3_next"), tiny("llama"), cached_drafter).begin_run()
    assert not setup.target.static and setup.drafter.static
    assert "keep a state" in capture_blocker(model_of("qwen3_next"))
    single = small_model("mamba")
    tried_rows[single] = "one"
    assert any("one token at a time" in str(note) for note in Runner(single, None, cached_drafter).notes)
