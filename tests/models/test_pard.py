"""Drafting with PARD models: the text is the target's own, and what such a model says in each round is what
it says when everything is computed anew, in one forward without a cache."""

import json

import pytest
import torch

import specdemo.runtime.lm
from specdemo import Params, Round, generate, load_pair, stream
from specdemo.drafters.pard.drafter import PardDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from tests.checkpoints import change_config, saved_in
from tests.fake_cuda import FakeCuda, install
from tests.models.test_capture import Filled, timeless
from tests.models.test_exact_stream import PARAMS, check, tiny_llama
from tests.models.test_exact_stream import PROMPT as FIVE
from tests.models.test_greedy import NEW, PROMPT, assert_same, expected_of, target_of
from tests.models.test_no_sync import SAMPLERS, TEXT, Kept, recordable, waits_of
from tests.oracle import decoding, said_anew
from tests.runners import drafts_after, run_by
from tests.sentences import refusal
from tests.small import small_model
from tests.tiny import noisy, tiny, tokenizer

MASK = 7
FREE = Params(temperature=1.5, top_p=1.0, gamma=3, max_new_tokens=60, seed=1, alternatives=3)


def parallel(model, mask=MASK):
    """The model as one that drafts in parallel, which it was not trained for."""
    model.config.pard_token = mask
    return model


@torch.no_grad()
def says(model, text, drafted):
    """The logits [K, V] that these K tokens were drafted from: one forward over the whole text, and a mask in
    the place of each draft but the last."""
    ids = torch.tensor([text + [MASK] * (len(drafted) - 1)])
    return model(input_ids=ids, use_cache=False).logits[0, len(text) - 1 :]


def accepted_of(trace, drafter, prompt):
    """How many drafts each round has accepted, whose q are what the model says anew."""
    return said_anew(lambda *after: says(drafter, *after).softmax(-1), prompt, trace.rounds)


def built(drafter, lm, params, run_step=None, context=1000, sampler=None):
    how = (lm.vocab_size, lm.device, run_step or EagerSteps(), params.gamma)
    return PardDrafter(drafter, context, sampler or Sampler(params), *how, mask=MASK)


def test_what_it_says_is_what_it_says_when_computed_anew():
    """After rejections of every length and after full acceptance; as steps are captured, too."""
    target = tiny(vocab_size=12, seed=2)
    drafter = parallel(noisy(target, 0.3))
    for run_step in (EagerSteps(), Filled()):
        trace = generate(run_by(target, drafter, run_step), FIVE, FREE, measure=False)
        assert set(accepted_of(trace, drafter, FIVE)) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma3", "qwen3_5_text"])
def test_so_do_models_of_other_kinds(name):
    """With windows, and with states that the masks move on."""
    drafter = parallel(small_model(name) if name == "qwen3_5_text" else tiny(name))
    pair = load_pair(target=tiny(), drafter=drafter)
    assert pair.info.drafter_kind == "pard" and pair.info.longest_draft is None
    assert accepted_of(generate(pair, PROMPT, FREE, measure=False), drafter, PROMPT)


@pytest.mark.parametrize(("length", "gamma"), [(1, 4), (2, 8), (3, 1), (4, 4), (30, 4)])
def test_prompts_of_any_length(length, gamma, monkeypatch):
    """Also longer than the parts that a prefill reads, and shorter than what a captured round feeds."""
    monkeypatch.setattr(specdemo.runtime.lm, "PREFILL_CHUNK", 7)
    target, prompt = tiny(vocab_size=12, seed=2), (TEXT * 4)[:length]
    drafter = parallel(noisy(target, 0.3))
    params = Params(temperature=1.0, top_p=1.0, gamma=gamma, max_new_tokens=20, seed=1)
    trace = generate(run_by(target, drafter, Filled()), prompt, params, measure=False)
    assert accepted_of(trace, drafter, prompt) and len(trace.rounds[0].draft) == gamma


def test_rounds_that_draft_nothing_leave_no_hole():
    target, params = tiny(vocab_size=12, seed=2), Params(gamma=2, temperature=1.0, top_p=1.0, seed=0)
    drafter, lm = parallel(tiny(vocab_size=12, seed=5)), CachedLM(target)
    drafts = drafts_after(
        TEXT, [0, 0, 0, 0, 0, 2, 0, 1] * 2, params, lm, built(CachedLM(drafter), lm, params)
    )
    for text, draft in drafts:
        anew = says(drafter, text, draft.ids.tolist()).softmax(-1)
        torch.testing.assert_close(draft.raw_q, anew, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gamma", [1, 4, "auto"])
def test_greedy_text_is_the_target_s(gamma):
    target = target_of("llama")
    pair = load_pair(target=target, drafter=parallel(noisy(target)))
    trace = generate(pair, PROMPT, Params(temperature=0, gamma=gamma, max_new_tokens=NEW), measure=False)
    assert_same(target, trace.output_ids, expected_of("llama"))
    assert trace.stats.rejected and trace.stats.accepted


def test_beyond_its_context_nothing_is_drafted():
    target = target_of("llama")
    drafter = parallel(tiny(max_position_embeddings=40))
    pair = load_pair(target=target, drafter=drafter)
    trace = generate(pair, PROMPT, Params(temperature=0, gamma=4, max_new_tokens=NEW), measure=False)
    assert trace.output_ids == expected_of("llama")
    length = len(PROMPT)
    for this_round in trace.rounds[:-1]:
        assert len(this_round.draft) == max(0, min(4, 41 - length))
        length += len(this_round.emitted)


@pytest.mark.parametrize("sampling", [dict(temperature=0.0), dict(temperature=0.9, top_p=0.9)], ids=str)
def test_a_run_over_captured_steps_is_the_run(monkeypatch, sampling):
    """Both steps as CUDA graphs, without a GPU: one graph for drafts, however many tokens were accepted."""
    params = Params(**sampling, seed=3, max_new_tokens=30)
    drafter = parallel(noisy(target_of("llama")))
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)

    def rounds_of(run_step):
        events = stream(run_by(target_of("llama"), drafter, run_step), PROMPT, params, measure=False)
        return timeless([event for event in events if isinstance(event, Round)])

    expected = rounds_of(Filled())
    fake = install(monkeypatch, FakeCuda())
    graphs = Graphs(Clock())
    assert rounds_of(graphs) == expected
    assert graphs.fault is None and [key[0] for key in graphs.graphs].count("draft") == 1
    assert fake.log.count("replay") > len(expected) and not fake.violations


@pytest.mark.parametrize(("sampler", "k"), [("greedy", 4), ("all", 2), ("adjusted", 4)])
@torch.no_grad()
def test_no_step_waits(sampler, k):
    params = Params(gamma=4, max_new_tokens=40, alternatives=3, seed=1, **SAMPLERS[sampler])
    run, shared, lm = Kept(), Sampler(params), recordable(target_of("llama"))
    drafter = built(recordable(parallel(noisy(target_of("llama")))), lm, params, run, sampler=shared)
    verifier = decoding(lm, drafter, params, TEXT, run_step=run, sampler=shared).decoder.verifier
    lm.prefill(torch.tensor(TEXT[:-1]))
    drafter.start(TEXT)
    u = uniforms(1, 0, 4)
    verifier.verify(TEXT, drafter.propose(TEXT, k, u.draft), u)
    assert waits_of(run.steps) == {"draft": [], "verify": []}


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=pytest.mark.long)])
def test_the_text_has_the_targets_distribution(runs):
    check(PARAMS, FIVE, runs, target=tiny_llama(3), drafter=parallel(tiny_llama(6), 2))


def test_it_is_known_by_its_config(tmp_path):
    """By either name of the mask token; and its vocabulary can be wider than the target's."""
    target = saved_in(tmp_path / "target", tiny(vocab_size=304))
    model = tiny(vocab_size=310, seed=1)
    for name in ("pard_token", "ptd_token_id"):
        folder = saved_in(tmp_path / name, model)
        change_config(folder, **{name: 301})
        pair = load_pair(target=target, drafter=folder)
        assert pair.info.drafter_kind == "pard" and not pair.notes
        trace = generate(pair, "the dog", Params(gamma=3, max_new_tokens=12, seed=1), measure=False)
        assert pair.runner.lms[1].native is not None and trace.stats.drafted
        assert json.loads(trace.to_json())["pair"]["drafter_kind"] == "pard"


@pytest.mark.parametrize("mask", [-1, 304, "7", 7.0, True])
def test_a_mask_that_is_no_token_of_its_own_is_refused(tmp_path, mask):
    target = saved_in(tmp_path / "target", tiny(vocab_size=304))
    folder = saved_in(tmp_path / "drafter", tiny(vocab_size=304, seed=1))
    change_config(folder, pard_token=mask)
    wanted = f"pard_token in its config.json must be the id of one of its 304 tokens, not {mask!a}"
    assert refusal(load_pair, target=target, drafter=folder).endswith(wanted)


def test_it_must_have_the_targets_tokenizer(tmp_path):
    target = saved_in(tmp_path / "target", tiny(vocab_size=304))
    words = tokenizer(sentences=["the cat ran"] * 9)
    folder = saved_in(tmp_path / "drafter", parallel(tiny(vocab_size=304, seed=1)), words)
    pair = load_pair(target=target)
    for load in (lambda: load_pair(target=target, drafter=folder), lambda: pair.attach(folder)):
        assert "drafts in parallel, so its tokenizer must be that of target" in refusal(load)
