"""The compiled verdict as a rule: a function of p, q, the drafted tokens and the uniform numbers."""

from functools import cache, partial
from types import SimpleNamespace

import torch

from specdemo.engine.compiled import Compiled
from specdemo.engine.rules import Decision
from specdemo.engine.sampling import Sampler
from specdemo.engine.step import Verified, Verifier, VerifyInput, VerifyNumbers
from specdemo.events import Params
from specdemo.runtime.steps import EagerSteps

CPU = torch.device("cpu")
compiled_verdict = cache(lambda: Compiled().judge)  # compiled when a test first needs it


def verifier_of(params, rule, width, wants_top=0, eos=()):
    target = SimpleNamespace(vocab_size=width, device=CPU)
    how = (params.gamma, params.alternatives, wants_top, eos, params.confidence)
    return Verifier(target, Sampler(params, 2), rule, EagerSteps(), *how)


def input_of(verifier, drafted, q, raw_q, u_accept, u_next, k=None, seen=None, sure=None):
    """What that verifier reads of a draft."""
    numbers = VerifyNumbers.of(
        CPU,
        position=[0],
        last=[0],
        k=[len(drafted) if k is None else k],
        confidence=[verifier.confidence],
        room=[9],
        u_next=[u_next],
        eos=verifier.eos,
        u_accept=u_accept,
        **verifier.sampler.numbers,
    )
    return VerifyInput(numbers, drafted, q, raw_q, sure=sure, seen=seen)


def compiled(rule):
    """The same rule in compiled code."""
    return partial(_judged, rule)


def _judged(rule, p, q, drafted, u_accept, u_next):
    verifier = verifier_of(Params(temperature=1.0, top_p=1.0, alternatives=0), rule, p.shape[1])
    q = q.float()
    k = int(u_accept.isfinite().sum())
    value = input_of(verifier, drafted, q, q, u_accept.tolist(), u_next.item(), k)
    verdict = Verified.of(compiled_verdict()(verifier, p.log().float(), value))
    return Decision(
        torch.tensor(verdict.accept_prob, dtype=torch.float64),
        torch.tensor(verdict.accepted),
        torch.tensor(verdict.token_ids[verdict.accepted][1]),
        torch.tensor(verdict.residual_mass, dtype=torch.float64),
    )
