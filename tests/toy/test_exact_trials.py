"""The lesson's runs of the real engine on the tiny pair: as it is, it has the target's own distribution, and
each mistake is found."""

from dataclasses import replace

import pytest

from specdemo.events import Params
from specdemo.trials import runs
from specdemo.trials.alterations import MISTAKES
from specdemo.trials.chi_square import goodness_of_fit, homogeneity, shares_of, total_variation
from specdemo.trials.runs import TINY_PROMPT, TOKENS, PairTrials, TinyTrials, enumerated_cells, tiny_params
from tests.oracle import enumerated, shaped
from tests.toy.test_exact_table import BROKEN, FEW, SOUND

SAMPLED = Params(temperature=1.0, top_p=1.0, gamma=2, seed=0)
TOP_P = Params(temperature=1.2, top_p=0.85, gamma=3, seed=0)
GREEDY = Params(temperature=0.0, seed=0)
USUAL = {"soft": GREEDY}  # the others need a sampler that leaves something to chance


def trials(params, mistake, runs, guesses=1) -> TinyTrials:
    made = TinyTrials(tiny_params(params, mistake, guesses), MISTAKES.get(mistake, lambda loop: loop))
    for _ in range(runs):
        made.run()
    assert made.seen.total() == runs
    return made


def p_value(made: TinyTrials) -> float:
    return goodness_of_fit(made.seen, made.expected).p_value


@pytest.mark.parametrize("params", [SAMPLED, TOP_P, GREEDY])
def test_the_enumerated_distribution_is_the_targets_own(params):
    pair = runs.tiny_pair()
    params = tiny_params(params)
    found = enumerated_cells(pair, params)
    exact = enumerated(
        lambda text: shaped(runs.next_logits(pair, text)[0], params), list(TINY_PROMPT), TOKENS
    )
    assert found.keys() == exact.keys()
    assert all(found[cell] == pytest.approx(exact[cell], rel=1e-4) for cell in exact)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("params", [TOP_P, replace(SAMPLED, rule="block")])
def test_the_engine_as_it_is_has_the_targets_distribution(params):
    made = trials(params, None, FEW)
    assert p_value(made) > SOUND
    assert 0.2 < made.accepted / made.judged < 0.9, "both verdicts are common"


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "is_right"), [(None, True), ("told", False)])
def test_two_guesses_at_each_place_are_exact_and_a_wrong_q_is_found(mistake, is_right):
    made = trials(SAMPLED, mistake, FEW, guesses=2)
    assert made.params.tree == (2, 2)
    assert p_value(made) > SOUND if is_right else p_value(made) < BROKEN


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake):
    made = trials(USUAL.get(mistake, SAMPLED), mistake, FEW)
    assert p_value(made) < BROKEN
    assert total_variation(shares_of(made.seen), made.expected) > 0.05
    greedy = trials(GREEDY, mistake, 30).seen
    assert len(greedy) == 1 or mistake == "soft", "greedily there is no mistake of chance"


@pytest.mark.slow
def test_drafting_on_and_off_have_the_same_distribution_and_other_uniform_numbers():
    params = Params(temperature=1.0, top_p=1.0, gamma=2, seed=0, max_new_tokens=20)
    pair = runs.tiny_pair()
    made = PairTrials(list(TINY_PROMPT), params)
    for _ in range(120):
        made.run(pair)
    made.run(pair, lambda: True)  # it is over before its end, and does not count
    assert made.drafting.total() == made.alone.total() == 120
    assert homogeneity(made.drafting, made.alone).p_value > SOUND
    assert made.drafting != made.alone and 0.3 < made.accepted / made.judged < 0.9
