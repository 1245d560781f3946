"""Drafts that somebody else has made, however silly: the text keeps the target's own distribution."""

from collections import Counter
from dataclasses import replace

import pytest

from specdemo.engine.drafters import Drafter
from specdemo.engine.drafters.given import GivenDrafter
from specdemo.engine.rules import speculative
from specdemo.engine.sampling import draw
from specdemo.events import METHODS, Params
from specdemo.session import BUILDERS
from tests import oracle
from tests.oracle import BROKEN, CPU, SOUND, TableLM, decoding, random_table, shaped

V, TOKENS, RUNS, FEW = 5, 3, 4_000, 600
TARGET = random_table(1, never=[4])
PLAIN = Params(gamma=3, temperature=0.7, max_new_tokens=8, alternatives=0)


class SillyGuesser(Drafter):
    """Guesses by the text alone, now and then a token that the target never writes."""

    def propose(self, ids, k, u):
        return GivenDrafter([sum(ids) % V, ids[-1], 1][: 1 + len(ids) % 3], V, CPU).propose(ids, k, u)


def exactness(params, runs, fates=None, **changes):
    def run_of(prompt, seed):
        return decoding(TableLM(TARGET), SillyGuesser(), replace(params, seed=seed), prompt, **changes)

    return oracle.exactness(
        run_of, lambda text: shaped(TableLM(TARGET).row(text), params), [[0, 1]], TOKENS, runs, (), fates
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", [{}, {"top_p": 0.8, "temperature": 1.3}, {"rule": "block"}])
def test_the_text_is_the_targets_whoever_guesses(case):
    fates = Counter()
    p = exactness(replace(PLAIN, **case), RUNS, fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "discarded", "resampled", "bonus"):
        assert fates[fate] > RUNS / 50, f"too few {fate}: the test shows little about them"


def test_a_replacement_from_p_is_found():
    def redraws_from_p(p, q, drafted, u_accept, u_next):
        decision = speculative(p, q, drafted, u_accept, u_next)
        return replace(decision, next=draw(p[decision.accepted[None]], u_next)[0])

    assert exactness(PLAIN, FEW, rule=redraws_from_p) < BROKEN


def test_greedy_accepts_exactly_the_likeliest_token():
    events = [*decoding(TableLM(TARGET), SillyGuesser(), replace(PLAIN, temperature=0.0, seed=1), [0, 1])]
    text = [0, 1]
    for one in events[1:]:
        for i, token in enumerate(one.draft):
            likeliest = TableLM(TARGET).row([*text, *(t.id for t in one.draft[:i])]).argmax().item()
            if token.fate != "discarded":
                assert (token.fate == "accepted") == (token.id == likeliest)
        text += one.emitted
    assert {token.fate for one in events[1:] for token in one.draft} >= {"accepted", "rejected"}


def test_no_setting_chooses_it():
    assert not {"given", "guess"} & (METHODS.keys() | BUILDERS.keys())
