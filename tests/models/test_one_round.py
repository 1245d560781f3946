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
    "the drafter's own": Params(gamma=3, temperature=0.8, seed=6, max_new_tokens=24),
}


@pytest.fixture(scope="module")
def pair():
    return load_pair(device="cpu", dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_a_round_made_alone_is_that_of_the_run(pair, case):
    """What lookup drafts is guessed; a drafter drafts by itself."""
    run, is_guess = (
        generate(pair, PROMPT, SETTINGS[case], measure=False),
        SETTINGS[case].draft_with == "lookup",
    )
    started, text, finish = prepare(pair, PROMPT, SETTINGS[case]), [], None
    fates = {token.fate for one in run.rounds for token in one.draft}
    assert "accepted" in fates and "rejected" in fates, "else the test shows little"
    for its in run.rounds:
        assert finish is None
        guess = [token.id for token in its.draft] if is_guess else None
        mine, finish = one_round(pair, started, text, its.index, guess)
        text += mine.emitted
        assert mine.index == its.index and shape(mine) == shape(its)
        for field in ("p", "q", "raw_p"):
            numbers = [[getattr(token, field) for token in one.draft] for one in (mine, its)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)
    assert finish is not None


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
