"""A drafter with another tokenizer, over tables and letters: the joint distribution of the first tokens is
the target's own, and q is the drafter's over the tokens that both have."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdemo.drafters.other_tokenizer import OtherTokenizerDrafter, SharedTokensDrafter
from specdemo.drafters.vocabulary import shared_tokens
from specdemo.engine.sampling import Sampler
from specdemo.events import Params, Round
from tests.oracle import CPU, TableLM, decoding, exactness, make_drafter, materials, random_table, shaped
from tests.toy.test_exact_table import RUNS, SOUND, TOKENS

OURS, THEIRS = "abcde", "xdcazb"  # e is the target's alone, x and z the drafter's
TARGET, DRAFTER = random_table(1), random_table(2, len(THEIRS))
CONFIDENCE = 0.6
PROMPT = [0, 4, 1]
PLAIN = Params(gamma=2, temperature=0.9, top_p=1.0, max_new_tokens=8, alternatives=0)
FILTERED = replace(PLAIN, temperature=1.4, top_k=3, top_p=0.85)


def letters(words) -> PreTrainedTokenizerFast:
    """A token for each word; words of several letters are tried first."""
    splits = Regex("|".join(sorted(words, key=len, reverse=True)))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(splits, "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


OURS_OF, THEIRS_OF = letters(OURS), letters(THEIRS)
SHARED = dict(shared_tokens(OURS_OF, THEIRS_OF))


class Shared(SharedTokensDrafter):
    """Over the table DRAFTER."""

    def __init__(self, sampler, own_ids):
        super().__init__(materials(sampler, len(OURS), TableLM(DRAFTER)), own_ids)


def other(sampler):
    own_ids = torch.full((len(OURS),), -1)
    own_ids[list(SHARED)] = torch.tensor(list(SHARED.values()))
    if sampler.greedy:
        drafter = make_drafter("model", sampler, len(THEIRS), TableLM(DRAFTER))
    else:
        drafter = Shared(sampler, own_ids)
    return OtherTokenizerDrafter(drafter, OURS_OF, THEIRS_OF, SHARED, len(OURS), CPU, sampler.greedy)


def events_of(params, prompt=PROMPT, drafter=other):
    sampler = Sampler(params)
    run = decoding(TableLM(TARGET), drafter(sampler), params, prompt, sampler=sampler)
    return (event for event in run if isinstance(event, Round))


def test_the_text_has_the_targets_distribution():
    fates = Counter()
    p = exactness(
        lambda prompt, seed: events_of(replace(PLAIN, seed=seed), prompt),
        lambda text: shaped(TableLM(TARGET).row(text), PLAIN),
        [PROMPT],
        TOKENS,
        RUNS,
        fates=fates,
    )
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "discarded", "resampled", "bonus"):
        assert fates[fate] > RUNS / 20, f"too few {fate}: the test shows little about them"


@pytest.mark.parametrize("params", [PLAIN, FILTERED])
def test_q_is_the_drafters_over_the_tokens_that_both_have(params):
    """Against numpy, after the text in the drafter's own letters; unknown letters are its token 0."""
    where = [THEIRS.find(letter) for letter in OURS]
    for seed in range(5):
        text = list(PROMPT)
        for event in events_of(replace(params, seed=seed, alternatives=len(OURS))):
            own = THEIRS_OF("".join(OURS[token_id] for token_id in text)).input_ids
            for token in event.draft:
                logits = TableLM(DRAFTER).row(own)[where].clone()
                logits[[at < 0 for at in where]] = -torch.inf
                row = {token_id: q for token_id, _, _, q, _, _ in token.top}
                assert np.allclose([row[i] for i in range(len(OURS))], shaped(logits, params), atol=1e-6)
                assert token.id != OURS.index("e")
                own.append(where[token.id])
            text += event.emitted


def test_a_greedy_draft_goes_through_text_into_the_targets_tokens():
    """A drafter of whole words: its text "abba" is four tokens of the target, of which k are drafted."""
    words = letters(["cd", "ab", "ba", "a"])
    always = torch.full((5, 4, 4), -9.0)
    always[:, 1, 2] = always[:, 2, 1] = always[:, 0, 1] = always[:, 3, 1] = 9.0
    table = TableLM(always)  # ab and ba in turns
    sampler = Sampler(Params(temperature=0.0))
    model = make_drafter("model", sampler, 4, table)
    drafter = OtherTokenizerDrafter(model, OURS_OF, words, {0: 3}, len(OURS), CPU, True)
    text = [OURS.index(letter) for letter in "cdab"]
    drafter.start(text)
    draft = drafter.propose(text, 3, [0.5] * 3)
    assert [OURS[i] for i in draft.ids] == list("baa") and (draft.q.sum(-1) == 1).all()
    # "cdabba" now; the drafter's own tokens for it are cd, ab, ba, the last of which is new.
    text += [OURS.index(letter) for letter in "ba"]
    assert [OURS[i] for i in drafter.propose(text, 4, [0.5] * 4).ids] == list("abba")
    assert table.ids[:4] == [0, 1, 2, 1]


@pytest.mark.parametrize(("k", "ended_by"), [(2, "gamma"), (4, "confidence")])
def test_a_draft_through_text_that_is_long_enough_was_not_ended_by_confidence(k, ended_by):
    """The drafter is sure of "ab", two tokens of the target, and of nothing after it."""
    words = letters(["cd", "ab", "ba", "a"])
    table = torch.full((5, 4, 4), 0.0)
    table[:, 0, 1] = 9.0
    sampler = Sampler(Params(temperature=0.0))
    model = make_drafter("model", sampler, 4, TableLM(table), confidence=CONFIDENCE)
    model.stops_below = 0.0  # as on a GPU: it makes k tokens of its own
    drafter = OtherTokenizerDrafter(model, OURS_OF, words, {0: 3}, len(OURS), CPU, True)
    params = replace(PLAIN, temperature=0.0, gamma=k, confidence=CONFIDENCE)
    prompt = [OURS.index(letter) for letter in "cd"]
    one = next(event for event in events_of(params, prompt, lambda sampler: drafter))
    assert [OURS[token.id] for token in one.draft] == ["a", "b"]
    assert one.ended_by == ended_by


def test_a_prompt_of_which_the_drafter_has_read_nothing_yet():
    """One token; and one that the drafter has not, though it is in the text."""
    for prompt in ([0], [4], [4, 4, 4]):
        for params in (PLAIN, replace(PLAIN, temperature=0.0)):
            assert sum(len(event.emitted) for event in events_of(replace(params, seed=1), prompt)) == 8


@pytest.mark.parametrize(("temperature", "penalty"), [(0.0, None), (0.9, 1.2)])
def test_what_the_drafters_model_lacks_is_left_out_of_its_text(temperature, penalty):
    """Its tokenizer has "e", and its table has not."""
    words = letters(THEIRS + "e")
    params = replace(PLAIN, temperature=temperature, repetition_penalty=penalty, seed=5, max_new_tokens=20)

    def lacking(sampler):
        drafter = other(sampler)
        return OtherTokenizerDrafter(
            drafter.drafter, OURS_OF, words, SHARED, len(OURS), CPU, drafter.through_text
        )

    sampler = Sampler(params)
    drafter = lacking(sampler)
    text, drafted = list(PROMPT), 0
    for event in decoding(TableLM(TARGET), drafter, params, PROMPT, sampler=sampler):
        if isinstance(event, Round):
            own = [THEIRS.index(OURS[token_id]) for token_id in text if OURS[token_id] != "e"]
            assert not event.draft or drafter.drafter.lm.ids[: len(own)] == own
            text += event.emitted
            drafted += len(event.draft)
    assert OURS.index("e") in text[len(PROMPT) :] and drafted > 10


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_was_accepted_is_not_read_again(temperature):
    """The drafter's forwards: what it drafted and the target kept is in its cache already."""
    params = replace(PLAIN, temperature=temperature, seed=3, gamma=3, max_new_tokens=40)
    sampler = Sampler(params)
    drafter = other(sampler)
    table = drafter.drafter.lm
    for event in decoding(TableLM(TARGET), drafter, params, PROMPT, sampler=sampler):
        if isinstance(event, Round) and event.draft:
            assert min(position for position, _ in table.fed) == len(drafter.encoded.ids) - 2
        table.fed.clear()
