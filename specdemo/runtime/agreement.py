"""Whether two outputs of one step, captured and run as it is, say the same."""

from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from specdemo.runtime.values import Packed, unpacked

# How far probabilities may be apart, which are float32 whatever the model computes in. In float32 the same
# sums in another order move a logit by about 1e-6. In bfloat16 a logit between 8 and 16 moves by 2^-4 when it
# is rounded the other way, which moves a probability by a quarter of that at most; float16 by less.
EXACT, ROUNDED = 1e-6, 2e-2


def probability_tolerance(dtypes: list[torch.dtype]) -> float:
    """For models that compute in these dtypes."""
    return (
        EXACT
        if all(torch.finfo(dtype).eps <= torch.finfo(torch.float32).eps for dtype in dtypes)
        else ROUNDED
    )


def disagreement(expected: object, given: object, tolerance: float) -> str | None:
    """What differs, in a word; None if nothing does. tolerance: for probabilities. Ids and flags must be the
    same, even where two tokens are equally likely but for rounding."""
    for (name, one), (_, other) in zip(_tensors(expected), _tensors(given), strict=True):
        if one.is_floating_point():
            if bool((other.isnan() & ~one.isnan()).any()):
                return "NaN"
            is_logits = name == "logits"
            apart = _logits_tolerance(one) if is_logits else tolerance
            if not torch.isclose(other.double(), one.double(), rtol=0.0, atol=apart, equal_nan=True).all():
                return "logits" if is_logits else "probabilities"
        elif not torch.equal(one, other):
            return "ids"
    return None


def _logits_tolerance(logits: Tensor) -> float:
    """As `capture_blocker` compares logits."""
    largest = logits.double().nan_to_num(0.0, 0.0, 0.0).abs().max()
    return float(torch.finfo(logits.dtype).eps ** 0.5 * largest)


def _tensors(value: object, name: str = "") -> list[tuple[str, Tensor]]:
    """All tensors in the value with their fields' names, packed ones as what they are."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Packed):
        return [(name, tensor) for tensor in unpacked(value)]
    if is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in fields(value))
        return [pair for part_name, part in parts for pair in _tensors(part, part_name)]
    return []
