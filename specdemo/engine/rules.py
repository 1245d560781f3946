"""Acceptance rules: pure functions of p, q, the drafted tokens and the uniform numbers. They generate no
random numbers and read nothing else.

A captured step has more rows than drafts: there q = 0 and u = inf, so that a rule rejects them. A rule is
lossless when the tokens that it emits are distributed as the target's own. p and q are float32 over the
vocabulary; what decides and what is recorded is taken from them in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.engine.sampling import draw


@dataclass(frozen=True)
class Decision:
    """The verdict on K drafted tokens, on the device; nothing here waits for it."""

    accept_prob: Tensor  # [K] float64: a token is accepted when u < accept_prob, up to the first rejection
    accepted: Tensor  # [] int64: how many drafted tokens are accepted
    next: Tensor  # [] int64: the target's own token after them
    residual_mass: Tensor  # [] float64: the sum of max(p - q, 0) where `next` was drawn; 1 after a full draft


Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Decision]


def speculative(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2: accept x with probability min(1,
    p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0)); with no rejection draw one more token
    from p.

    p [K+1, V], q [K, V], drafted [K] (drawn from q), u_accept [K], u_next [1], both float64. K may be 0."""
    k = len(drafted)
    p_drafted = p[:k].gather(1, drafted[:, None])[:, 0].double()  # [K]
    q_drafted = q.gather(1, drafted[:, None])[:, 0].double()  # [K]
    accept_prob = (p_drafted / q_drafted).clamp(max=1.0)
    accepted = (u_accept < accept_prob).long().cumprod(0).sum()

    # After a full draft q counts as 0 everywhere, and the residual is p itself: the bonus is no special case.
    p_next = p[accepted[None]]  # [1, V]
    q_next = torch.zeros_like(p_next)  # [1, V]
    if k:
        q_next = q[accepted[None].clamp(max=k - 1)].masked_fill(accepted == k, 0.0)
    residual = (p_next - q_next).clamp(min=0.0)
    mass = residual.sum(dtype=torch.float64)
    residual = torch.where(mass > 0, residual, p_next)  # p = q to the last bit: any draw from p is right
    return Decision(accept_prob, accepted, draw(residual, u_next)[0], mass)


RULES: dict[str, Rule] = {"speculative": speculative}
