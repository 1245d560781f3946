"""The verdict and the sampling that numba compiles say what those in torch say, of the same values."""

from dataclasses import replace

import pytest
import torch

from specdemo.engine.compiled import Compiled
from specdemo.engine.rules import JUDGES
from specdemo.engine.sampling import Sampler, Settings, one_hot, probabilities
from specdemo.engine.step import Verified
from specdemo.events import Params
from tests.compiled import compiled_verdict, input_of, verifier_of

B = 4
SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "multinomial": {"temperature": 0.8},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.7, "min_p": 0.01},
}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.3}
ADJUSTED = PENALTIES | {"logit_bias": {1: 2.0, 5: -3.0}}
# What else differs: in Params, and in what the verifier reads.
CASES = {
    "plain": ({}, {}),
    "adjusted": (ADJUSTED, {}),
    "no alternatives": ({"alternatives": 0}, {"wants_top": 3}),
    "an eos": ({}, {"eos": (3, 6)}),
    "confidence": ({"confidence": 0.2}, {}),
    "confidence of its own": ({"confidence": 0.2}, {"sure": torch.tensor([0.9, 0.2, 0.1, 0.9])}),
    "rows without a draft": ({}, {"k": 2}),
    "nothing drafted": (ADJUSTED, {"k": 0}),
}


def verdicts(params, rule, width, seed, wants_top=0, eos=(), **told):
    """What torch says, and what the compiled code says."""
    verifier = verifier_of(params, JUDGES[rule](params), width, wants_top, eos)
    generator = torch.Generator().manual_seed(seed)
    logits = 3.0 * torch.randn(B + 1, width, generator=generator)
    own = logits[:B] + torch.randn(B, width, generator=generator)  # the drafter's
    seen = verifier.sampler.seen([1, 5, 3, 3, 0], width, torch.device("cpu"))
    u = torch.rand(3, B, generator=generator, dtype=torch.float64)
    settings = Settings.on_host(verifier.sampler)
    drafted, q = verifier.sampler.sample(own, u[0], settings, seen)
    q = one_hot(drafted, width) if q is None else q
    value = input_of(
        verifier, drafted, q, probabilities(own), u[1].tolist(), u[2, 0].item(), seen=seen, **told
    )
    both = (
        verifier.judge(logits, value),
        replace(verifier, compiled_verdict=compiled_verdict()).judge(logits, value),
    )
    (right, ours) = ({name: place[1:] for name, place in packed.layout.items()} for packed in both)
    assert ours | {"k": right["k"]} == right
    return [Verified.of(packed) for packed in both]


def assert_says_the_same(right, ours):
    drafts = sum(u < 2 for u in right.u_accept)
    assert (ours.accepted, ours.k, ours.u_accept) == (right.accepted, right.k, right.u_accept)
    assert ours.u_next == right.u_next
    assert [row[:2] for row in ours.token_ids] == [row[:2] for row in right.token_ids]
    near = {"rel": 2e-4, "abs": 1e-7}
    assert ours.residual_mass == pytest.approx(right.residual_mass, **near)
    assert len(ours.accept_prob) == len(right.accept_prob)
    assert ours.accept_prob[:drafts] == pytest.approx(right.accept_prob[:drafts], **near)
    for name in ("p", "q", "raw_p", "raw_q", "likely_p"):
        for i, (given, own) in enumerate(zip(getattr(right, name), getattr(ours, name), strict=True)):
            assert own[:2] == pytest.approx(given[:2], **near), (name, i)
            # Equally likely alternatives may stand in another order.
            assert sorted(own[2:]) == pytest.approx(sorted(given[2:]), **near), (name, i)


@pytest.mark.parametrize("rule", ["speculative", "block"])
@pytest.mark.parametrize("name", CASES)
def test_it_says_what_torch_says(name, rule):
    changes, told = CASES[name]
    accepted = set()
    for sampler in SAMPLERS.values():
        params = Params(rule=rule, gamma=B, **sampler, **changes)
        for seed, width in enumerate((7, 97, 1000, 20_000)[: 4 if name == "plain" else 3]):
            right, ours = verdicts(params, rule, width, seed, **told)
            assert_says_the_same(right, ours)
            accepted.add(right.accepted)
    assert len(accepted) > 1 or name == "nothing drafted"


@pytest.mark.parametrize("changes", [{}, ADJUSTED], ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_it_draws_what_torch_draws(sampler, changes):
    params, compiled = Params(**SAMPLERS[sampler], **changes), Compiled().draw
    for seed, width in enumerate((7, 1000, 20_000)):
        generator = torch.Generator().manual_seed(seed)
        logits = 3.0 * torch.randn(B, width, generator=generator)
        u = torch.rand(B, generator=generator, dtype=torch.float64)
        told = []
        for by in (None, compiled):
            sampling = Sampler(params, 2, by)
            seen = sampling.seen([1, 5, 3, 3, 0], width, torch.device("cpu"))
            told.append(sampling.sample(logits, u, Settings.on_host(sampling), seen))
        (tokens, probs), (ours, own) = told
        assert ours.tolist() == tokens.tolist() and (own is None) is (probs is None)
        if own is not None:
            torch.testing.assert_close(own, probs, rtol=1e-4, atol=1e-8)


def test_logits_on_another_device_are_left_to_torch():
    """As those of a drafter on a GPU whose target is on the CPU: compiled code would read their addresses."""

    def draws(logits, drawing):
        pytest.fail("compiled code was given them")

    sampler = Sampler(Params(temperature=0.0), 0, draws)
    tokens, _ = sampler.sample(torch.zeros(2, 9, device="meta"), torch.zeros(2), Settings({}))
    assert tokens.device.type == "meta"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_noticed(temperature, broken):
    params = Params(temperature=temperature, gamma=B)
    verifier = replace(
        verifier_of(params, JUDGES["speculative"](params), 300), compiled_verdict=compiled_verdict()
    )
    drafted, logits = torch.tensor([1, 2, 3, 4]), torch.zeros(B + 1, 300)
    logits[2, 200] = broken
    q = one_hot(drafted, 300)
    value = input_of(verifier, drafted, q, q, [0.0] * B, 0.5)
    verdict = Verified.of(verifier.judge(logits, value))
    with pytest.raises(RuntimeError, match="target's probabilities are not numbers"):
        verdict.check()
