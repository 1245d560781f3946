"""Drafters with another tokenizer, with real tokenizers and models: which tokens both have, how the others
are read, and the target's own greedy text."""

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from specdemo import Params, generate, load_pair
from specdemo.drafters.other_tokenizer import SharedTokensDrafter
from specdemo.drafters.vocabulary import compared, is_same
from specdemo.engine.sampling import Sampler
from specdemo.runtime.lm import CachedLM
from tests.checkpoints import saved_in
from tests.models.test_greedy import assert_same
from tests.models.test_no_sync import Kept, waits_of
from tests.oracle import materials
from tests.pure.test_detokenize import KINDS, byte_level
from tests.sentences import refusal
from tests.tiny import greedy, noisy, tiny, tokenizer
from tests.toy.test_other_tokenizer import letters

PROMPT = "the cat sat — naïve 日本語 🙂, "
NEW = 40
WORDS = ["the cat", " on the mat", "é山", "🙂", "\n\n", "  x", "10,000!", "日本"]


@cache
def tokenizer_of(kind):
    return KINDS[kind]() if kind in KINDS else tokenizer()


def shuffled(words: PreTrainedTokenizerFast, model, seed=1):
    """A tokenizer of the same letters in another order, and a near model with its rows in that order."""
    order = list(range(len(words)))
    random.Random(seed).shuffle(order)
    new = letters([words.convert_ids_to_tokens(i) for i in order])
    near = noisy(model)
    with torch.no_grad():
        for matrix in (near.get_input_embeddings().weight, near.get_output_embeddings().weight):
            matrix.copy_(matrix[order].clone())
    return new, near


def check_greedy(target, drafter, tokenizers, prompt=PROMPT, **params):
    pair = load_pair(target=target, drafter=drafter, tokenizer=tokenizers)
    how = Params(temperature=0, max_new_tokens=NEW, ignore_eos=True, **params)
    trace = generate(pair, prompt, how, measure=False)
    ids = list(trace.prompt_ids)
    assert_same(target, trace.output_ids, greedy(target, ids, NEW), ids)
    return trace


@pytest.mark.slow
@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("byte level of 300", "sentencepiece"),
        ("word pieces", "byte level of 300"),
        ("byte level with a prefix space", "metaspace"),
    ],
)
def test_greedy_text_is_the_targets_own(ours, theirs):
    """Random models write any bytes, also such as are no character."""
    ours, theirs = tokenizer_of(ours), tokenizer_of(theirs)
    target = tiny("llama", vocab_size=len(ours))
    drafter = tiny("gpt2", vocab_size=len(theirs) + 3, seed=4)
    trace = check_greedy(target, drafter, {"target": ours, "drafter": theirs})
    assert trace.stats.drafted
    assert max(token.id for one in trace.rounds for token in one.draft) < len(ours)


SIGNS = "abcdefghijklmnopqrstuvwxyz .é山🙂"


@pytest.mark.slow
def test_the_same_model_under_other_ids_is_believed():
    """Near, so that some drafts are refused; with long characters."""
    ours = letters(SIGNS)
    target = tiny("qwen2", vocab_size=len(SIGNS))
    theirs, near = shuffled(ours, target)
    assert not is_same(ours, theirs) and len(compared(ours, theirs).shared) == len(SIGNS)
    tokenizers, prompt = {"target": ours, "drafter": theirs}, "one day. é山🙂"
    trace = check_greedy(target, near, tokenizers, prompt)
    assert 0.3 < trace.stats.acceptance_rate < 1
    sure = check_greedy(target, near, tokenizers, prompt, confidence=0.6)
    assert 0 < sure.stats.drafted < trace.stats.drafted, "it ends drafts where the drafter is unsure"
    pair = load_pair(target=target, drafter=near, tokenizer=tokenizers)
    same = load_pair(target=target, drafter=noisy(target), tokenizer=ours)
    params = Params(temperature=0.9, top_p=0.95, seed=0, max_new_tokens=NEW)
    drafted, usual = (generate(one, prompt, params, measure=False) for one in (pair, same))
    assert drafted.stats.accepted and drafted.stats.rejected
    assert drafted.output_ids == usual.output_ids, "the same q and the same dice"


def test_the_end_of_the_text_is_drafted_by_either_name():
    tokenizers = {"target": tokenizer(), "drafter": byte_level(400)}
    models = {role: tiny(vocab_size=len(words)) for role, words in tokenizers.items()}
    ours, theirs = tokenizers.values()
    assert ours.eos_token != theirs.eos_token
    assert compared(ours, theirs).shared[ours.eos_token_id] == theirs.eos_token_id
    for role, words in tokenizers.items():
        weights, end = models[role].lm_head.weight, words.eos_token_id
        with torch.no_grad():
            weights[end] = 0
            weights[end, 0] = 1e4  # certain, or impossible
            if models[role](torch.tensor([words("the cat").input_ids])).logits[0, -1].argmax() != end:
                weights[end] *= -1
    trace = generate(load_pair(**models, tokenizer=tokenizers), "the cat", Params(seed=1), measure=False)
    assert trace.finish == "eos" and trace.output_ids == [ours.eos_token_id]
    assert [token.fate for token in trace.rounds[0].draft] == ["accepted"]


def added_by(words, token_id):
    """What a token adds to a text that has begun."""
    start = words("a", add_special_tokens=False).input_ids[:1]
    return words.decode([*start, token_id]).removeprefix(words.decode(start))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_tokens_say_the_same_in_a_text(kind):
    ours, theirs = tokenizer(extra=1), tokenizer_of(kind)
    found = compared(ours, theirs).shared
    assert (
        len(set(found.values())) == len(found) >= (256 if "byte" in kind or kind == "sentencepiece" else 30)
    )
    for mine, own in found.items():
        assert added_by(ours, mine) == added_by(theirs, own) or mine in ours.all_special_ids
    assert ours.convert_tokens_to_ids("<extra0>") not in found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "byte" in kind or kind == "sentencepiece"])
def test_a_text_is_read_token_by_token_as_its_bytes(kind):
    ours, theirs = tokenizer(), tokenizer_of(kind)
    other, start = compared(ours, theirs), theirs("a", add_special_tokens=False).input_ids[:1]
    for text in WORDS:
        ids = ours(text, add_special_tokens=False).input_ids
        own = [own_id for token_id in ids for own_id in other.own(token_id)]
        assert theirs.decode([*start, *own]).removeprefix(theirs.decode(start)) == text
    assert other.own(len(ours)) == []


@pytest.mark.slow
def test_the_pair_says_what_it_does_and_captured_is_eager(tmp_path):
    words, others = tokenizer(), byte_level(400)
    target = saved_in(tmp_path / "t", tiny("llama", vocab_size=300), words)
    pair = load_pair(target=target, drafter=saved_in(tmp_path / "d", tiny("gpt2", vocab_size=400), others))
    (note,) = (one for one in pair.limits if one.key == "other_tokenizer")
    assert note.values["shared"] == len(compared(words, others).shared) and note.values["all"] == 300
    params = Params(temperature=0.8, top_p=0.9, seed=2, max_new_tokens=60, ignore_eos=True)
    captured = generate(pair, "the cat", params, measure=False)
    plain = generate(pair.with_capture("off"), "the cat", params, measure=False)
    assert captured.output_ids == plain.output_ids and captured.stats.drafted


def test_models_without_a_token_in_common_are_refused():
    none = dict(target=tiny(vocab_size=3), drafter=tiny(vocab_size=3))
    few = {"target": letters("abcd"), "drafter": letters("xycd")}
    assert compared(*few.values()).shared == {2: 2, 3: 3}
    said = refusal(load_pair, target=tiny(vocab_size=4), drafter=tiny(vocab_size=2), tokenizer=few)
    assert "one token in common" in said
    words = {"target": letters("abc"), "drafter": letters("xyz")}
    assert "one token in common" in refusal(load_pair, **none, tokenizer=words)
    for wrong in ({"target": letters("abc")}, {"target": letters("abc"), "drafter": 3}):
        assert refusal(load_pair, **none, tokenizer=wrong).startswith("tokenizer must ")


def test_a_context_that_ends_in_the_text():
    ours, theirs = tokenizer(), byte_level(400)
    target = tiny("llama", vocab_size=300)
    for limit in (12, 60):
        drafter = tiny("llama", vocab_size=400, max_position_embeddings=limit)
        trace = check_greedy(target, drafter, {"target": ours, "drafter": theirs})
        assert not trace.rounds[-2].draft


@pytest.mark.parametrize("sampler", [{"temperature": 0}, {"top_k": 20, "top_p": 0.9, "min_p": 0.05}], ids=str)
def test_drafting_shared_tokens_does_not_wait(sampler):
    lm, run = CachedLM(tiny("llama", vocab_size=400)), Kept()
    lm.begin_run(static=True)
    words = letters("".join(map(chr, range(300, 396))))
    other = replace(compared(words, words), shared={at: 95 - at for at in range(96) if at != 5})
    given = materials(Sampler(Params(**sampler)), 96, lm, run_step=run)
    drafter = SharedTokensDrafter(replace(given, tokenizer=words, other_tokenizer=other))
    with torch.no_grad():
        drafter.start([3, 1, 4, 1])
        draft = drafter.propose([3, 1, 4, 1], 4, [0.5] * 4)
    assert waits_of(run.steps) == {"draft": []} and (draft.q[:, 5] == 0).all()
