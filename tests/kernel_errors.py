"""What the tests give to kernels written in Triton, and what comes of it in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specdemo.runtime import triton_kernels
from specdemo.runtime.attention import Branches
from specdemo.runtime.decoder import Heads, RowMask, rotated

# Without a GPU they run in Triton's interpreter, which conftest.py chooses.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def round_as_a_gpu(replace: Callable[[object, str, object], None]) -> None:
    """Triton's interpreter keeps bfloat16 as bits, which it cannot make of integers, does not round to the
    nearest, and multiplies as if they were numbers; from now on it does as a GPU."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    kind = interpreter.InterpreterBuilder
    cast, dot = kind.cast_impl, kind.create_dot

    def rounded(self, source, to):
        if to.scalar != bfloat16 or source.dtype.scalar == bfloat16:
            return cast(self, source, to)
        numbers = torch.from_numpy(cast(self, source, float32).data.copy()).to(torch.bfloat16)
        return interpreter.TensorHandle(numbers.view(torch.int16).numpy().view("uint16"), to.scalar)

    def of_numbers(self, a, b, *others):
        a, b = (cast(self, each, float32) if each.dtype.scalar == bfloat16 else each for each in (a, b))
        return dot(self, a, b, *others)

    replace(kind, "cast_impl", rounded)
    replace(kind, "create_dot", of_numbers)


def int8_layer(outputs, inputs, dtype, bias=True, seed=0):
    """(weight, scale, bias) as optimum-quanto keeps them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, generator=generator)
    scale = (torch.rand(outputs, generator=generator) + 0.1) / (127 * inputs**0.5)
    added = torch.randn(outputs, generator=generator) if bias else None
    return weight.to(DEVICE), scale.to(DEVICE, dtype), None if added is None else added.to(DEVICE, dtype)


def randn(*shape, dtype=torch.float32, seed=1):
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(DEVICE, dtype)


def exact(x, weight, scale, bias=None):
    """The product in float64."""
    result = x.double() @ (weight.double() * scale.double()[:, None]).t()
    return result if bias is None else result + bias.double()


@dataclass(frozen=True)
class Attending:
    """What attention's kernels are given: random numbers, in a cache whose rows from `first` on are NaN."""

    attends: Heads
    q: Tensor  # [N, heads * d]
    k: Tensor  # [N, groups * d]
    v: Tensor
    norms: tuple[Tensor, Tensor, float] | None
    rotation_table: Tensor | None  # [C, 2, d]
    rows: Tensor  # [N]
    keys: Tensor  # [1, groups, C, d]
    values: Tensor
    branches: Branches | None


CAUSAL = RowMask()


def branches_of(parents: list[int], rows: int) -> Branches:
    """Of a forward with the last `rows` rows of a tree. parents: the row of each one's parent; -1: none."""
    size = len(parents)
    hidden = torch.ones(size, size, dtype=torch.bool)
    for row in range(size):
        at = row
        while at >= 0:
            hidden[row, at], at = False, parents[at]
    return Branches((~hidden).sum(1).to(DEVICE) - 1, hidden[-rows:].to(DEVICE))


def attending(
    heads,
    groups,
    d,
    dtype,
    n=5,
    first=700,
    capacity=1024,
    how="rotated",
    softcap=None,
    mask=CAUSAL,
    parents=None,
) -> Attending:
    """parents: as of `branches_of`, of a tree whose last n rows these are; None: they follow each other."""
    qkv = randn(n, (heads + 2 * groups) * d, dtype=dtype)
    keys, values = (randn(1, groups, capacity, d, dtype=dtype, seed=seed) for seed in (3, 4))
    for cached in (keys, values):
        cached[:, :, first:] = torch.nan
    norms = (*(randn(d, dtype=dtype, seed=seed) for seed in (5, 6)), 1e-6) if "normed" in how else None
    angles = randn(capacity, 1, d // 2, seed=7)
    rotation_table = [*[angles.cos()] * 2, -angles.sin(), angles.sin()]
    rotation_table = (
        torch.cat(rotation_table, -1).view(capacity, 2, d).to(dtype) if "rotated" in how else None
    )
    rows = torch.arange(first, first + n, device=DEVICE)
    parts = qkv.split([heads * d, groups * d, groups * d], -1)
    attends = Heads(0, heads, groups, d, 2 * d**-0.5, mask, softcap)
    branches = None if parents is None else branches_of(parents, n)
    return Attending(attends, *parts, norms, rotation_table, rows, keys, values, branches)


def attended(given: Attending) -> Tensor:
    return triton_kernels.few_rows_attention(*vars(given).values())


def attended_exactly(given: Attending) -> tuple[Tensor, Tensor, Tensor]:
    """In float64: the output [N, heads * d], and the tokens' keys and values [groups, N, d]. Queries, keys
    and values are rounded to the cache's dtype first."""
    n, groups, d = len(given.rows), given.keys.shape[1], given.keys.shape[3]
    first, position = int(given.rows[0]), torch.arange(int(given.rows[0]) + n, device=DEVICE)
    branches, attends, mask = given.branches, given.attends, given.attends.mask
    if branches is not None:
        tree = len(position) - len(branches.depths)  # where it begins
        position[tree:] = tree + branches.depths
    own = position[first:, None]

    def one(x, of):
        x = x.double().view(n, -1, d)
        if given.norms is not None:
            x = nn.functional.rms_norm(x, (d,), given.norms[of].double(), given.norms[2])
        if given.rotation_table is not None:
            cos, sin = given.rotation_table[own[:, 0]].double().split(1, 1)
            x = rotated(x, cos, sin)
        return x.to(given.keys.dtype).double()

    queries, new_keys = one(given.q, 0), one(given.k, 1).transpose(0, 1)
    new_values = given.v.double().view(n, groups, d).transpose(0, 1)
    shared = queries.shape[1] // groups
    keys = torch.cat([given.keys[0, :, :first].double(), new_keys], 1).repeat_interleave(shared, 0)
    values = torch.cat([given.values[0, :, :first].double(), new_values], 1).repeat_interleave(shared, 0)
    scores = attends.scaling * queries.transpose(0, 1) @ keys.transpose(1, 2)  # [heads, N, L]
    if attends.softcap:
        scores = attends.softcap * (scores / attends.softcap).tanh()
    hidden = position > (own[-1:] if mask.later else own)
    if branches is not None:
        hidden[:, tree:] = branches.hidden
    if mask.window:
        hidden = hidden | (position < (first - mask.window if mask.from_first else own - mask.window + 1))
    output = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    return output.transpose(0, 1).reshape(n, -1), new_keys, new_values
