"""The real engine over a table that plays the language model: the joint distribution of the first three
tokens must be the target's own, whoever drafts and however it is sampled. Broken engines must fail the very
same test."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specdemo.engine.drafters.model import ModelDrafter
from specdemo.engine.rules import Decision, block, block_probs, speculative
from specdemo.engine.sampling import Nucleus, Sampler, Uniforms, draw, uniforms
from specdemo.engine.step import Verifier
from specdemo.events import RULES, Params
from specdemo.runtime.graphs import EagerSteps
from tests import oracle
from tests.oracle import (
    BROKEN,
    CPU,
    SOUND,
    WITHOUT_MODEL,
    TableLM,
    decoding,
    enumerated,
    naive,
    naive_block,
    naive_speculative,
    random_table,
    shaped,
)

V = 5
TARGET = random_table(1, never=[4])
DRAFTER = 0.6 * random_table(1) + random_table(2, never=[3])  # agrees with the target now and then
TOKENS = 3  # whose joint distribution is compared
RUNS, FULL = 2000, 20_000  # in the line; with -m long

PLAIN = Params(gamma=2, temperature=0.7, top_p=1.0, max_new_tokens=8, ngram=2, alternatives=0)
SAMPLERS = {
    "greedy": replace(PLAIN, temperature=0.0),
    "multinomial": PLAIN,
    "top-k": replace(PLAIN, temperature=1.3, top_k=3),
    "top-p": replace(PLAIN, temperature=1.3, top_p=0.8),
    "top-k with top-p": replace(PLAIN, temperature=1.6, top_k=3, top_p=0.85),
    "min-p": replace(PLAIN, temperature=1.3, min_p=0.25),
}
# Runs that repeat, so that what drafts without a model has something to draft from the first round on.
PROMPTS = {"model": [0, 1], "none": [0, 1]} | {
    kind: [2, 0, 1, 2, 0] for kind in WITHOUT_MODEL if kind != "none"
}


def model_drafter(sampler, logits=DRAFTER, kind=ModelDrafter, context=1000):
    return kind(TableLM(logits), context, sampler, V, CPU, EagerSteps(), 4)


def exactness(params, runs, prompts=None, eos=(), fates=None, target=TableLM, drafter=None, **changes):
    """The p-value of so many runs over the two tables. target(TARGET) plays the target. drafter(sampler): a
    drafter in place of the one that params names. changes: as `decoding` takes them."""

    def run_of(prompt, seed):
        drafting = drafter(Sampler(params)) if drafter else TableLM(DRAFTER)
        return decoding(target(TARGET), drafting, replace(params, seed=seed), prompt, eos=eos, **changes)

    prompts = prompts or [PROMPTS[params.draft_with]]
    assert len({len(prompt) for prompt in prompts}) == 1
    return oracle.exactness(run_of, p_of(params, len(prompts[0])), prompts, TOKENS, runs, eos, fates)


def p_of(params, prompt_tokens=0):
    return lambda text: shaped(TableLM(TARGET).row(text), params, text, prompt_tokens)


# Greedy has one outcome per prompt, so it gets all prompts of two tokens that the target can have written.
EVERY_PROMPT = [[a, b] for a in range(V) for b in range(V - 1)]


def some_quick(values, *quick):
    """All of them, those that the quick set does without marked slow."""
    return [
        value if value in quick else pytest.param(*_listed(value), marks=pytest.mark.slow) for value in values
    ]


def _listed(value):
    return value if isinstance(value, tuple) else (value,)


def with_runs(values, quick, long):
    """Pairs of a value and a number of runs: each with RUNS, slow but for `quick`, and those in `long` again
    with FULL."""
    again = [pytest.param(value, FULL, marks=[pytest.mark.slow, pytest.mark.long]) for value in long]
    in_line = [
        pytest.param(value, RUNS, marks=() if value in quick else pytest.mark.slow) for value in values
    ]
    return in_line + again


@pytest.mark.parametrize(
    ("sampler", "runs"), with_runs(SAMPLERS, quick=["top-p"], long=["multinomial", "top-k with top-p"])
)
def test_every_sampler(sampler, runs):
    fates = Counter()
    p = exactness(SAMPLERS[sampler], runs, EVERY_PROMPT if sampler == "greedy" else None, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "discarded", "resampled", "bonus"):
        assert fates[fate] > runs / 20, f"too few {fate}: the test shows little about them"


@pytest.mark.parametrize("kind", some_quick(["model", "lookup", "none"], "model"))
@pytest.mark.parametrize("rule", some_quick(["speculative", "block"], "speculative"))
def test_with_a_repetition_penalty(kind, rule):
    """At each row it is of the text and of the drafts before."""
    params = replace(SAMPLERS["top-p"], draft_with=kind, rule=rule, repetition_penalty=1.8)
    assert exactness(params, RUNS) > SOUND
    without = oracle.exactness(
        lambda prompt, seed: decoding(TableLM(TARGET), TableLM(DRAFTER), replace(params, seed=seed), prompt),
        p_of(replace(params, repetition_penalty=1.0)),
        [PROMPTS[kind]],
        TOKENS,
        RUNS,
    )
    assert without < BROKEN, "it makes a difference here"


ADJUSTED = {
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": 0.9},
    "bias": {"logit_bias": {1: 1.5, 3: -1.0}},
    "all": {
        "repetition_penalty": 1.5,
        "presence_penalty": -0.8,
        "frequency_penalty": 0.9,
        "logit_bias": {0: -1.0, 2: 0.8},
    },
}


ADJUSTED_RUNS = [
    ("all", "model", "speculative", "multinomial"),
    ("all", "lookup", "block", "multinomial"),
    ("all", "model", "speculative", "greedy"),
    ("presence", "model", "block", "top-p"),
    ("frequency", "lookup", "speculative", "multinomial"),
    ("bias", "none", "speculative", "top-p"),
]


@pytest.mark.parametrize(("case", "kind", "rule", "sampler"), some_quick(ADJUSTED_RUNS, ADJUSTED_RUNS[0]))
def test_with_penalties_of_generated_tokens_and_a_logit_bias(case, kind, rule, sampler):
    """The prompt does not count in the first two, and holds the tokens that they would make rare."""
    params = replace(SAMPLERS[sampler], draft_with=kind, rule=rule, gamma=3, **ADJUSTED[case])
    prompts = EVERY_PROMPT if sampler == "greedy" else [PROMPTS[kind]]
    assert exactness(params, RUNS, prompts) > SOUND
    plain = p_of(replace(params, **dict.fromkeys(ADJUSTED[case], 0.0) | OFF))
    assert oracle.exactness(run_with(params), plain, prompts, TOKENS, RUNS) < BROKEN, "it makes a difference"


OFF = {"repetition_penalty": 1.0, "logit_bias": None}


def run_with(params):
    return lambda prompt, seed: decoding(
        TableLM(TARGET), TableLM(DRAFTER), replace(params, seed=seed), prompt
    )


@pytest.mark.parametrize("sampler", some_quick(["greedy", "multinomial"], "multinomial"))
@pytest.mark.parametrize(
    "adjusted",
    some_quick([{"repetition_penalty": 3.0}, {"frequency_penalty": 2.0}], {"frequency_penalty": 2.0}),
)
def test_a_penalty_that_forgets_the_drafts_before_is_found(sampler, adjusted, monkeypatch):
    monkeypatch.setattr(
        Verifier, "_seen_by_row", lambda self, drafted, seen: seen.expand(len(drafted) + 1, -1)
    )
    params = replace(SAMPLERS[sampler], gamma=3, **adjusted)
    prompts = EVERY_PROMPT if sampler == "greedy" else None
    assert exactness(params, RUNS, prompts) < BROKEN


def test_a_penalty_that_counts_the_prompt_is_found(monkeypatch):
    whole = lambda params, prompt_tokens=0: Sampler(params)  # noqa: E731
    monkeypatch.setattr(oracle, "Sampler", whole)
    params = replace(PLAIN, gamma=3, frequency_penalty=1.5, presence_penalty=0.5)
    assert exactness(params, RUNS) < BROKEN


def test_a_bias_of_q_alone_changes_nothing_and_one_of_p_alone_is_found(monkeypatch):
    """The text is p's: a drafter may be biased otherwise."""
    params = replace(PLAIN, gamma=3, logit_bias={1: 1.5, 3: -1.0})
    without = Sampler(replace(params, logit_bias=None))
    assert exactness(params, RUNS, drafter=lambda _: model_drafter(without)) > SOUND
    assert exactness(params, RUNS, drafter=lambda own: model_drafter(own), sampler=without) < BROKEN


@pytest.mark.parametrize(("kind", "runs"), with_runs(WITHOUT_MODEL, quick=["lookup"], long=["ngram"]))
def test_every_drafter(kind, runs):
    fates = Counter()
    p = exactness(replace(PLAIN, draft_with=kind), runs, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "resampled", "bonus") if kind != "none" else ("sampled",):
        assert fates[fate] > runs / 20, f"too few {fate}: the test shows little about them"


LOSSY = [name for name, rule in RULES.items() if not rule.lossless]
BLOCK = replace(PLAIN, rule="block", gamma=4)
BLOCKS = {
    "multinomial": BLOCK,
    "top-k with top-p": replace(SAMPLERS["top-k with top-p"], rule="block", gamma=4),
    "greedy": replace(SAMPLERS["greedy"], rule="block", gamma=4),
    "lookup": replace(BLOCK, draft_with="lookup"),
    "ngram": replace(BLOCK, draft_with="ngram"),
}


@pytest.mark.parametrize(
    ("case", "runs"), with_runs(BLOCKS, quick=["top-k with top-p"], long=["multinomial"])
)
def test_block_verification(case, runs):
    fates = Counter()
    p = exactness(BLOCKS[case], runs, EVERY_PROMPT if case == "greedy" else None, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    assert min(fates[fate] for fate in ("accepted", "rejected", "resampled")) > runs / 20


@pytest.mark.slow
def test_block_verification_with_an_eos():
    """Texts that end inside a draft: what follows the eos is no part of the block."""
    fates = Counter()
    assert exactness(BLOCK, RUNS, eos=[2], fates=fates) > SOUND
    assert fates["ended in the draft"] > RUNS / 20


@pytest.mark.parametrize("rule", some_quick(LOSSY, "lenient"))
def test_a_lossy_rule_is_seen_to_be_lossy(rule):
    p = exactness(replace(PLAIN, rule=rule, lenience=0.3), FEW)
    assert p < BROKEN, f"chi-square p = {p:.2g}"


def test_the_filters_filter():
    """Else the samplers above would all be the same test."""
    possible = {
        name: len(enumerated(lambda t, s=s: shaped(TableLM(TARGET).row(t), s), [0, 1], TOKENS))
        for name, s in SAMPLERS.items()
    }
    assert possible["greedy"] == 1
    assert possible["multinomial"] == 4**TOKENS
    assert all(1 < possible[name] <= 3**TOKENS for name in ("top-k", "top-k with top-p"))
    assert possible["top-k with top-p"] < possible["top-k"]
    assert all(1 < possible[name] < 4**TOKENS for name in ("top-p", "min-p"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 8], ids=["narrower", "wider"])
def test_a_drafter_of_another_width(width, runs=RUNS):
    logits = random_table(3, V, width)
    if (
        width > V
    ):  # what the drafter thinks of tokens that it has alone must not matter, however likely they are
        logits = torch.cat([logits[:, :, :V], logits[:, :, V:] + 5], -1)
    fates = Counter()
    p = exactness(PLAIN, runs, drafter=lambda sampler: model_drafter(sampler, logits), fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    assert min(fates["accepted"], fates["rejected"], fates["bonus"]) > runs / 20


@pytest.mark.slow
def test_with_an_eos_and_a_longer_draft():
    """Texts of fewer than three tokens are outcomes, too."""
    fates = Counter()
    params = replace(PLAIN, gamma=3)
    assert exactness(params, RUNS, eos=[2], fates=fates) > SOUND
    assert fates["ended in the draft"] > RUNS / 20


def test_with_a_length_limit_that_shortens_the_drafts():
    assert exactness(replace(PLAIN, gamma=4, max_new_tokens=TOKENS), RUNS) > SOUND


def test_a_drafter_whose_context_ends_inside_the_text():
    fates = Counter()
    p = exactness(PLAIN, RUNS, drafter=lambda sampler: model_drafter(sampler, context=3), fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    assert fates["sampled"] > RUNS / 20 and fates["accepted"] > RUNS / 20


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["top-p", "top-k with top-p"])
def test_a_drafter_whose_nucleus_is_cut(monkeypatch, sampler):
    """In the first rounds the drafter's q is a part of its nucleus only, until the sampler looks at more
    tokens."""
    monkeypatch.setattr(Nucleus, "WIDTHS", (1,))
    fates = Counter()
    assert exactness(SAMPLERS[sampler], RUNS, fates=fates) > SOUND
    assert min(fates["accepted"], fates["rejected"], fates["bonus"]) > RUNS / 20


# Broken engines: each has one mistake that people really make.

FEW = 600  # runs: enough to show most of them


def redraws_from_p(p, q, drafted, u_accept, u_next):
    """After a rejection from p, not from the residual."""
    decision = speculative(p, q, drafted, u_accept, u_next)
    return replace(decision, next=draw(p[decision.accepted[None]], u_next)[0])


def accepts_the_likelier(p, q, drafted, u_accept, u_next):
    """Keeps a draft when the target likes it at least half as well as the drafter."""
    half = torch.full_like(u_accept, 0.5)
    return speculative(p, q, drafted, half, u_next)


def argmax_after_soft_verdicts(p, q, drafted, u_accept, u_next):
    """Judges by p/q, then takes the target's argmax: greedy everywhere but in the verdict."""
    decision = speculative(p, q, drafted, u_accept, u_next)
    return Decision(
        decision.accept_prob, decision.accepted, p[decision.accepted].argmax(), decision.residual_mass
    )


class RecordsRawQ(ModelDrafter):
    """Draws at the sampler's temperature, but says that it drew at temperature 1."""

    def propose(self, ids, k, u):
        draft = super().propose(ids, k, u)
        return replace(draft, q=draft.raw_q)


class NeverGoesBack(TableLM):
    """Writes after what its cache holds, whatever position it is told: refused drafts stay in its
    context."""

    def forward(self, ids, start):
        self.reserve(len(self.ids), len(self.ids) + len(ids))
        return super().forward(ids, torch.tensor(len(self.ids)))


def one_number_for_two():
    """Draws the resampled token with the number that has just rejected the draft."""

    def numbers(seed, index, k):
        u = uniforms(seed, index, k)
        return Uniforms(u.accept[0] if k else u.next, u.draft, u.accept)

    return numbers


def stops_at_the_first_failure(p, q, drafted, u_accept, u_next):
    """Block verification that keeps what comes before the first failure, not up to the last success."""
    decision = block(p, q, drafted, u_accept, u_next)
    accepted = (u_accept < decision.accept_prob).long().cumprod(0).sum()
    q_next = torch.cat([q, torch.zeros_like(q[:1])])[accepted[None]]
    weight = block_probs(p, q, drafted)[1][accepted[None], None].float()
    residual = (weight * p[accepted[None]] - q_next).clamp(min=0.0)
    return replace(decision, accepted=accepted, next=draw(residual, u_next)[0])


def broken_block():
    return exactness(BLOCK, FEW, rule=stops_at_the_first_failure)


def broken_residual():
    return exactness(PLAIN, FEW, rule=redraws_from_p)


def broken_lookup():
    return exactness(replace(PLAIN, draft_with="lookup"), FEW, rule=redraws_from_p)


def broken_temperature():
    return exactness(PLAIN, RUNS, drafter=lambda sampler: model_drafter(sampler, kind=RecordsRawQ))


def broken_greedy():
    """Drafts are argmaxes; p and q, soft."""
    soft = Sampler(replace(PLAIN, temperature=1.0))
    changes = {
        "drafter": lambda sampler: model_drafter(sampler, kind=RecordsRawQ),
        "sampler": soft,
        "rule": argmax_after_soft_verdicts,
    }
    return exactness(SAMPLERS["greedy"], FEW, EVERY_PROMPT, **changes)


def broken_threshold():
    return exactness(PLAIN, FEW, rule=accepts_the_likelier)


def broken_filter():
    """The drafter filters, the target does not."""
    return exactness(SAMPLERS["top-k"], FEW, sampler=Sampler(replace(SAMPLERS["top-k"], top_k=0)))


def broken_position():
    return exactness(PLAIN, FEW, target=NeverGoesBack)


def broken_uniforms():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdemo.engine.loop.uniforms", one_number_for_two())
        return exactness(PLAIN, FEW)


BROKEN_ENGINES = [
    broken_residual,
    broken_block,
    broken_lookup,
    broken_temperature,
    broken_greedy,
    broken_threshold,
    broken_filter,
    broken_position,
    broken_uniforms,
]


@pytest.mark.parametrize("broken", some_quick(BROKEN_ENGINES, broken_residual, broken_greedy))
def test_a_broken_engine_fails(broken):
    p = broken()
    assert p < BROKEN, f"the test does not notice it: p = {p:.2g}"


JUDGES = {"speculative": naive_speculative, "block": naive_block}


@pytest.mark.parametrize("rule", JUDGES)
@pytest.mark.parametrize("sampler", some_quick(SAMPLERS, "top-p"))
def test_token_for_token_like_the_naive_reference(sampler, rule):
    """Same dice, no caches: a difference in any of 100 texts of 12 tokens is a mistake in one of the two."""
    params = replace(SAMPLERS[sampler], rule=rule, gamma=3, max_new_tokens=12)
    texts = set()
    for seed in range(100):
        prompt = EVERY_PROMPT[seed % len(EVERY_PROMPT)]
        target, drafter = TableLM(TARGET), TableLM(DRAFTER)
        ids = list(prompt)
        for event in decoding(target, drafter, replace(params, seed=seed), prompt):
            ids += getattr(event, "emitted", ())
        expected = naive(
            lambda text: shaped(TableLM(TARGET).row(text), params),
            lambda text: shaped(TableLM(DRAFTER).row(text), params),
            prompt,
            params.gamma,
            len(prompt) + 12,
            lambda this_round, k, seed=seed: uniforms(seed, this_round, k),
            JUDGES[rule],
        )
        assert ids == expected
        texts.add(tuple(ids))
    assert len(texts) >= len(EVERY_PROMPT)
