"""Greedy output equals transformers' own `generate(do_sample=False)`, token for token, in float32, for twelve
architectures."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from specdemo import Params, generate, load_pair, stream
from tests.sentences import assert_one_sentence, refused
from tests.tiny import (
    ARCHITECTURES,
    VOCAB,
    greedy,
    longrope,
    noisy,
    tiny,
    tokenizer,
)

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
NEW = 60  # with the prompt more than four sliding windows


@cache
def target_of(name):
    return tiny(name)


@cache
def expected_of(name):
    return greedy(target_of(name), PROMPT, NEW)


def run_of(target, drafter=None, prompt=PROMPT, new=NEW, draft_with="model", **params):
    params = Params(temperature=0, max_new_tokens=new, draft_with=draft_with, **params)
    return generate(load_pair(target=target, drafter=drafter), prompt, params, measure=False)


def assert_same(model, output, expected, prompt=PROMPT):
    """On a difference says how sure the model was there: a margin below 1e-4 would be rounding, any other one
    a bug."""
    output = list(output)
    if output != expected:
        both = enumerate(zip(output, expected, strict=False))
        at = next((i for i, (a, b) in both if a != b), min(len(output), len(expected)))
        with torch.no_grad():
            logits = model(torch.tensor([prompt + expected[:at]]), use_cache=False).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        raise AssertionError(
            f"first difference at token {at}, top-2 margin {first - second:.2g}: {output} is not {expected}"
        )


# A near drafter for every architecture; each other way of drafting for one that it is hard for.
CASES = [
    *(("near", name, dict(gamma=4)) for name in ARCHITECTURES),
    ("near", "mistral", dict(gamma=1)),
    ("near", "gpt2", dict(gamma=8)),
    ("far", "gemma3", dict(gamma=3)),
    (None, "gemma2", dict(draft_with="lookup", ngram=2)),
    (None, "gpt2", dict(draft_with="ngram")),
    (None, "gemma3", dict(draft_with="ngram-one-level", ngram=1)),
    (None, "llama", dict(draft_with="none")),
]


@pytest.mark.parametrize(("kind", "name", "params"), CASES, ids=str)
def test_equals_generate(kind, name, params):
    target, expected = target_of(name), expected_of(name)
    drafter = noisy(target) if kind == "near" else tiny(name, seed=9) if kind == "far" else None
    trace = run_of(target, drafter, **params)
    assert_same(target, trace.output_ids, expected)
    assert trace.finish == "length" and trace.stats.tokens == NEW

    # The case must show something: a lively text, and for a near drafter both verdicts.
    assert len(set(expected)) >= 10
    if kind == "near":
        assert trace.stats.accepted and trace.stats.rejected
        assert max(len(this_round.draft) for this_round in trace.rounds) == params["gamma"]
    if kind == "far":
        assert trace.stats.rejected > trace.stats.rounds / 2
    if params == dict(draft_with="none"):
        assert trace.stats.drafted == 0 and trace.stats.rounds == NEW


@pytest.mark.slow
@pytest.mark.parametrize("width", [VOCAB + 40, VOCAB - 40])
def test_a_drafter_of_another_width(width):
    """Wider: its extra rows are loud, and would be drafted if they were not cut. Narrower: the text holds ids
    it lacks."""
    target, expected = target_of("qwen2"), expected_of("qwen2")
    drafter = noisy(target)
    drafter.resize_token_embeddings(width, mean_resizing=False)
    loud = torch.randn(max(width - VOCAB, 0), 32, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        drafter.lm_head.weight[VOCAB:] = 3 * loud
        loudest = drafter(torch.tensor([PROMPT]).clamp(max=width - 1)).logits[0].argmax(-1)
    assert width < VOCAB or (loudest >= VOCAB).any()
    trace = run_of(target, drafter, gamma=4)
    assert_same(target, trace.output_ids, expected)
    assert max(expected) >= VOCAB - 40 and trace.stats.accepted and trace.stats.rejected
    assert max(token.id for this_round in trace.rounds for token in this_round.draft) < min(width, VOCAB)


@pytest.mark.slow
def test_eos_inside_an_accepted_draft():
    """Of several ids the first in the text."""
    target, text = copy.deepcopy(target_of("llama")), expected_of("llama")
    # One that first occurs in the middle of a draft when every draft is accepted.
    firsts = sorted({text.index(token_id) for token_id in text})
    at = next(at for at in firsts if at >= 20 and at % 5 in (1, 2))
    for ids in ([text[at]], [text[10], text[at]]):
        target.generation_config.eos_token_id = ids
        expected = greedy(target, PROMPT, NEW)
        assert len(expected) < NEW and expected[-1] in ids
        for drafter in (target, noisy(target)):
            trace = run_of(target, drafter, gamma=4)
            assert_same(target, trace.output_ids, expected)
            assert trace.finish == "eos"
            if drafter is target and len(ids) == 1:
                last = trace.rounds[-1]
                assert last.next is None and last.draft[-1].id == ids[0] and len(last.draft) < 4
    assert_same(target, run_of(target, noisy(target), gamma=4, ignore_eos=True).output_ids, text)


def test_the_end_token_of_the_tokenizer_ends_it_too():
    words, target = tokenizer(), tiny("qwen3", vocab_size=300)
    ids = words("the cat").input_ids
    text = greedy(target, ids, NEW)
    at = next(i for i in range(20, NEW) if text.index(text[i]) == i)
    words.eos_token = words.convert_ids_to_tokens(text[at])
    pair = load_pair(target=target, drafter=noisy(target), tokenizer=words)
    trace = generate(pair, ids, Params(temperature=0))
    assert trace.finish == "eos"
    assert_same(target, trace.output_ids, text[: at + 1], ids)


@pytest.mark.parametrize(("name", "draft_with"), [("gpt2", "model"), ("opt", "lookup"), ("llama", "none")])
def test_the_context_is_the_limit(name, draft_with):
    target = tiny(name, **{"n_positions" if name == "gpt2" else "max_position_embeddings": 40})
    trace = run_of(target, noisy(target), gamma=8, draft_with=draft_with)
    assert_same(target, trace.output_ids, greedy(target, PROMPT, 40 - len(PROMPT)))
    assert trace.finish == "length"
    assert len(trace.prompt_ids) + len(trace.output_ids) == 40
    length = len(PROMPT)
    for this_round in trace.rounds:
        assert length + len(this_round.draft) + 1 <= 40
        length += len(this_round.emitted)
    with refused("context", field="prompt", length=40):
        generate(load_pair(target=target), (PROMPT * 4)[:40])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_a_text_ends_where_longrope_would_rotate_all_of_a_forward_anew(name):
    target = tiny(name, **longrope(40))
    text = greedy(target, PROMPT, 40 - len(PROMPT))
    for how in (dict(gamma=8), dict(draft_with="lookup", ngram=1, gamma=8), dict(draft_with="early-exit")):
        trace = run_of(target, noisy(target), **how)
        assert_same(target, trace.output_ids, text)
        assert trace.finish == "length"
    pair = load_pair(target=target)
    assert "longrope" in str(pair.notes[0]) and pair.context == 40
    with refused("context_why", field="prompt", length=40):
        generate(pair, (PROMPT * 4)[:40])
    equal = tiny(name, **longrope(40, short=4.0))  # with equal factors it goes on
    assert load_pair(target=equal).notes == [] and load_pair(target=equal).context == 256


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit"), [("gpt2", 8), ("gpt2", 28), ("llama", 13)])
def test_beyond_the_drafters_context_the_target_goes_on_alone(name, limit):
    target = target_of(name)
    drafter = tiny(name, **{"n_positions" if name == "gpt2" else "max_position_embeddings": limit})
    with torch.no_grad():  # the target's own weights, as far as they reach
        theirs = target.state_dict()
        for key, tensor in drafter.state_dict().items():
            tensor.copy_(theirs[key][tuple(slice(size) for size in tensor.shape)])
    trace = run_of(target, drafter, gamma=4)
    assert_same(target, trace.output_ids, expected_of(name))
    length = len(PROMPT)
    for this_round in trace.rounds:
        assert len(this_round.draft) == max(0, min(4, limit - length + 1, len(PROMPT) + NEW - length - 1))
        length += len(this_round.emitted)
    assert trace.stats.tokens == NEW and (trace.stats.accepted > 0) == (limit > len(PROMPT))


def test_dropout_is_off_and_training_mode_is_left_as_it_was():
    """Also of models of which a part is trained, and after a run that was closed."""
    target, drafter = tiny("gpt2").train(), tiny("gpt2").train()
    drafter.transformer.h[0].eval()
    target.training = False  # the model itself says that it is at rest
    before = [module.training for model in (target, drafter) for module in model.modules()]
    pair = load_pair(target=target, drafter=drafter)
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW))
    assert_same(target_of("gpt2"), trace.output_ids, expected_of("gpt2"))
    assert trace.stats.acceptance_rate == 1.0
    closed = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW))
    next(closed), next(closed)
    closed.close()
    assert [module.training for model in (target, drafter) for module in model.modules()] == before


def test_two_runs_of_a_model_in_training_mode_that_overlap():
    """The second one begins while a step of the first has put the model to rest, and goes on after it."""
    target = tiny("gpt2").train()
    one, other = load_pair(target=target), load_pair(target=target)
    params = Params(draft_with="none", temperature=0, max_new_tokens=NEW, ignore_eos=True)
    second = []

    def begins(*_):
        handle.remove()
        second.append(stream(other, PROMPT, params))
        next(second[0]), next(second[0])

    handle = target.register_forward_pre_hook(begins)
    first = generate(one, PROMPT, params)
    for _ in second[0]:
        pass
    assert first.output_ids == second[0].trace.output_ids
    assert_same(target_of("gpt2"), first.output_ids, expected_of("gpt2"))
    assert all(module.training for module in target.modules())


@pytest.mark.slow
def test_a_special_token_is_a_stop_string():
    """Text is decoded without it, so that it is found by its id; the text before it is whole."""
    target, words = tiny("qwen3", vocab_size=300), tokenizer()
    ids = words("the cat").input_ids
    text = greedy(target, ids, NEW)
    at = next(i for i in range(20, NEW) if text.index(text[i]) == i and text[i] < len(words))
    stop = words.convert_ids_to_tokens(text[at])
    words.add_special_tokens({"additional_special_tokens": [stop]})
    pair = load_pair(target=target, drafter=target, tokenizer=words)
    how = Params(temperature=0, max_new_tokens=NEW, stop=("no such text", stop))
    for draft_with in ("model", "none"):
        trace = generate(pair, ids, replace(how, draft_with=draft_with), measure=False)
        assert (trace.output_ids, trace.finish) == (text[: at + 1], "stop")
        assert trace.text == words.decode(text[:at], skip_special_tokens=True)
    for wrong in (f"{stop}\n", f"a{stop}", stop * 2):
        with pytest.raises(ValueError, match="^stop ") as said:
            pair.check(Params(stop=(wrong,)))
        assert_one_sentence(str(said.value))
