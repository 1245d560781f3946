"""How long a draft is: ended by the drafter's confidence, or chosen round by round. Neither may change the
target's distribution; what looks at the drafted token itself does, and must fail the same test."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from specdemo.engine.drafters import Draft, is_unsure
from specdemo.engine.drafters.model import ModelDrafter
from specdemo.engine.loop import ROW_COST, DraftLength
from specdemo.engine.sampling import Sampler, probabilities, uniforms
from specdemo.events import Params, Round
from specdemo.events.speedup import DraftingCost, expected_speedup
from specdemo.runtime.graphs import AUTO_ROWS, EagerSteps, Graphs
from tests.oracle import BROKEN, CPU, SOUND, TableLM, decoding, naive, random_table, shaped
from tests.toy.test_exact_table import (
    DRAFTER,
    EVERY_PROMPT,
    FULL,
    PLAIN,
    RUNS,
    SAMPLERS,
    TARGET,
    V,
    exactness,
    model_drafter,
)

CONFIDENCE = 0.55  # at which the drafter's table ends about half of the drafts
SURE = replace(PLAIN, gamma=3, confidence=CONFIDENCE)
AUTO = replace(PLAIN, gamma="auto")
LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    ("sampler", "runs"),
    [("multinomial", RUNS), *(pytest.param(name, FULL, marks=LONG) for name in ("multinomial", "top-p"))],
)
def test_confidence_keeps_the_distribution(sampler, runs):
    fates = Counter()
    p = exactness(replace(SAMPLERS[sampler], gamma=3, confidence=CONFIDENCE), runs, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for what in ("accepted", "rejected", "bonus", "resampled", "sampled", "ended by confidence"):
        assert fates[what] > runs / 20, f"too few {what}: the test shows little about them"


@pytest.mark.parametrize("runs", [RUNS, pytest.param(FULL, marks=LONG)])
def test_a_length_chosen_round_by_round_keeps_the_distribution(runs):
    fates = Counter()
    p = exactness(AUTO, runs, cost=DraftingCost(token=0.1), fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    chosen = [fates[f"gamma {gamma}"] for gamma in AUTO_ROWS]
    assert sum(count > runs / 50 for count in chosen) >= 2, f"always about the same length: {chosen}"


@pytest.mark.slow
@pytest.mark.parametrize("runs", [RUNS, pytest.param(FULL, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", ["speculative", "block"])
def test_both_together_keep_the_distribution(rule, runs):
    assert exactness(replace(AUTO, confidence=CONFIDENCE, rule=rule), runs) > SOUND


@pytest.mark.slow
def test_block_verification_keeps_the_distribution_of_drafts_that_were_ended():
    assert exactness(replace(SURE, rule="block"), RUNS) > SOUND


def cut(draft: Draft, k: int) -> Draft:
    return Draft(k, draft.ids[:k], draft.q[:k], draft.raw_q[:k])


class DropsUnlikelyTokens(ModelDrafter):
    """Ends a draft at the first token that was drawn with a low probability, and drops that token."""

    def propose(self, ids, k, u):
        draft = super().propose(ids, k, u)
        drawn = draft.raw_q.gather(1, draft.ids[:, None])[:, 0]
        return cut(draft, int((drawn >= CONFIDENCE).long().cumprod(0).sum()))


class ChoosesByItsOwnDraft(ModelDrafter):
    """Chooses the length of a round by what it has drafted in it."""

    def propose(self, ids, k, u):
        draft = super().propose(ids, k, u)
        return cut(draft, draft.k - 1) if draft.k and draft.ids[-1] < 2 else draft


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DropsUnlikelyTokens, ChoosesByItsOwnDraft])
def test_a_length_that_depends_on_the_token_itself_fails(kind):
    p = exactness(PLAIN, RUNS, drafter=lambda sampler: model_drafter(sampler, kind=kind))
    assert p < BROKEN, f"the test does not notice it: p = {p:.2g}"


def texts_of(p_of, q_of, text, left, gamma, ends_before, ends_after):
    """{text: probability} of all texts of `left` more tokens that speculative decoding can write, by going
    through every draft and every verdict. ends_before(q): whether the draft ends at a place; ends_after(q,
    x): whether it ends there after x was drawn, which is dropped."""
    if left <= 0:
        return {(): 1.0}
    found = Counter()

    def go_on(emitted, probability):
        new = tuple(emitted[:left])
        rest = texts_of(p_of, q_of, text + list(new), left - len(new), gamma, ends_before, ends_after)
        for more, share in rest.items():
            found[new + more] += probability * share

    def own(draft, weights, probability):
        for y in np.flatnonzero(weights):
            go_on([*draft, int(y)], probability * weights[y])

    def judged(draft, probability):
        for i, x in enumerate(draft):
            p, q = p_of(text + draft[:i]), q_of(text + draft[:i])
            accept = min(1.0, p[x] / q[x])
            residual = np.maximum(p - q, 0)
            if accept < 1:
                own(draft[:i], residual / residual.sum(), probability * (1 - accept))
            probability *= accept
        own(draft, p_of(text + draft), probability)

    def drafted(draft, probability):
        q = q_of(text + draft)
        if len(draft) == gamma or ends_before(q):
            judged(draft, probability)
            return
        for x in np.flatnonzero(q):
            if ends_after(q, x):
                judged(draft, probability * q[x])
            else:
                drafted([*draft, int(x)], probability * q[x])

    drafted([], 1.0)
    return found


def distance(**ends) -> float:
    """Between what speculative decoding writes, enumerated, and the target's distribution of two tokens."""
    never = {"ends_before": lambda q: False, "ends_after": lambda q, x: False}
    plain = replace(PLAIN, temperature=1.0)

    def p_of(text):
        return shaped(TableLM(TARGET).row(text), plain)

    def q_of(text):
        return shaped(TableLM(DRAFTER).row(text), plain)

    written = texts_of(p_of, q_of, [0, 1], 2, 2, **never | ends)
    exact = {(a, b): p_of([0, 1])[a] * p_of([0, 1, a])[b] for a in range(V) for b in range(V)}
    return sum(abs(written[text] - exact[text]) for text in exact) / 2


def test_enumerated_over_all_drafts():
    assert distance() < 1e-12
    assert distance(ends_before=lambda q: q.max() < CONFIDENCE) < 1e-12
    assert distance(ends_after=lambda q, x: q[x] < CONFIDENCE) > 0.01


def rounds_of(params, seed, run_step=None, stops=True):
    """The rounds of one run, but for their times. stops: whether the drafter ends its loop at an unsure
    place."""
    run_step = run_step or EagerSteps()
    drafter = ModelDrafter(
        TableLM(DRAFTER), 1000, Sampler(params), V, CPU, run_step, params.gamma, confidence=params.confidence
    )
    if not stops:
        drafter.stops_below = 0.0
    prompt = EVERY_PROMPT[seed % len(EVERY_PROMPT)]
    events = decoding(TableLM(TARGET), drafter, replace(params, seed=seed), prompt, run_step=run_step)
    return [replace(one, draft_ms=0, verify_ms=0) for one in events if isinstance(one, Round)]


def unmade(rounds):
    """Rounds but for how many tokens the drafter made."""
    return [replace(one, made=None) for one in rounds]


class FullRows(EagerSteps):
    """With rows as captured steps have them."""

    def rows(self, k, gamma):
        return Graphs.rows(self, k, gamma)

    blocker = None


@pytest.mark.parametrize("params", [SURE, replace(SURE, gamma="auto"), replace(SURE, temperature=0.0)])
def test_a_draft_that_is_cut_is_the_one_that_was_stopped(params):
    """On a GPU all rows are drafted, and the verifier alone decides how many of them count."""
    params = replace(params, alternatives=2, max_new_tokens=12)
    ended = Counter()
    for seed in range(60):
        stopped = rounds_of(params, seed)
        assert unmade(stopped) == unmade(rounds_of(params, seed, FullRows(), stops=False))
        ended.update(one.ended_by for one in stopped)
    assert ended["confidence"] > 30 and ended["length"] > 10


@pytest.mark.parametrize("stops", [True, False])
def test_a_round_says_how_many_tokens_the_drafter_made(stops):
    """A drafter that stops at an unsure place has made that token; one that does not has made all."""
    ended = Counter()
    for seed in range(60):
        left = SURE.max_new_tokens
        for one in rounds_of(SURE, seed, None if stops else FullRows(), stops):
            dropped = min(SURE.gamma, left - 1) - len(one.draft) if one.ended_by == "confidence" else 0
            assert one.made == len(one.draft) + (min(dropped, 1) if stops else dropped)
            ended[one.ended_by] += 1
            ended["several dropped"] += dropped > 1
            left -= len(one.emitted)
    assert all(ended[why] > 10 for why in ("confidence", "gamma", "length", "several dropped"))


def test_where_nothing_was_dropped_the_drafter_made_what_was_drafted():
    drafters = (("model", 0.0), ("model", 0.3), ("lookup", 0.9), ("none", 0.0))
    for draft_with, confidence in drafters:
        params = replace(PLAIN, draft_with=draft_with, confidence=confidence, gamma=4, max_new_tokens=30)
        for seed in range(10):
            run = decoding(
                TableLM(TARGET), TableLM(DRAFTER), replace(params, seed=seed), [2, 0, 1, 2, 0], eos=[4]
            )
            for one in run:
                if isinstance(one, Round) and one.ended_by != "confidence":
                    assert one.made == len(one.draft)


def test_a_drafter_stops_where_reading_a_number_costs_nothing():
    table, fed = TableLM(DRAFTER), []
    for confidence in (0.0, 0.999):
        drafter = ModelDrafter(table, 1000, Sampler(SURE), V, CPU, EagerSteps(), 3, confidence=confidence)
        before = table.forwards
        drafter.propose([0, 1], 3, [0.5] * 3)
        fed.append(table.forwards - before)
    assert fed == [3, 1]
    table.device = torch.device("cuda")
    assert ModelDrafter(table, 1000, Sampler(SURE), V, CPU, EagerSteps(), 3, confidence=0.5).stops_below == 0


def test_token_for_token_like_the_naive_reference():
    def is_unsure_after(text):
        return probabilities(TableLM(DRAFTER).row(text)).max() < CONFIDENCE

    for seed in range(100):
        prompt = EVERY_PROMPT[seed % len(EVERY_PROMPT)]
        expected = naive(
            lambda text: shaped(TableLM(TARGET).row(text), SURE),
            lambda text: shaped(TableLM(DRAFTER).row(text), SURE),
            prompt,
            SURE.gamma,
            len(prompt) + SURE.max_new_tokens,
            lambda this_round, k, seed=seed: uniforms(seed, this_round, k),
            is_unsure=is_unsure_after,
        )
        assert [*prompt, *(i for one in rounds_of(SURE, seed) for i in one.emitted)] == expected


def test_no_drafted_token_was_unsure_and_what_ended_a_draft_was():
    ended = 0
    for seed in range(100):
        ids = list(EVERY_PROMPT[seed % len(EVERY_PROMPT)])
        for one in rounds_of(replace(SURE, alternatives=V), seed):
            drafted = [token.id for token in one.draft]
            likeliest = [
                probabilities(TableLM(DRAFTER).row(ids + drafted[:i])).max() for i in range(len(drafted) + 1)
            ]
            assert all(probability >= CONFIDENCE for probability in likeliest[:-1])
            if one.ended_by == "confidence":
                assert likeliest[-1] < CONFIDENCE and len(drafted) < SURE.gamma
                assert one.next.source != "bonus" or drafted
                ended += 1
            ids += one.emitted
    assert ended > 50


def test_a_drafter_that_is_never_sure_leaves_plain_decoding():
    for seed in range(20):
        unsure = rounds_of(replace(SURE, confidence=0.9999), seed)
        assert {(one.ended_by, one.next.source) for one in unsure[:-1]} == {("confidence", "sampled")}
        prompt = EVERY_PROMPT[seed % len(EVERY_PROMPT)]
        alone = decoding(TableLM(TARGET), None, replace(PLAIN, draft_with="none", seed=seed), prompt)
        rounds = [one for one in alone if isinstance(one, Round)]
        assert [one.emitted for one in unsure] == [one.emitted for one in rounds]
        assert {(one.gamma, one.ended_by) for one in rounds} == {(0, None)}


@pytest.mark.parametrize("draft_with", ["lookup", "ngram"])
def test_confidence_ends_no_draft_that_has_no_distribution(draft_with):
    params = replace(PLAIN, draft_with=draft_with, seed=1, max_new_tokens=40)
    texts = []
    for confidence in (0.0, 0.99):
        run = decoding(TableLM(TARGET), None, replace(params, confidence=confidence), [2, 0, 1, 2, 0])
        texts.append([(one.emitted, one.ended_by) for one in run if isinstance(one, Round)])
    assert texts[0] == texts[1] and {"gamma", "drafter"} <= {ended_by for _, ended_by in texts[0]}


def test_broken_weights_do_not_pass_for_unsure_ones():
    table = random_table(2)
    table[...] = float("nan")
    assert not is_unsure(table[0], 0.5).any()
    with pytest.raises(RuntimeError, match="drafter's probabilities are not numbers"):
        list(decoding(TableLM(TARGET), TableLM(table), replace(SURE, seed=1), [0, 1]))


def test_an_eos_ends_a_draft():
    ended = Counter()
    for seed in range(50):
        run = decoding(TableLM(TARGET), TableLM(DRAFTER), replace(PLAIN, gamma=4, seed=seed), [0, 1], eos=[2])
        for one in run:
            if isinstance(one, Round):
                ended[one.ended_by] += 1
                assert (one.ended_by == "eos") == (bool(one.draft) and one.draft[-1].id == 2)
    assert ended["eos"] > 10 and ended["gamma"] > 10


def test_the_length_is_the_best_one_for_what_was_seen():
    length = DraftLength("auto", DraftingCost(token=0.05))
    seen = []
    for fate in ["accepted"] * 200 + ["rejected"] * 200 + ["accepted"] * 200:
        length.learn(int(fate == "accepted"), fate == "rejected")
        alpha = length.accepted / length.judged
        best = max(AUTO_ROWS, key=lambda gamma: expected_speedup(alpha, gamma, 0.05 + ROW_COST))
        assert length.gamma == best
        seen.append(length.gamma)
    assert (seen[199], seen[399], seen[599]) == (16, 1, 16)


def test_a_dearer_drafter_gets_shorter_drafts():
    lengths = [DraftLength("auto", DraftingCost(token=cost)).gamma for cost in (0.0, 0.05, 0.2, 0.8)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1] == 1


def test_a_draft_that_costs_the_same_however_long_gets_longer_ones():
    """As those that are made at once."""
    costs = (DraftingCost(token=0.2), DraftingCost(draft=0.2))
    dear, at_once = (DraftLength("auto", cost).gamma for cost in costs)
    assert dear < at_once


@pytest.mark.parametrize("longest", [1, 7, 15, 16, 31])
def test_no_length_is_longer_than_the_drafter_can_draft(longest):
    length = DraftLength("auto", DraftingCost(draft=0.05), longest)
    length.learn(200, rejected=False)
    assert length.gamma == min(longest, 16)


def test_a_given_length_stays():
    length = DraftLength(3)
    for _ in range(50):
        length.learn(1, rejected=True)
    assert length.gamma == 3


def test_a_length_depends_on_the_rounds_before_alone():
    """The same choices follow from a run's own rounds."""
    params = replace(AUTO, max_new_tokens=60)
    for seed in range(5):
        again = DraftLength("auto", DraftingCost(token=0.1))
        for one in rounds_of(params, seed):
            assert one.gamma == again.gamma and len(one.draft) <= one.gamma
            fates = [token.fate for token in one.draft]
            again.learn(fates.count("accepted"), "rejected" in fates)


@pytest.mark.parametrize("k", range(1, 17))
def test_captured_steps_have_few_sizes(k):
    rows = FullRows().rows(k, "auto")
    assert rows in AUTO_ROWS and rows >= k and all(size < k for size in AUTO_ROWS if size < rows)
    assert FullRows().rows(min(k, 4), 4) == 4 and FullRows().rows(0, "auto") == 0


def test_params_take_them():
    assert Params(gamma="auto").gamma == "auto" and Params(confidence=0).confidence == 0.0
    for field, wrong in (("gamma", "Auto"), ("gamma", 0), ("confidence", 1), ("confidence", -0.1)):
        with pytest.raises(ValueError, match=f"^{field} must be "):
            Params(**{field: wrong})
