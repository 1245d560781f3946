"""Whether two computations of the same thing agree, and what differs where they don't: a model's logits, and
the output of a captured step. Also tries what may fail, such as a faster forward, and says why it did."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdemo.errors import is_out_of_memory, one_line
from specdemo.runtime.steps import named_tensors

# How far a graph's numbers may be from the step's. EXACT: where both are computed from the same logits.
# ROUNDED: a head's own measure of its confidence, where a model computes in 16 bits.
EXACT, ROUNDED = 1e-6, 2e-2
# How far its logits may be from the step's, in units of rounding of the largest. A graph runs the step's
# kernels on the step's shapes, so no more than the order of sums can differ. In 16 bits a sum is rounded at
# its end only.
UNITS_IN_16_BITS, UNITS_IN_MORE = 4, 100


def why_not(work: Callable[[], object]) -> str | None:
    """Does what may fail. Returns why it has failed, on one line; None if it has not. Raises what says that
    memory is out: at the next run there may be room."""
    try:
        work()
    except Exception as error:  # of transformers, of numba or of a compiler, whose next version may differ
        if is_out_of_memory(error):
            raise
        return one_line(error)
    return None


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


def disagreement(expected: object, given: object, dtypes: Sequence[torch.dtype]) -> str | None:
    """What differs in what a step says that was captured, and by how much, in a few words; None if nothing
    does. Logits may be rounded otherwise, and so may `sure`, which a head computes beside its logits; ids,
    flags and other numbers must be the same, but for EXACT. dtypes: those that the models compute in."""
    for (name, one), (_, other) in zip(named_tensors(expected), named_tensors(given), strict=True):
        if not one.is_floating_point():
            if count := int((one != other).sum()):
                return f"{name} differ in {count} of {one.numel()} places"
            continue
        if not torch.equal(one.isnan(), other.isnan()):
            return f"NaN in {name}"
        differ, allowed = apart(one, other), _allowed(name, one, dtypes)
        if (differ > allowed).any():
            return f"{name} differ by {float(differ.max()):.2g}, allowed {allowed:.2g}"
    return None


def _allowed(name: str, numbers: Tensor, dtypes: Sequence[torch.dtype]) -> float:
    """How far these numbers of a step may be apart, where models compute in these dtypes."""
    if name == "sure":
        return ROUNDED if any(torch.finfo(dtype).bits == 16 for dtype in dtypes) else EXACT
    if name != "logits":
        return EXACT
    finest = min(dtypes, key=unit_of, default=numbers.dtype)
    dtype = max(numbers.dtype, finest, key=unit_of)  # some models of 16 bits give logits of 32
    units = UNITS_IN_16_BITS if torch.finfo(dtype).bits == 16 else UNITS_IN_MORE
    return units * unit_of(dtype) * largest(numbers)


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
