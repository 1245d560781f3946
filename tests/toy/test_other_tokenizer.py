"""A drafter with another tokenizer, over tables and letters: the joint distribution of the first tokens is
the target's own, and q is the drafter's over the tokens that both have."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdemo.drafters.other_tokenizer import SharedTokensDrafter
from specdemo.drafters.vocabulary import compared
from specdemo.engine.sampling import Sampler
from specdemo.events import Params, Round
from tests.oracle import TableLM, decoding, exactness, materials, random_table, shaped
from tests.toy.test_exact_table import RUNS, SOUND, TOKENS

OURS, THEIRS = "abcde", "xdcazb"  # e is the target's alone, x and z the drafter's
TARGET, DRAFTER = random_table(1), random_table(2, len(THEIRS))
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
OTHER = compared(OURS_OF, THEIRS_OF)


def other(sampler, table=DRAFTER, tokenizer=OTHER):
    given = materials(sampler, len(OURS), TableLM(table))
    return SharedTokensDrafter(replace(given, tokenizer=OURS_OF, other_tokenizer=tokenizer))


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
    """Against numpy, after the text in the drafter's own letters; those of the prompt that it lacks are its
    token 0, and others are left out."""
    where = [THEIRS.find(letter) for letter in OURS]
    for seed in range(5):
        text = list(PROMPT)
        for event in events_of(replace(params, seed=seed, alternatives=len(OURS))):
            own = THEIRS_OF("".join(OURS[token_id] for token_id in PROMPT)).input_ids
            own += [where[token_id] for token_id in text[len(PROMPT) :] if where[token_id] >= 0]
            for token in event.draft:
                logits = TableLM(DRAFTER).row(own)[where].clone()
                logits[[at < 0 for at in where]] = -torch.inf
                row = {token_id: q for token_id, _, _, q, _, _ in token.top}
                assert np.allclose([row[i] for i in range(len(OURS))], shaped(logits, params), atol=1e-6)
                assert token.id != OURS.index("e")
                own.append(where[token.id])
            text += event.emitted


def test_a_prompt_of_which_the_drafter_has_read_nothing_yet():
    """One token; and one that the drafter has not, though it is in the text."""
    for prompt in ([0], [4], [4, 4, 4]):
        for params in (PLAIN, replace(PLAIN, temperature=0.0)):
            assert sum(len(event.emitted) for event in events_of(replace(params, seed=1), prompt)) == 8


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_other_tokens_are_spelled_or_left_out_and_what_was_accepted_is_not_read_again(
    temperature,
):
    """Its tokenizer has "e", and its table has not. "db" is two tokens of its own."""
    ours, spelled = letters([*"abc", "db", "e"]), {"db": "db", "e": ""}
    tokenizer = replace(compared(ours, letters(THEIRS + "e")), known=len(THEIRS))
    del tokenizer.shared[4]
    params = replace(
        PLAIN, temperature=temperature, repetition_penalty=1.2, seed=5, gamma=3, max_new_tokens=60
    )
    sampler = Sampler(params)
    drafter = other(sampler, tokenizer=tokenizer)
    table, own, came = drafter.lm, [THEIRS.index("a")], set()
    for event in decoding(TableLM(TARGET), drafter, params, [0], sampler=sampler):
        if isinstance(event, Round):
            assert not event.draft or table.ids[: len(own)] == own
            assert not event.draft or min(position for position, _ in table.fed) >= len(own) - 3
            table.fed.clear()
            for token_id in event.emitted:
                word = ours.convert_ids_to_tokens(token_id)
                own += [THEIRS.index(letter) for letter in spelled.get(word, word)]
                came.add(word)
    assert came >= {"db", "e"}
