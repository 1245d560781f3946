"""Drafting with a Gemma 4 assistant: the text is the target's own, and what the assistant says in each round
is what it says when everything is computed anew from what the target's own forward shares."""

from dataclasses import replace
from functools import cache
from inspect import signature

import pytest
import torch
from torch.nn.functional import softmax
from transformers import AutoModelForCausalLM, Gemma4Config, logging
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

import specdemo.runtime.lm
from specdemo import PairError, Params, generate, load_pair
from specdemo.drafters.assistant.model import CachedAssistant
from specdemo.drafters.ways import WAYS
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from tests.checkpoints import gemma4, gemma4_assistant, with_tokenizer
from tests.models.test_exact_stream import check
from tests.oracle import said_anew
from tests.sentences import assert_one_sentence
from tests.tiny import greedy, noisy, tiny

PROMPT = [3, 1, 4, 1, 5]
# How many of the target's layers read other layers' keys and values, and whether the assistant's output layer
# looks at some tokens only.
FORMS = {"no layer shares": (0, False), "two layers share": (2, False), "some tokens": (2, True)}


@cache
def target_of(shared, **changes):
    return gemma4(shared=shared, **changes)


def anew(target, assistant):
    """The same without this project: the target's forward over the text before the last token, and then the
    assistant, token by token."""

    @torch.no_grad()
    def says(ids, drafted):
        output = target.model(torch.tensor([ids[:-1]]), return_shared_kv_states=True, use_cache=False)
        hidden, token, said = output.last_hidden_state[:, -1:], ids[-1], []
        for drafted_token in drafted:
            embedding = target.get_input_embeddings()(torch.tensor([[token]]))
            output_of_assistant = assistant(
                inputs_embeds=torch.cat([embedding, hidden], -1),
                position_ids=torch.tensor([[len(ids) - 1]]),
                shared_kv_states=output.shared_kv_states,
            )
            said.append(softmax(output_of_assistant.logits[0, 0].double(), -1))
            hidden, token = output_of_assistant.last_hidden_state, drafted_token
        return torch.stack(said)

    return says


@pytest.mark.slow
@pytest.mark.parametrize("shared, ordered", FORMS.values(), ids=FORMS)
def test_what_the_assistant_says_is_what_it_says_without_a_cache(shared, ordered):
    """Of a text that is longer than the sliding window."""
    target = target_of(shared, vocab_size=12)
    assistant = gemma4_assistant(target, seed=3, ordered=ordered)
    params = Params(temperature=1.5, top_p=1.0, gamma=3, max_new_tokens=35, seed=1)
    trace = generate(load_pair(target=target, drafter=assistant), PROMPT, params, measure=False)
    assert len(set(said_anew(anew(target, assistant), PROMPT, trace.rounds))) > 1


def test_its_first_draft_is_that_of_transformers():
    """(In later rounds transformers 5.24 also shows it the keys and values of a rejected draft.)"""
    if (
        "target_model_input_embeddings"
        not in signature(SinglePositionMultiTokenCandidateGenerator).parameters
    ):
        pytest.skip("this version of transformers calls it in another way")
    target = target_of(2)
    assistant = gemma4_assistant(target)
    ids = [(7 * index + 3) % 96 for index in range(30)]
    config = target.generation_config
    config.max_length = 100
    assistant.generation_config.num_assistant_tokens = 4
    theirs = SinglePositionMultiTokenCandidateGenerator(assistant, target.get_input_embeddings(), config)
    with torch.no_grad():
        output = target(
            torch.tensor([ids[:-1]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=True
        )
        candidates, logits = theirs.get_candidates(torch.tensor([ids]), {}, output, False, 0)
    params = Params(temperature=0, gamma=4, max_new_tokens=6)
    [first, *_] = generate(load_pair(target=target, drafter=assistant), ids, params, measure=False).rounds
    assert [token.id for token in first.draft] == candidates[0, len(ids) :].tolist()
    for token, row in zip(first.draft, softmax(logits[0].double(), -1), strict=True):
        assert token.raw_q == pytest.approx(row[token.id].item(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "ordered", "capture"), [(0, False, "auto"), (2, True, "off")])
def test_greedy_text_is_the_target_s(shared, ordered, capture):
    target = target_of(shared, seed=3)
    pair = load_pair(target=target, drafter=gemma4_assistant(target, ordered=ordered)).with_capture(capture)
    expected, how = greedy(target, PROMPT, 40), dict(temperature=0, max_new_tokens=40)
    for chosen in (dict(gamma=5), dict(gamma="auto"), dict(confidence=0.3)):
        trace = generate(pair, PROMPT, Params(**how | chosen), measure=False)
        assert trace.output_ids == expected and trace.stats.rejected
        assert ("confidence" in {one.ended_by for one in trace.rounds}) == ("confidence" in chosen)
    penalised = Params(repetition_penalty=1.3, **how)
    alone = generate(pair, PROMPT, replace(penalised, draft_with="none"), measure=False).output_ids
    assert generate(pair, PROMPT, penalised, measure=False).output_ids == alone


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 30])
def test_prompts_of_any_length(length, monkeypatch):
    """Also longer than the parts that a prefill reads."""
    monkeypatch.setattr(specdemo.runtime.lm, "PREFILL_CHUNK", 7)
    target = target_of(2, vocab_size=12)
    assistant, prompt = gemma4_assistant(target), (PROMPT * 6)[:length]
    params = Params(temperature=1.0, top_p=1.0, gamma=3, max_new_tokens=16, seed=1)
    trace = generate(load_pair(target=target, drafter=assistant), prompt, params, measure=False)
    said_anew(anew(target, assistant), prompt, trace.rounds)
    assert len(trace.rounds[0].draft) == (0 if length == 1 else 3)


def test_beyond_its_context_nothing_is_drafted():
    target = target_of(2)
    assistant = gemma4_assistant(target, max_position_embeddings=20)
    pair = load_pair(target=target, drafter=assistant)
    assert any("the drafter's context is 20 tokens" in str(note) for note in pair.notes)
    trace = generate(pair, PROMPT, Params(temperature=0, gamma=2, max_new_tokens=40))
    length = len(PROMPT)
    for one in trace.rounds[:-1]:
        assert len(one.draft) == (2 if length <= 20 else 0)
        length += len(one.emitted)
    assert length > 40


def test_16_bits():
    """It computes in its own dtype."""
    target = gemma4()
    assistant = gemma4_assistant(target).to(torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        pair = load_pair(target=target.to(dtype), drafter=assistant)
        trace = generate(pair, PROMPT, Params(gamma=3, max_new_tokens=20, seed=0))
        assert trace.stats.drafted and trace.stats.tokens == 20


def test_a_target_that_also_sees():
    logging.set_verbosity_error()
    text = target_of(2).config.to_dict()
    whole = AutoModelForCausalLM.from_config(
        Gemma4Config(text_config=text, vision_config=None, audio_config=None)
    ).eval()
    whole.generation_config.eos_token_id = None
    whole.model.language_model.load_state_dict(target_of(2).model.state_dict())
    assistant = gemma4_assistant(target_of(2))
    params = Params(temperature=1.0, gamma=3, max_new_tokens=20, seed=0)
    pairs = (load_pair(target=each, drafter=assistant) for each in (whole, target_of(2)))
    firsts = [generate(pair, PROMPT, params, measure=False).rounds[0] for pair in pairs]
    drafts = [[token.id for token in first.draft] for first in firsts]
    assert type(whole) is not type(target_of(2)) and drafts[0] == drafts[1]


@pytest.mark.slow
def test_the_text_is_distributed_as_the_target_s():
    target = target_of(2, vocab_size=7, num_hidden_layers=4)
    params = Params(gamma=2, temperature=1.5, top_p=1.0, max_new_tokens=6, alternatives=0)
    pair = load_pair(target=target, drafter=gemma4_assistant(target))
    how = dict(target=target, drafter=None, pair=pair, wanted=("accepted", "rejected"))
    check(params, PROMPT, 120, **how)


UNFIT = {
    "hidden states of size 64, and the target has 32": dict(backbone=64),
    "a vocabulary of 95, and the target has 96": dict(vocab_size=95),
    "sliding_attention with key heads: 1, and the target has 2": dict(num_key_value_heads=1),
    "sliding_attention with keys of size 4, and the target has 8": dict(head_dim=4),
    "full_attention with keys of size 8, and the target has 16": dict(global_head_dim=8),
}


def refused(**models) -> str:
    """The one sentence."""
    with pytest.raises(PairError) as error:
        load_pair(**models)
    assert_one_sentence(str(error.value))
    return str(error.value)


def test_an_assistant_that_does_not_fit_is_refused():
    target = target_of(2)
    for words, changes in UNFIT.items():
        told = refused(target=target, drafter=gemma4_assistant(target, **changes))
        assert told.endswith(f"it was made for {words}")
    assert refused(target=tiny(), drafter=gemma4_assistant(target)).endswith(
        "gemma4_assistant drafts for targets of the kind gemma4_text, and this one is of the kind llama"
    )
    assert "it is an assistant, " in refused(target=gemma4_assistant(target))


def test_one_that_predicts_something_else_from_the_cache(monkeypatch):
    target = target_of(2)
    monkeypatch.setattr(CachedAssistant, "hidden", lambda self, position: torch.zeros(1, 32))
    with pytest.raises(PairError, match="its predictions with a cache differ from those without"):
        load_pair(target=target, drafter=gemma4_assistant(target))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A target with a tokenizer, and assistants without one."""
    folder = tmp_path_factory.mktemp("gemma4")
    target = gemma4(vocab_size=300)
    target.save_pretrained(with_tokenizer(folder / "target"))
    gemma4_assistant(target).save_pretrained(folder / "assistant")
    gemma4_assistant(target, backbone=64).save_pretrained(folder / "larger")
    noisy(target).save_pretrained(with_tokenizer(folder / "model"))
    return folder


@pytest.mark.slow
def test_from_directories(saved):
    target, assistant = saved / "target", saved / "assistant"
    pair = load_pair(target=target, drafter=assistant)
    params = Params(gamma=3, max_new_tokens=20, seed=0)
    expected = generate(pair, "the cat", params).output_ids
    held, sizes = pair.bytes_held, plan(resolve(target=target, drafter=assistant)).sizes
    assert [held.target, held.drafter] == pytest.approx(sizes, abs=2000)
    assert 0 < WAYS["model"].cost(pair, Params()).token < 1
    pair.attach(saved / "model")
    assert generate(pair, "the cat", params).stats.drafted
    with pytest.raises(PairError, match="does not fit target .*: it was made for hidden states of size 64, "):
        pair.attach(saved / "larger")
    assert pair.info.drafter == str(saved / "model")
    pair.attach(assistant)
    assert generate(pair, "the cat", params).output_ids == expected
    pair.detach()
    assert pair.drafter is None


def test_a_target_must_be_given(saved):
    assert refused(drafter=saved / "assistant")
    told = refused(target=saved / "assistant")
    assert "is an assistant, which drafts for a target: give it as the drafter" in told
