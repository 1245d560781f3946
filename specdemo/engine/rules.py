"""Acceptance rules: pure functions of p, q, the draft and the dice. They draw nothing and read nothing else.

A rule may use any test it likes; to be exact, what it emits must be distributed as the target's own tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.engine.sampling import draw


@dataclass(frozen=True)
class Decision:
    """What became of K drafted tokens. All on the device; nothing here waits for it."""

    accept_prob: Tensor  # [K] float64: accepted when coin < accept_prob, up to the first refusal
    accepted: Tensor  # [] how many of the drafts stand
    next: Tensor  # [] the target's own token behind them
    residual_mass: (
        Tensor  # [] of max(p - q, 0) at the place of `next`, before normalising; 1 where nothing was refused
    )


def speculative(p: Tensor, q: Tensor, draft: Tensor, coins: Tensor, next_u: Tensor) -> Decision:
    """Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2: accept x with min(1, p(x)/q(x)); at the first
    refusal draw from norm(max(p - q, 0)); with no refusal take one more token from p.

    p [K+1, V], q [K, V], draft [K] drawn from q, coins [K], next_u [1]; p, q and the numbers float64. K may be 0.
    """
    k = len(draft)
    p_draft = p[:k].gather(1, draft[:, None])[:, 0]  # [K]
    q_draft = q.gather(1, draft[:, None])[:, 0]  # [K]
    accept_prob = (p_draft / q_draft).clamp(max=1.0)
    accepted = (coins < accept_prob).long().cumprod(0).sum()

    # Behind a full draft q counts as 0 everywhere, and the residual is p itself: the bonus is no special case.
    q_at = torch.cat([q, torch.zeros_like(p[:1])])[accepted[None]]  # [1, V]
    p_at = p[accepted[None]]
    residual = (p_at - q_at).clamp(min=0.0)
    mass = residual.sum()
    residual = torch.where(mass > 0, residual, p_at)  # p = q to the last bit: any draw from p is right
    return Decision(accept_prob, accepted, draw(residual, next_u)[0], mass)


RULES = {"speculative": speculative}
