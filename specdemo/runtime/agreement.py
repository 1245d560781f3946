"""Whether two computations of a model's logits agree, and what differs where they don't."""

from collections.abc import Sequence

import torch
from torch import Tensor


def difference(expected: Tensor, given: Tensor, dtype: torch.dtype) -> str | None:
    """What differs in logits [N, V] by a faster way from those of a model of this dtype, as a part of a
    sentence; None where they agree. NaN is no agreement, since it would compare nothing."""
    by, explained = apart(expected, given).amax(1), logits_tolerance(expected, dtype)
    by = by.masked_fill(expected.isnan().any(1), torch.inf)
    differing = (by > explained).nonzero().flatten().tolist()
    if not differing:
        return None
    row = differing[0]
    return f"row {row + 1} of {len(by)} differs by {by[row]:.2g}, and rounding explains {explained:.2g}"


def check_alike(expected: Tensor, given: Tensor, dtype: torch.dtype, otherwise: str) -> None:
    """Raises ValueError, which says `otherwise` and by how much, if a faster way gives other logits [N, V]
    than those that are expected of a model of this dtype."""
    if different := difference(expected, given, dtype):
        raise ValueError(f"{otherwise} ({different})")


def agree(pairs: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype, mostly: bool = False) -> bool:
    """Whether both of each pair are the same logits [N, V], of a model of this dtype with a cache and without
    one. NaN in both is the same, as broken weights give it however they are computed; the first round reports
    that. mostly: whether in 16 bits half of all rows suffice, since rounding can make a router choose another
    expert."""
    differ = torch.cat([apart(*pair).amax(1) > logits_tolerance(pair[0], dtype) for pair in pairs])  # [N]
    return int(differ.sum()) <= (len(differ) // 2 if mostly and dtype != torch.float32 else 0)


def logits_tolerance(logits: Tensor, dtype: torch.dtype) -> float:
    """How far two computations of these logits by a model of this dtype may be apart."""
    return unit_of(dtype) ** 0.5 * largest(logits)


def unit_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def largest(logits: Tensor) -> float:
    """The largest of the finite numbers, by their size."""
    return float(logits.double().nan_to_num(0.0, 0.0, 0.0).abs().max())


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far apart the numbers are, place by place, in float64. NaN in both, or the same infinity, is no
    difference; NaN in one of them is an infinite one."""
    same = (one == other) | (one.isnan() & other.isnan())
    by = (one.double() - other.double()).abs().nan_to_num(torch.inf, torch.inf)
    return torch.where(same, 0.0, by)
