"""Sampling and the verdict on a CPU as one call of compiled code each (runtime/kernels.py and verdict.py).
They are the same functions of the same values as Sampler.sample and Verifier.judge, which take ten and forty
operations of torch."""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdemo.engine.rules import (
    DELTA,
    EPSILON,
    Judge,
    Lenient,
    block,
    speculative,
    typical,
)
from specdemo.engine.step import Verifier, VerifyInput, masked
from specdemo.errors import one_line
from specdemo.runtime.lm import Drawing
from specdemo.runtime.native import address, compile_function, float32
from specdemo.runtime.steps import Packed, Placed


class CompiledVerdict:
    """Judges the drafts of one run. Raises ImportError where numba is missing."""

    def __init__(self) -> None:
        from specdemo.runtime import shaping, verdict  # import numba

        self.code, self.buckets = verdict, shaping.BUCKETS
        self._judge = compile_function(verdict.verdict_function)
        self._memory: dict[str, Tensor] = {}
        self._room_for: tuple[int, ...] = ()

    def __call__(
        self, verifier: Verifier, logits: Tensor, value: VerifyInput, experts_read: Tensor | None = None
    ) -> Packed | None:
        """What `verifier.judge` says of these; None where its rule is none of those that are compiled."""
        judging = self._judging(verifier.rule)
        if judging is None:
            return None
        rule = judging["rule"]
        rows, width = len(value.drafted), logits.shape[-1]
        alternatives, likely = min(verifier.alternatives, width), min(verifier.wants_top, width)
        layout, size = layout_of(
            rows,
            alternatives,
            likely,
            shows_block=value.parents is None and (alternatives > 0 or rule == self.code.BLOCK),
            is_lossy=rule not in (self.code.SPECULATIVE, self.code.BLOCK),
            q_exact=0 if value.q_exact is None else rows,
            experts_read=0 if experts_read is None else len(experts_read),
            of_tree=() if value.parents is None else ("parents", *(["fed"] if value.fed is not None else [])),
        )
        numbers = torch.zeros(size, dtype=torch.float64)
        copied = {"q_exact": value.q_exact, "experts_read": experts_read}
        for name, given in (copied | {"parents": value.parents, "fed": value.fed}).items():
            if given is not None:
                start = layout[name].start
                numbers[start : start + len(given)] = given
        self._make_room(rows, width, max(alternatives, likely))
        read = {
            "logits": logits.float(),
            "allowed": None if value.allowed is None else masked(logits.float(), value.allowed),
            "drafted": value.drafted,
            "q": value.q,
            "raw_q": value.raw_q,
            "parents": value.parents,
            "sure": value.sure if len(value.sure) else None,
            "seen": None if value.seen is None else value.seen.clone(),  # the verdict changes it
            **{name: value.host.parts[name] for name in ("u_accept", "eos", "biased", "bias")},
        }
        # What addresses are of is held until the call is over.
        held = {name: None if tensor is None else tensor.contiguous() for name, tensor in read.items()}
        addresses = {name: address(tensor) for name, tensor in held.items()}
        self._judge(
            self._given(verifier, judging, value, (rows, width), addresses),
            self._recorded(numbers, layout, alternatives, likely),
            self.code.Memory(**{name: part.data_ptr() for name, part in self._memory.items()}),
        )
        return Packed(numbers, layout)

    def _judging(self, rule: Judge) -> dict[str, Any] | None:
        """The fields of Given that say how it judges."""
        code = self.code
        if isinstance(rule, Lenient):
            return {"rule": code.LENIENT, "lenience": rule.lenience}
        if rule == typical:
            return {"rule": code.TYPICAL, "epsilon": EPSILON, "delta": DELTA}
        codes = ((speculative, code.SPECULATIVE), (block, code.BLOCK))
        return next(({"rule": number} for one, number in codes if rule == one), None)

    def _given(
        self,
        verifier: Verifier,
        judging: dict[str, Any],
        value: VerifyInput,
        shape: tuple[int, int],
        addresses: dict[str, int],
    ) -> tuple:
        sampler, told = verifier.sampler, value.host.parts
        number = {name: float(values[0]) for name, values in sampler.numbers.items() if values}
        return self.code.Given(
            rows=shape[0],
            width=shape[1],
            u_next=float(told["u_next"]),
            k=float(told["k"]),
            confidence=float(told["confidence"]),
            room=0.0 if value.parents is None else float(told["room"]),
            eos_count=len(told["eos"]),
            is_greedy=sampler.greedy,
            temperature=number["temperature"],
            top_k=sampler.top_k,
            top_p=number["top_p"],
            min_p=number["min_p"],
            repetition=number["repetition"],
            presence=number["presence"],
            frequency=number["frequency"],
            biased_count=sampler.biased,
            **judging,
            **addresses,
        )

    def _recorded(self, numbers: Tensor, layout: dict[str, Placed], alternatives: int, likely: int) -> tuple:
        start = numbers.data_ptr()
        places = {
            name: start + 8 * layout[name].start if layout[name].shape.numel() else 0
            for name in self.code.Recorded._fields
            if name in layout
        }
        return self.code.Recorded(**places, tokens=2 + alternatives, likely=likely)

    def _make_room(self, rows: int, width: int, likeliest: int) -> None:
        if self._room_for != (rows, width, likeliest):
            self._room_for = rows, width, likeliest
            real, whole = torch.float64, torch.int64
            self._memory = {
                "p": float32(rows + 1, width),
                "raw_p": float32(rows + 1, width),
                "row": float32(width),
                "masses": float32(width),
                "sums": torch.empty(self.buckets, dtype=real),
                "weights": torch.empty(rows + 1, dtype=real),
                "probs": torch.empty(rows, dtype=real),
                "p_of": torch.empty(rows + 1, dtype=whole),
                "raw_p_of": torch.empty(rows + 1, dtype=whole),
                "depths": torch.empty(rows, dtype=whole),
                "left": float32(rows, width),
                "ids": torch.empty(likeliest, dtype=whole),
                "found": float32(likeliest),
            }


@cache
def layout_of(
    rows: int,
    alternatives: int,
    likely: int,
    *,
    shows_block: bool,
    is_lossy: bool,
    q_exact: int,
    experts_read: int,
    of_tree: tuple[str, ...],
) -> tuple[dict[str, Placed], int]:
    """Where each field of step.Verified stands among its numbers, and how many numbers these are."""
    real, single, whole = torch.float64, torch.float32, torch.int64
    tokens = 2 + alternatives
    fields = {
        "accepted": ((), whole),
        "k": ((), real),
        "u_next": ((), real),
        "residual_mass": ((), real),
        "accept_prob": ((rows,), real),
        "block_prob": ((rows * shows_block,), real),
        "distance": ((rows * is_lossy,), real),
        "u_accept": ((rows,), real),
        "token_ids": ((rows + 1, tokens), whole),
        "p": ((rows + 1, tokens), single),
        "q": ((rows, tokens), single),
        "raw_p": ((rows + 1, tokens), single),
        "raw_q": ((rows, tokens), single),
        "likely_ids": ((rows + 1, likely), whole),
        "likely_p": ((rows + 1, likely), single),
        "p_exact": ((0,), torch.bool),  # it always is: a nucleus is looked for among all tokens
        "q_exact": ((q_exact,), torch.bool),
        "experts_read": ((experts_read,), real),
    }
    if of_tree:
        fields |= dict.fromkeys(of_tree, ((rows,), whole))
        fields |= dict.fromkeys(("judged", "on_path"), ((rows,), torch.bool))
        fields |= {"masses": ((rows,), real), "refused": ((), whole)}
    layout, end = {}, 0
    for name, (shape, dtype) in fields.items():
        layout[name] = Placed(end, torch.Size(shape), dtype)
        end += layout[name].shape.numel()
    return layout, end


class CompiledSampling:
    """Draws tokens in one run. Raises ImportError where numba is missing."""

    def __init__(self) -> None:
        from specdemo.runtime import kernels, shaping  # import numba

        self._sample = compile_function(kernels.sampling_function)
        self._sums = torch.empty(shaping.BUCKETS, dtype=torch.float64)
        self._rows = float32(2, 0)

    def __call__(self, logits: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None]:
        """logits [N, V] -> the tokens [N], and what they are drawn from [N, V]; None where that is
        one-hot."""
        rows, width = logits.shape
        if self._rows.shape[1] != width:
            self._rows = float32(2, width)
        logits, tokens = logits.float().contiguous(), torch.empty(rows, dtype=torch.long)
        probs = None if drawing.is_greedy else float32(rows, width)
        memory = (*map(address, self._rows), address(self._sums))
        given = (
            address(drawing.numbers),
            address(drawing.seen),
            address(logits),
            rows,
            width,
            address(drawing.u),
        )
        self._sample.ctypes(*given, address(tokens), address(probs), *memory)
        return tokens, probs


class Compiled(NamedTuple):
    """What judges and draws in a run; None: operations of torch do."""

    verdict: CompiledVerdict | None = None
    sampling: CompiledSampling | None = None


_fault: str | None = None


def compiled() -> Compiled:
    """What judges and draws on a CPU. Where it cannot be compiled, `fault` says why."""
    global _fault
    if _fault is None:
        try:
            return Compiled(CompiledVerdict(), CompiledSampling())
        except Exception as error:  # of numba, among others
            _fault = one_line(error)
    return Compiled()


def fault() -> str | None:
    """Why nothing was compiled, if it was to be."""
    return _fault
