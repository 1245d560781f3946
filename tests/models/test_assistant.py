"""Gemma 4's assistants: their forms, and that they predict what transformers makes of them. What they owe as
every drafter does is in test_drafter_contract.py."""

from inspect import signature

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4Config, logging
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from specdemo import Params, generate, load_pair
from specdemo.drafters.assistant import CachedAssistant
from specdemo.drafters.table import BY_METHOD
from tests.checkpoints import gemma4, gemma4_assistant, with_tokenizer
from tests.drafters import PROMPT, assistant_says, drawn_as_said
from tests.sentences import refusal

# How many of the target's layers read other layers' keys and values, and whether the assistant's output layer
# looks at some tokens only.
FORMS = {"no layer shares": (0, False), "some tokens": (2, True)}


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "ordered"), FORMS.values(), ids=FORMS)
def test_what_each_form_says_is_what_it_says_without_a_cache(shared, ordered):
    """Of a text that is longer than the sliding window."""
    target = gemma4(shared=shared, vocab_size=12)
    assistant = gemma4_assistant(target, seed=3, ordered=ordered)
    params = Params(temperature=1.5, top_p=1.0, gamma=3, max_new_tokens=35, seed=1)
    pair = load_pair(target=target, drafter=assistant)
    assert 0 < BY_METHOD["model"].cost(pair, Params()).token < 1
    trace = generate(pair, PROMPT, params, measure=False)
    says = lambda *after: assistant_says(assistant, target, *after)  # noqa: E731
    assert len(set(drawn_as_said(says, PROMPT, trace))) > 1


def test_its_first_draft_is_that_of_transformers():
    """(In later rounds transformers 5.24 also shows it the keys and values of a rejected draft.)"""
    if (
        "target_model_input_embeddings"
        not in signature(SinglePositionMultiTokenCandidateGenerator).parameters
    ):
        pytest.skip("this version of transformers calls it in another way")
    target = gemma4()
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
    for token, row in zip(first.draft, logits[0].double().softmax(-1), strict=True):
        assert token.raw_q == pytest.approx(row[token.id].item(), abs=1e-5)


def test_a_target_that_also_sees():
    logging.set_verbosity_error()
    target = gemma4()
    config = Gemma4Config(text_config=target.config.to_dict(), vision_config=None, audio_config=None)
    whole = AutoModelForCausalLM.from_config(config).eval()
    whole.generation_config.eos_token_id = None
    whole.model.language_model.load_state_dict(target.model.state_dict())
    assistant = gemma4_assistant(target)
    params = Params(temperature=1.0, gamma=3, max_new_tokens=20, seed=0)
    pairs = (load_pair(target=each, drafter=assistant) for each in (whole, target))
    firsts = [generate(pair, PROMPT, params, measure=False).rounds[0] for pair in pairs]
    drafts = [[token.id for token in first.draft] for first in firsts]
    assert type(whole) is not type(target) and drafts[0] == drafts[1]


def test_one_that_predicts_something_else_from_the_cache(monkeypatch):
    target = gemma4()
    monkeypatch.setattr(CachedAssistant, "hidden", lambda self, position: torch.zeros(1, 32))
    assert "with a cache" in refusal(load_pair, target=target, drafter=gemma4_assistant(target))


def test_an_assistant_is_no_target(tmp_path):
    folder, assistant = with_tokenizer(tmp_path), gemma4_assistant(gemma4(vocab_size=300))
    assistant.save_pretrained(folder)
    assert refusal(load_pair, drafter=folder).startswith("target must be given")
    for target in (folder, assistant):
        assert "an assistant" in refusal(load_pair, target=target)
