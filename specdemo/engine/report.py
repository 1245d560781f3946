"""What comes home from the device after a round: the verdict, and the numbers that the trace shows."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.rules import Decision

# Columns of the tokens at a position: the drafted one (meaningless in the last row), the round's next token
# (which counts in row `accepted` only), and the alternatives, likeliest first.
DRAFTED, NEXT, ALTERNATIVES = 0, 1, slice(2, None)


@dataclass(frozen=True)
class Verified:
    """A verified round of B rows, the first of which are drafts: tensors, on the device or on the host. Each
    of the B+1 positions has 2+A tokens, in the columns above. q and raw_q are 0 in rows without a draft."""

    k: Tensor  # [1] float64 or int64: how many rows are drafts
    accepted: Tensor  # [] int64: how many drafted tokens are accepted
    accept_prob: Tensor  # [B] float64
    block_prob: Tensor  # [B] float64: what block verification would compare u with; [0] if not recorded
    distance: Tensor  # [B] float64; [0] of a lossless rule
    u_accept: Tensor  # [B] float64; infinite in rows without a draft
    u_next: Tensor  # [1] float64
    residual_mass: Tensor  # [] float64
    p_exact: Tensor  # [B+1] bool: whether p is what the sampler asks for (see Sampler.shape)
    q_exact: Tensor  # [B] bool
    token_ids: Tensor  # [B+1, 2+A] int64
    p: Tensor  # [B+1, 2+A] float64, like the next three: float32 numbers, unrounded
    q: Tensor
    raw_p: Tensor
    raw_q: Tensor
    likely_ids: Tensor  # [B+1, F] int64: the target's likeliest tokens, for the drafter to learn from
    likely_p: Tensor  # [B+1, F] float64: their raw_p

    def likely(self, k: int) -> list[list[tuple[int, float]]]:
        """The target's likeliest (token, raw_p) at each of the k+1 positions of a draft of k tokens."""
        rows = zip(self.likely_ids[: k + 1].tolist(), self.likely_p[: k + 1].tolist(), strict=True)
        return [list(zip(token_ids, probs, strict=True)) for token_ids, probs in rows]


def gather(
    decision: Decision,
    *,
    block_prob: Tensor,  # [B] or [0]
    k: Tensor,  # [1]
    p: Tensor,  # [B+1, V]
    raw_p: Tensor,  # [B+1, V]
    p_exact: Tensor,  # [B+1]
    q_exact: Tensor,  # [B]
    drafted: Tensor,  # [B]
    q: Tensor,  # [B, V]
    raw_q: Tensor,  # [B, V]
    u_accept: Tensor,  # [B]
    u_next: Tensor,  # [1]
    alternatives: int,
    wants_top: int,
) -> Verified:
    """Gathers what the trace needs of a round's distributions, on the device."""
    rows = len(drafted)
    next_id = decision.next.expand(rows + 1, 1)
    here = torch.cat([drafted[:, None], next_id[:1]])  # [B+1, 1]; the last row has no drafted token
    token_ids = torch.cat([here, next_id, _likeliest(p, raw_p, q, raw_q, alternatives)], 1)  # [B+1, 2+A]
    likely = raw_p.topk(wants_top)  # [B+1, F]
    return Verified(
        k=k,
        accepted=decision.accepted,
        accept_prob=decision.accept_prob,
        block_prob=block_prob,
        distance=decision.accept_prob[:0] if decision.distance is None else decision.distance,
        u_accept=u_accept,
        u_next=u_next,
        residual_mass=decision.residual_mass,
        p_exact=p_exact,
        q_exact=q_exact,
        token_ids=token_ids,
        p=p.gather(1, token_ids).double(),
        q=pad(q.gather(1, token_ids[:rows]), (0, 0, 0, 1)).double(),
        raw_p=raw_p.gather(1, token_ids).double(),
        raw_q=pad(raw_q.gather(1, token_ids[:rows]), (0, 0, 0, 1)).double(),
        likely_ids=likely.indices,
        likely_p=likely.values.double(),
    )


def _likeliest(p: Tensor, raw_p: Tensor, q: Tensor, raw_q: Tensor, count: int) -> Tensor:
    """The ids [B+1, count] that are likeliest under target and drafter together. Tokens that the sampler has
    filtered out (all but one when greedy) come last, ordered by their raw probability."""
    if count == 0:
        return torch.empty(len(p), 0, dtype=torch.long, device=p.device)
    weight = torch.add(p, raw_p, alpha=1e-9)
    weight[:-1] += torch.add(q, raw_q, alpha=1e-9)
    return weight.topk(count).indices
