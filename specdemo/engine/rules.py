"""Acceptance rules: pure functions of p, q, the drafted tokens and the uniform numbers. They generate no
random numbers and read nothing else.

A captured step has more rows than drafts: there q = 0 and u = inf, so that a rule rejects them. A rule is
lossless when the tokens that it emits are distributed as the target's own, whatever the drafter. p and q are
float32 over the vocabulary; what decides and what is recorded is taken from them in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.sampling import draw
from specdemo.events import Params

EPSILON, DELTA = 0.09, 0.3  # of typical acceptance, as Medusa sets them


@dataclass(frozen=True)
class Decision:
    """The verdict on K drafted tokens, on the device; nothing here waits for it. What is only of a tree is
    None of a chain. judged: those that the path comes to: all children of its tokens and of the text, up to
    the first one accepted of each family. by_place: the rows of the target's forward [K+1], and p [K+1, V],
    for each token and after the path. p of a judged token is what its earlier siblings have left of the
    target's, of any other the target's own."""

    accept_prob: Tensor  # [K] float64: what u is compared with
    accepted: Tensor  # [] int64: how many drafted tokens are accepted
    next: Tensor  # [] int64: the target's own token after them
    residual_mass: Tensor  # [] float64: of the residual where `next` was drawn; that of p after a full draft
    # [K] float64, of a lossy rule: the total variation distance between p and what the rule emits at a place
    # that it comes to, over all drafts and uniform numbers. A lossless rule has none.
    distance: Tensor | None = None
    judged: Tensor | None = None  # [K] bool
    on_path: Tensor | None = None  # [K] bool: the accepted ones
    masses: Tensor | None = None  # [K] float64: of the residual that each leaves, if it is refused
    refused: Tensor | None = None  # [] int64: the last one that was, after the path's last; K: there is none
    by_place: tuple[Tensor, Tensor] | None = None

    @property
    def recorded(self) -> dict[str, Tensor | None]:
        """Gives what the record of a round has of it, by the same names."""
        ordered = {"accepted": self.accepted} | vars(self)  # what differs in a graph's is told by the first
        return {name: part for name, part in ordered.items() if name not in ("next", "by_place")}


Judge = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Decision]
# p [K+1, V], q [K, V], drafted [K] (drawn from q), u_accept [K], u_next [1], both float64. K may be 0.


def speculative(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2: accept x with probability min(1,
    p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0)); with no rejection draw one more token
    from p. Lossless."""
    accept_prob = _ratio(p, q, drafted).clamp(max=1.0)
    accepted = _until_first(u_accept < accept_prob)
    p_next, q_next = _after(p, q, accepted)
    return Decision(accept_prob, accepted, *_from_residual(p_next - q_next, p_next, u_next))


def block(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", algorithm 2: judges the draft
    as a whole. Keeps the first i tokens for the largest i with u_i < h_i (`block_probs`), then draws from
    norm(max(w_i p - q, 0)). Lossless, and keeps at least as many tokens on average as `speculative`."""
    accept_prob, weight = block_probs(p, q, drafted)
    length = torch.arange(1, len(drafted) + 1, device=p.device)
    accepted = pad(length * (u_accept < accept_prob), (1, 0)).amax()
    p_next, q_next = _after(p, q, accepted)
    residual = weight[accepted[None], None].to(p.dtype) * p_next - q_next
    return Decision(accept_prob, accepted, *_from_residual(residual, p_next, u_next))


def block_probs(p: Tensor, q: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Finds h_i of block verification [K], and the weights w_i [K+1], both float64.

    w_0 = 1 and w_i = min(1, w_(i-1) p(x_i)/q(x_i)); h_i = s_i / (s_i + 1 - w_i) with s_i = sum of
    max(w_i p - q, 0) at the place after x_i. After the last draft q counts as 0, so that h is w there."""
    weights = [torch.ones(1, dtype=torch.float64, device=p.device)]
    for ratio in _ratio(p, q, drafted).split(1):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    weight = torch.cat(weights)  # [K+1]
    if not len(drafted):
        return weight[1:], weight
    after = torch.addcmul(-q[1:], p[1:-1], weight[1:-1, None].to(p.dtype))  # [K-1, V]: w_i p - q
    residual_mass = after.clamp(min=0.0).sum(-1, dtype=torch.float64)  # [K-1]
    goes_on = q[1:].gather(1, drafted[1:, None])[:, 0] > 0  # [K-1]: another draft follows
    residual_mass = torch.cat([torch.where(goes_on, residual_mass, weight[1:-1]), weight[-1:]])  # [K]
    whole = residual_mass + (1.0 - weight[1:])
    return torch.where(whole > 0, residual_mass / whole, 1.0), weight  # 0/0: p = q at the next place


def typical(p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
    """Cai et al. 2024 (Medusa): accept x if p(x) > min(epsilon, delta exp(-H(p))), H the entropy; after the
    first rejection, or the whole draft, draw from p. Lossy, but not when greedy."""
    entropy = torch.special.entr(p[:-1]).sum(-1, dtype=torch.float64)  # [K]
    threshold = (DELTA * entropy.neg().exp()).clamp(max=EPSILON)
    allowed = p[:-1] > threshold[:, None]  # [K, V]
    accept_prob = allowed.gather(1, drafted[:, None])[:, 0].double()  # [K]: 0 or 1
    accepted = _until_first(u_accept < accept_prob)
    emitted = torch.where(allowed, q, 0.0)  # [K, V]
    emitted = emitted + (1.0 - emitted.sum(-1, keepdim=True)) * p[:-1]
    p_next, _ = _after(p, q, accepted)
    next_id, mass = _from_residual(p_next, p_next, u_next)
    return Decision(accept_prob, accepted, next_id, mass, _distance(emitted, p[:-1]))


@dataclass(frozen=True)
class Lenient:
    """Leviathan et al. 2023, appendix A.5: `speculative` with `lenience` * q in place of q, so that no token
    is emitted with more than p(x)/lenience. Lossy below 1, but not when greedy."""

    lenience: float

    def __call__(self, p: Tensor, q: Tensor, drafted: Tensor, u_accept: Tensor, u_next: Tensor) -> Decision:
        accept_prob = (_ratio(p, q, drafted) / self.lenience).clamp(max=1.0)
        accepted = _until_first(u_accept < accept_prob)
        p_next, q_next = _after(p, q, accepted)
        next_id, mass = _from_residual(p_next - self.lenience * q_next, p_next, u_next)

        emitted = torch.minimum(q, p[:-1] / self.lenience)  # [K, V]: drafted and accepted
        residual = (p[:-1] - self.lenience * q).clamp(min=0.0)
        tiny = torch.finfo(residual.dtype).tiny
        resampled = residual / residual.sum(-1, keepdim=True).clamp(min=tiny)
        emitted = emitted + (1.0 - emitted.sum(-1, keepdim=True)) * resampled
        return Decision(accept_prob, accepted, next_id, mass, _distance(emitted, p[:-1]))


# The rules in events/choices.py by name: what judges in a run with these Params.
JUDGES: dict[str, Callable[[Params], Judge]] = {
    "speculative": lambda params: speculative,
    "block": lambda params: block,
    "typical": lambda params: typical,
    "lenient": lambda params: Lenient(params.lenience),
}


def rule_of(params: Params) -> Judge:
    return JUDGES[params.rule](params)


def _ratio(p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
    """Gives p(x)/q(x) of the drafted tokens: [K] float64; not a number in rows without a draft."""
    p_drafted = p[: len(drafted)].gather(1, drafted[:, None])[:, 0].double()
    return p_drafted / q.gather(1, drafted[:, None])[:, 0]


def _until_first(passed: Tensor) -> Tensor:
    """Counts those that passed before the first that did not."""
    return passed.long().cumprod(0).sum()


def _after(p: Tensor, q: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Gives p and q after the accepted drafts, each [1, V]. After a full draft q counts as 0 everywhere, so
    that the residual is p itself: the bonus is no special case."""
    p_next = p[accepted[None]]
    if not len(q):
        return p_next, torch.zeros_like(p_next)
    return p_next, q[accepted[None].clamp(max=len(q) - 1)].masked_fill(accepted == len(q), 0.0)


def _from_residual(residual: Tensor, p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draws a token from max(residual, 0), whose mass it gives, too; drawn from p where that is 0, which
    happens where p = q to the last bit, so that any draw from p is right. residual and p [1, V]."""
    residual = residual.clamp(min=0.0)
    mass = residual.sum(dtype=torch.float64)
    return draw(torch.where(mass > 0, residual, p), u)[0], mass


def _distance(emitted: Tensor, p: Tensor) -> Tensor:
    return (emitted - p).abs().sum(-1, dtype=torch.float64) / 2
