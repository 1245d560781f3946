"""What can be done wrong in speculative decoding, for the lesson: each mistake takes the engine's loop and
puts a wrong part into it. No Params name them, so no run, request or trace can have one."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdemo.engine.draft import Draft, Drafter
from specdemo.engine.loop import Loop
from specdemo.engine.rules import Decision, Judge, speculative
from specdemo.engine.sampling import Sampler, draw
from specdemo.events import Params

TOLD_TEMPERATURE = 2.0  # at which a drafter tells its q that tells another than it drew from


def replaces_from_p(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """`speculative`, but a rejected draft is replaced by a draw from p, not from norm(max(p - q, 0))."""
    right = speculative(p, q, drafted, u_accept, u_next)
    p_next = p[right.accepted[None]]  # [1, V]
    return replace(right, next=draw(p_next, u_next)[0], residual_mass=p_next.sum(dtype=torch.float64))


def accepts_when_larger(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """`speculative`, but a draft is accepted when p > q and never otherwise. u decides nothing: in its place
    0 accepts what has any chance, and so inf rejects the rest; rows without a draft keep their inf."""
    p_drafted, q_drafted = (one[: len(drafted)].gather(1, drafted[:, None])[:, 0] for one in (p, q))  # [K]
    u = torch.where(p_drafted > q_drafted, u_accept * 0.0, torch.inf)
    u = torch.where(u_accept.isinf(), torch.inf, u)
    right = speculative(p, q, drafted, u, u_next)
    return replace(right, accept_prob=(p_drafted > q_drafted).double())


@dataclass(eq=False)
class Misreporting(Drafter):
    """Drafts like another drafter, but tells another q than that one drew from: `told` of its draft."""

    drafter: Drafter
    told: Callable[[Draft], Tensor]  # [B, V]

    @property
    def states(self):
        return self.drafter.states

    def keep(self, ids: list[int], path: list[int]) -> None:
        self.drafter.keep(ids, path)

    def start(self, ids: list[int]) -> None:
        self.drafter.start(ids)

    def propose(self, ids: list[int], k: int, u: list[float]) -> Draft:
        draft = self.drafter.propose(ids, k, u)
        return replace(draft, q=self.told(draft))


def _judged_by(rule: Judge) -> Callable[[Loop], Loop]:
    return lambda loop: replace(loop, verifier=replace(loop.verifier, rule=rule))


def _other_q(loop: Loop) -> Loop:
    return replace(loop, drafter=Misreporting(loop.drafter, _flattened))


def _flattened(draft: Draft) -> Tensor:
    flat = draft.q ** (1 / TOLD_TEMPERATURE)
    return flat / flat.sum(-1, keepdim=True)


def _soft_greedy(loop: Loop) -> Loop:
    """The drafts are greedy, but the verdict is by p and q at temperature 1, unfiltered."""
    soft = replace(loop.verifier, sampler=Sampler(Params(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)))
    return replace(loop, verifier=soft, drafter=Misreporting(loop.drafter, lambda draft: draft.raw_q))


# The mistakes by their names, as the page's switches have them.
MISTAKES: dict[str, Callable[[Loop], Loop]] = {
    "from_p": _judged_by(replaces_from_p),
    "told": _other_q,
    "soft": _soft_greedy,
    "likelier": _judged_by(accepts_when_larger),
}
IN_TREES = ("told", "soft")  # those that can be made where several guesses are drafted at a place
