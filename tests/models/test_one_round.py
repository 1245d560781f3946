"""One round alone, with a draft that somebody else has made: it is the round that the engine's own run makes
with the same draft."""

from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.session import one_round, prepare

PROMPT = "The cat sat. The cat sat. The dog ran to the cat. The cat"
SAMPLED = Params(draft_with="lookup", gamma=4, seed=5, max_new_tokens=40)
SETTINGS = {
    "greedy": replace(SAMPLED, temperature=0.0, max_new_tokens=16),
    "block, penalties": replace(SAMPLED, rule="block", repetition_penalty=1.3, frequency_penalty=0.4),
}


@pytest.fixture(scope="module")
def pair():
    return load_pair(device="cpu", dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_guessing_what_lookup_drafts_makes_the_rounds_of_the_run_with_lookup(pair, case):
    run = generate(pair, PROMPT, SETTINGS[case], measure=False)
    played = game(pair, SETTINGS[case], [[token.id for token in one.draft] for one in run.rounds])
    assert_same(played, run)
    fates = {token.fate for one in played for token in one.draft}
    assert "accepted" in fates and "rejected" in fates, "else the test shows little"


def test_the_drafters_own_round_is_that_of_its_run(pair):
    params = Params(gamma=3, temperature=0.8, seed=6, max_new_tokens=24)
    run = generate(pair, PROMPT, params, measure=False)
    assert_same(game(pair, params, [None] * len(run.rounds)), run)


def game(pair, params, drafts):
    """The rounds with these drafts, each made by itself."""
    started, rounds, text, finish = prepare(pair, PROMPT, params), [], [], None
    for index, draft in enumerate(drafts):
        assert finish is None
        one, finish = one_round(pair, started, text, index, draft)
        rounds.append(one)
        text += one.emitted
    assert finish is not None
    return rounds


def assert_same(played, run):
    assert [shape(one) for one in played] == [shape(one) for one in run.rounds]
    for mine, its in zip(played, run.rounds, strict=True):
        assert mine.index == its.index
        for field in ("p", "q", "raw_p"):
            numbers = [[getattr(token, field) for token in one.draft] for one in (mine, its)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)


def shape(one):
    """Everything that is decided by the dice, and the texts."""
    draft = [(token.id, token.text, token.fate, token.u) for token in one.draft]
    own = one.next and (one.next.id, one.next.text, one.next.source, one.next.u)
    return one.emitted, draft, own


def test_after_its_end_a_text_gets_no_round_and_nobody_who_has_left_gets_one(pair):
    started = prepare(pair, PROMPT, replace(SAMPLED, max_new_tokens=3))
    with pytest.raises(ValueError):
        one_round(pair, started, [5, 6, 7], 1, [8])
    assert one_round(pair, started, [5], 1, [8, 9, 10])[0].emitted, "the pair is free again"
    assert one_round(pair, prepare(pair, PROMPT, SAMPLED), [], 0, [5], lambda: True) is None
