"""Sampling and the verdict on a CPU as one call of compiled code each (runtime/kernels.py and verdict.py).
They are the same functions of the same values as Sampler.sample and Verifier.judge, which take ten and forty
operations of torch."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from specdemo.engine.rules import Judge, block, speculative
from specdemo.engine.sampling import masked
from specdemo.engine.step import Verified, Verifier, VerifyInput, VerifyNumbers
from specdemo.errors import in_short
from specdemo.runtime.lm import Drawing
from specdemo.runtime.native import address, float32, record
from specdemo.runtime.steps import Packed, Placed, table_of

# What the compiled verdict is given: the addresses of the logits [B+1, V], of what VerifyInput has (0: it is
# not there), and of its numbers; and by which rule. allowed: the logits of what the grammar allows.
READ = ("logits", *list(table_of(VerifyInput))[1:], *VerifyNumbers.__annotations__)
WHOLE = (*READ, "rows", "width", "eos_count", "biased_count", "is_greedy", "rule")
GIVEN = np.dtype([(name, "i8") for name in WHOLE])
# What it records: the fields of Verified that a chain has after a lossless rule.
OTHERS = {"distance", "masses", "fed", "parents", "judged", "on_path", "refused"}
OF_CHAIN = {name: field for name, field in table_of(Verified).items() if name not in OTHERS}
RECORDED = np.dtype([(name, "i8") for name in (*OF_CHAIN, "tokens", "likely")])


class Compiled:
    """Judges the drafts and draws the tokens of one run. Raises ImportError where numba is missing."""

    def __init__(self) -> None:
        from specdemo.runtime import intrinsics, kernels, shaping, verdict  # import numba

        memory = np.dtype([(name, "i8") for name in verdict.MEMORY])
        self._memory, self._addresses = dict[str, Tensor](), record(memory)
        self.code, self.buckets = verdict, shaping.BUCKETS
        self.rules: dict[Judge, int] = {speculative: verdict.SPECULATIVE, block: verdict.BLOCK}
        self._judge = intrinsics.compile_function(verdict.verdict_function, GIVEN, RECORDED, memory)
        self._room_for: tuple[int, ...] = ()
        self._sample = intrinsics.compile_function(kernels.sampling_function)
        self._sums, self._rows = torch.empty(shaping.BUCKETS, dtype=torch.float64), float32(2, 0)

    def draw(self, logits: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor | None]:
        """Draws tokens [N] from logits [N, V], and gives the probabilities [N, V], too; None where they are
        one-hot."""
        rows, width = logits.shape
        if self._rows.shape[1] != width:
            self._rows = float32(2, width)
        logits, tokens = logits.float().contiguous(), torch.empty(rows, dtype=torch.long)
        probs = None if drawing.is_greedy else float32(rows, width)
        memory = (*map(address, self._rows), address(self._sums))
        given = *map(address, (drawing.numbers, drawing.seen, logits)), rows, width, address(drawing.u)
        self._sample.ctypes(*given, address(tokens), address(probs), *memory)
        return tokens, probs

    def judge(self, verifier: Verifier, logits: Tensor, value: VerifyInput) -> Packed | None:
        """Gives what `verifier.judge` gives; None of a tree, and where its rule is not compiled."""
        rule = self.rules.get(verifier.rule)
        if rule is None or value.parents is not None:
            return None
        rows, width = len(value.drafted), logits.shape[-1]
        alternatives, likely = min(verifier.alternatives, width), min(verifier.wants_top, width)
        layout, size = layout_of(rows, alternatives, likely)
        numbers = torch.zeros(size, dtype=torch.float64)
        self._make_room(rows, width, max(alternatives, likely))
        logits = logits.float()
        parts = vars(value) | {"logits": logits}
        if value.allowed is not None:
            parts["allowed"] = masked(logits, value.allowed)
        if value.seen is not None:
            parts["seen"] = value.seen.clone()  # the verdict changes it
        # What addresses are of is held until the call is over.
        held = {name: part.contiguous() for name, part in parts.items() if isinstance(part, Tensor)}
        given = record(
            GIVEN,
            **held,
            **value.numbers.parts,
            rows=rows,
            width=width,
            eos_count=value.numbers.sizes["eos"],
            biased_count=value.numbers.sizes["biased"],
            is_greedy=verifier.sampler.greedy,
            rule=rule,
        )
        first = numbers.data_ptr()
        places = {name: first + 8 * place.start for name, place in layout.items()}
        recorded = record(RECORDED, **places, tokens=2 + alternatives, likely=likely)
        self._judge(given[()], recorded[()], self._addresses[()])
        return Packed(numbers, layout)

    def _make_room(self, rows: int, width: int, likeliest: int) -> None:
        room_for = (rows, width, likeliest)
        if self._room_for != room_for:
            sizes = {"rows": rows, "positions": rows + 1, "width": width, "likeliest": likeliest}
            sizes["buckets"] = self.buckets
            self._memory = {
                name: torch.empty([sizes[one] for one in shape], dtype=dtype)
                for name, (dtype, *shape) in self.code.MEMORY.items()
            }
            self._addresses = record(self._addresses.dtype, **self._memory)
            self._room_for = room_for


@cache
def layout_of(rows: int, alternatives: int, likely: int) -> tuple[dict[str, Placed], int]:
    """Says where each field of Verified stands among its numbers, and how many numbers these are."""
    sizes = {"rows": rows, "positions": rows + 1, "tokens": 2 + alternatives, "likely": likely}
    layout, end = {}, 0
    for name, (dtype, *shape) in OF_CHAIN.items():
        layout[name] = Placed(end, torch.Size([sizes[one] for one in shape]), dtype)
        end += layout[name].shape.numel()
    return layout, end


_fault: str | None = None


def compiled() -> Compiled | None:
    """Compiles what judges and draws on a CPU. Where that fails, operations of torch do, and `fault` says
    why."""
    global _fault
    if _fault is None:
        try:
            return Compiled()
        except Exception as error:  # of numba, among others
            _fault = in_short(error)
    return None


def fault() -> str | None:
    """Says why nothing was compiled, if it was to be."""
    return _fault
