"""The real engine over a table that plays the language model. Token for token it writes what a naive
reference makes of the same dice, and that has the target's own distribution in very many runs. In fewer runs
the joint distribution of the engine's own first three tokens is looked at, whoever drafts. That such a look
finds mistakes is shown in test_exact_trials.py."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from specdemo.drafters.model import ModelDrafter
from specdemo.engine.draft import Drafter, GivenDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.events import Params
from tests import oracle
from tests.compiled import compiled_verdict
from tests.oracle import (
    CPU,
    WITHOUT_MODEL,
    TableLM,
    decoding,
    enumerated,
    materials,
    naive,
    naive_block,
    naive_speculative,
    p_value,
    random_table,
    shaped,
)

V = 5
TARGET = random_table(1, never=[4])
DRAFTER = 0.6 * random_table(1) + random_table(2, never=[3])  # agrees with the target now and then
TOKENS = 3  # whose joint distribution is compared
RUNS, FEW, FULL = 400, 400, 20_000  # in the line; of broken engines; with -m long
# p-values: a right engine falls below the first once in 10^9 choices of seeds, and a broken one far below.
SOUND, BROKEN = 1e-9, 1e-12

PLAIN = Params(gamma=2, temperature=0.7, top_p=1.0, max_new_tokens=8, ngram=2, alternatives=0)
RAW = Params(temperature=1.0, top_p=1.0)
SAMPLERS = {
    "greedy": replace(PLAIN, temperature=0.0),
    "multinomial": PLAIN,
    "top-k": replace(PLAIN, temperature=1.3, top_k=3),
    "top-p": replace(PLAIN, temperature=1.3, top_p=0.8),
    "top-k with top-p": replace(PLAIN, temperature=1.6, top_k=3, top_p=0.85),
    "min-p": replace(PLAIN, temperature=1.3, min_p=0.25),
}
ADJUSTED = dict(
    repetition_penalty=1.5, presence_penalty=-0.8, frequency_penalty=0.9, logit_bias={0: -1.0, 2: 0.8}
)
# Runs that repeat, so that what drafts without a model has something to draft from the first round on.
PROMPTS = {"model": [0, 1]} | {kind: [2, 0, 1, 2, 0] for kind in WITHOUT_MODEL}
# Half of all of two tokens that the target can have written.
MANY_PROMPTS = [[a, b] for a in range(V) for b in range(V - 1) if (a + b) % 2]


def model_drafter(sampler, kind=ModelDrafter, context=math.inf, confidence=0.0):
    return kind(materials(sampler, V, TableLM(DRAFTER), context, confidence=confidence))


def exactness(params, runs, fates=None, drafter=None, **changes):
    """The p-value of so many runs over the two tables. drafter(sampler): a drafter in place of the one that
    params names. changes: as `decoding` takes them."""
    prompt = PROMPTS[params.draft_with]

    def run_of(prompt, seed):
        drafting = drafter(Sampler(params)) if drafter else TableLM(DRAFTER)
        return decoding(TableLM(TARGET), drafting, replace(params, seed=seed), prompt, **changes)

    return oracle.exactness(run_of, p_of(params, len(prompt)), [prompt], TOKENS, runs, fates=fates)


def p_of(params, prompt_tokens=0, table=TARGET):
    return lambda text: shaped(TableLM(table).row(text), params, text, prompt_tokens)


# Token for token: a difference in any text is a mistake in one of the two.

JUDGES = {"speculative": naive_speculative, "block": naive_block}
VERDICTS = {"torch": lambda: None, "compiled": compiled_verdict}  # what judges
CONFIDENCE = 0.55  # at which the drafter's table ends about half of the drafts
EOS = 2


def case(sampler="multinomial", context=math.inf, eos=(), of_drafter=None, **changes):
    """of_drafter: in which Params the drafter's sampler differs."""
    params = replace(SAMPLERS[sampler], gamma=3, max_new_tokens=12, **changes)
    return params, replace(params, **(of_drafter or {})), context, eos


CASES = {
    **{sampler: case(sampler) for sampler in SAMPLERS},
    "blocks": case(rule="block"),
    "blocks of filtered tokens": case("top-k with top-p", rule="block"),
    "an eos": case(eos=(EOS,)),
    "an eos in a block": case(eos=(EOS,), rule="block"),
    "penalties and biases": case(**ADJUSTED),
    "penalties and biases of a block": case("top-p", rule="block", **ADJUSTED),
    "penalties and biases when greedy": case("greedy", **ADJUSTED),
    "a drafter at another temperature": case(of_drafter={"temperature": 1.5}, rule="block"),
    "a drafter whose context ends": case(context=8),
    "blocks that confidence ends": case(confidence=CONFIDENCE, rule="block"),
}


def reference(prompt, seed, params, of_drafter, context, eos):
    """What the naive reference writes after a prompt, up to an eos."""

    def is_over(text):
        """Whether a draft ends here. What it ends at in a prompt is no eos."""
        ended = len(text) > len(prompt) and text[-1] in eos
        return ended or len(text) > context or p_of(RAW, table=DRAFTER)(text).max() < params.confidence

    text = naive(
        p_of(params, len(prompt)),
        p_of(of_drafter, len(prompt), DRAFTER),
        prompt,
        params.gamma,
        len(prompt) + params.max_new_tokens,
        lambda this_round, k: uniforms(seed, this_round, k),
        JUDGES[params.rule],
        is_over,
    )[len(prompt) :]
    return text[: text.index(eos[0]) + 1] if set(eos) & set(text) else text


@pytest.mark.parametrize("judge", VERDICTS)
@pytest.mark.parametrize("name", CASES)
def test_token_for_token_like_the_naive_reference(name, judge):
    """Same dice, no caches, for every path of the engine on which a model drafts."""
    params, of_drafter, context, eos = CASES[name]
    texts = set()
    for seed, prompt in enumerate(MANY_PROMPTS):
        drafter = model_drafter(
            Sampler(of_drafter, len(prompt)), context=context, confidence=params.confidence
        )
        how = {"eos": eos, "compiled": VERDICTS[judge]()}
        run = decoding(TableLM(TARGET), drafter, replace(params, seed=seed), prompt, **how)
        ids = [token_id for one in run for token_id in getattr(one, "emitted", ())]
        assert ids == reference(prompt, seed, *CASES[name])
        texts.add(tuple(ids))
    assert len(texts) >= 5


@pytest.mark.parametrize(
    ("rule", "confidence"), [("speculative", 0.0), ("block", 0.0), ("block", CONFIDENCE)]
)
def test_the_naive_reference_has_the_targets_distribution(rule, confidence):
    """In more runs than the line gives the engine."""
    texts = [[a, b] for a in range(V) for b in range(V)]
    p, q, sure = (
        {(a, b): shaped(table[a, b], params) for a, b in texts}
        for table, params in ((TARGET, PLAIN), (DRAFTER, PLAIN), (DRAFTER, RAW))
    )
    seen = Counter()
    for seed in range(FULL // 5):
        text = naive(
            lambda text: p[text[-2], text[-1]],
            lambda text: q[text[-2], text[-1]],
            [0, 1],
            3,
            2 + TOKENS + 1,
            lambda this_round, k, seed=seed: uniforms(seed, this_round, k),
            JUDGES[rule],
            lambda text: sure[text[-2], text[-1]].max() < confidence,
        )
        seen[tuple(text[2 : 2 + TOKENS])] += 1
    assert p_value(seen, enumerated(p_of(PLAIN), [0, 1], TOKENS)) > SOUND


# The engine's own distribution.


class SillyGuesser(Drafter):
    """Guesses by the text alone, now and then a token that the target never writes."""

    def __init__(self, sampler):
        pass

    def propose(self, ids, k, u):
        return GivenDrafter([sum(ids) % V, ids[-1], 1][: 1 + len(ids) % 3], V, CPU).propose(ids, k, u)


EXACT = {
    "a model": PLAIN,
    "n-grams with penalties and biases": replace(PLAIN, draft_with="ngram", **ADJUSTED),
    "a guesser": replace(PLAIN, gamma=3),
}


@pytest.mark.parametrize(
    ("runs", "judge"),
    [(RUNS, "torch"), *(pytest.param(FULL, judge, marks=pytest.mark.long) for judge in VERDICTS)],
)
@pytest.mark.parametrize("name", EXACT)
def test_the_text_has_the_targets_distribution(name, runs, judge):
    fates = Counter()
    drafter = SillyGuesser if name == "a guesser" else None
    p = exactness(EXACT[name], runs, fates, drafter=drafter, compiled=VERDICTS[judge]())
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "resampled"):
        assert fates[fate] > runs / 20, f"too few {fate}: the test shows little about them"
