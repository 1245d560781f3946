"""Whether a step that was captured says what the step itself says, and how far rounding may take the two
apart."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdemo.runtime.steps import named_tensors

# How far a graph's numbers may be from the step's. EXACT: where both are computed from the same logits.
# ROUNDED: a head's own measure of its confidence, where a model computes in 16 bits.
EXACT, ROUNDED = 1e-6, 2e-2
# How far logits may be apart, in units of rounding of the largest. A graph runs the step's kernels on the
# step's shapes, so no more than the order of sums can differ. In 16 bits a sum is rounded at its end only.
UNITS_IN_16_BITS, UNITS_IN_MORE = 4, 100


def confidence_tolerance(dtypes: Sequence[torch.dtype]) -> float:
    """The tolerance for a head's measure of its confidence, where models compute in these dtypes."""
    return ROUNDED if any(map(is_16_bits, dtypes)) else EXACT


def order_tolerance(logits: Tensor, dtypes: Sequence[torch.dtype]) -> float:
    """The tolerance for logits whose sums are made in another order, where models compute in these dtypes."""
    finest = min(dtypes, key=unit_of, default=logits.dtype)
    dtype = max(logits.dtype, finest, key=unit_of)  # some models of 16 bits give logits of 32
    units = UNITS_IN_16_BITS if is_16_bits(dtype) else UNITS_IN_MORE
    return units * unit_of(dtype) * float(logits.double().nan_to_num(0.0, 0.0, 0.0).abs().max())


def is_16_bits(dtype: torch.dtype) -> bool:
    return torch.finfo(dtype).bits == 16


def unit_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def disagreement(expected: object, given: object, dtypes: Sequence[torch.dtype]) -> str | None:
    """What differs, and by how much, in a few words; None if nothing does. Logits may be rounded otherwise,
    and so may `sure`, which a head computes beside its logits; ids, flags and other numbers must be the same,
    but for EXACT. dtypes: those that the models compute in."""
    for (name, one), (_, other) in zip(named_tensors(expected), named_tensors(given), strict=True):
        if not one.is_floating_point():
            if count := int((one != other).sum()):
                return f"{name} differ in {count} of {one.numel()} places"
            continue
        if not torch.equal(one.isnan(), other.isnan()):
            return f"NaN in {name}"
        differ = apart(one, other)
        if name == "logits":
            allowed = order_tolerance(one, dtypes)
        else:
            allowed = confidence_tolerance(dtypes) if name == "sure" else EXACT
        if (differ > allowed).any():
            return f"{name} differ by {float(differ.max()):.2g}, allowed {allowed:.2g}"
    return None


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far apart the numbers are, place by place. The same infinity in both, or NaN, is no difference."""
    return torch.where(one == other, 0.0, (one.double() - other.double()).abs()).nan_to_num(0.0, torch.inf)
