"""What compiled functions are made with: numbers and records at an address, the bits of a number, its
exponential, how numba compiles them, and the product of few rows with a weight.

What limits that product on a CPU is how fast the weight is read. So a weight is read from memory once,
whatever the number of rows, and may be kept in 16 or 8 bits. Its inner part is written as LLVM's instructions
on vectors, for which numba has no Python."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numpy as np
from filelock import FileLock
from llvmlite import ir
from numba import cfunc, from_dtype, njit, types
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.registry import cpu_target
from numba.core.typing import Signature
from numba.extending import intrinsic

from specdemo.runtime.records import BYTES, FEWEST_OUTPUTS, FLOAT16, FLOAT32, INT8


def at_address(number):
    """An intrinsic that takes an address and gives the numbers of this type there."""
    pointer = types.CPointer(number)

    @intrinsic
    def numbers(typing, address):
        return pointer(types.intp), lambda context, builder, signature, arguments: builder.inttoptr(
            arguments[0], context.get_value_type(pointer)
        )

    return numbers


floats, ints = at_address(types.float32), at_address(types.int64)
bits, shorts = at_address(types.int32), at_address(types.uint16)
doubles = at_address(types.float64)


def record_at(dtype: np.dtype):
    """An intrinsic that takes the address of records of this dtype and an index, and gives one of them."""
    record = from_dtype(dtype)

    @intrinsic
    def one(typing, address, index):
        def generate(context, builder, signature, arguments):
            first = builder.inttoptr(arguments[0], context.get_value_type(record))
            return builder.gep(first, arguments[1:])

        return record(types.intp, types.intp), generate

    return one


@intrinsic
def as_float(typing, bits):
    """The float32 number of these bits."""
    return types.float32(types.int32), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], ir.FloatType()
    )


@intrinsic
def as_bits(typing, number):
    """The bits of this float32 number."""
    return types.int32(types.float32), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], ir.IntType(32)
    )


@intrinsic
def apart(typing):
    """Keeps LLVM from writing the function that calls this out at each of its calls, which takes seconds."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


# For functions that only other compiled functions call: numba makes no way in from Python.
INNER = {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
    "error_model": "numpy",  # a division by 0 raises nothing
}


class NotKept(Exception):
    """What numba has compiled is not in its cache."""


def is_cached(cache: bool | None, function: Callable, signature: Signature) -> bool:
    """Whether numba keeps what it compiles of the function. cache: None: it must have been kept before, and
    NotKept is raised where it has not."""
    if cache is None and not FunctionCache(function).load_overload(signature, cpu_target.target_context):
        raise NotKept
    return cache is not False


def entry_point(function: Callable, count: int, cache: bool | None, result: types.Type = types.void):
    """Compiles a function of `count` whole numbers that Python calls."""
    signature = result(*[types.intp] * count)
    return cfunc(signature, cache=is_cached(cache, function, signature), error_model="numpy")(function)


# Sums may be made in any order, so that they are made in vectors. NaN stays NaN.
REORDERED = {"reassoc", "contract", "nsz"}
ZERO, ONE, HALF, TWO = np.float32(0.0), np.float32(1.0), np.float32(0.5), np.float32(2.0)
LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
LEAST, MOST = np.float32(-87.0), np.float32(88.0)
# exp(x) - 1 - x in powers of x from 2 on, between -ln(2)/2 and ln(2)/2 (Cephes).
E2, E3, E4, E5, E6, E7 = (
    np.float32(c)
    for c in (
        5.0000001201e-1,
        1.6666665459e-1,
        4.1665795894e-2,
        8.3334519073e-3,
        1.3981999507e-3,
        1.9875691500e-4,
    )
)


@njit(fastmath={"contract"}, **INNER)
def exp(x):
    """The exponential of x, to some 2 units of the last place; 0 below exp(-87), and no more than exp(88)."""
    is_zero = x < LEAST
    x = LEAST if is_zero else x
    x = MOST if x > MOST else x
    k = np.int32(x * LOG2_E + (HALF if x > 0 else -HALF))
    whole = np.float32(k)
    r = x - whole * LN2_HIGH
    r = r - whole * LN2_LOW
    p = ((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2
    result = (p * r * r + r + ONE) * as_float((k + np.int32(127)) << np.int32(23))
    return ZERO if is_zero else result


COMPILE_LOCK, COMPILE_SECONDS = "specdemo.lock", 120.0  # of the folder where compiled functions are kept
COMPILED_FROM = "specdemo.sources"  # a file there
FILES = sorted(Path(__file__).parent.glob("*.py"))
SOURCES = sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()  # when this process imports them
COMPILE = """import filelock, pickle, sys
file, make, arguments = pickle.load(sys.stdin.buffer)
with filelock.FileLock(file):
    make(True, *arguments)"""
MOST_BLOCK = 8  # rows of x that are multiplied at once
AHEAD = 8192  # weights: so far ahead memory is asked for
INT, BITS, SHORT, BYTE, FLOAT = *(ir.IntType(size) for size in (64, 32, 16, 8)), ir.FloatType()


def product_function(cache: bool | None, kind: int, lanes: int, registers: int):
    """Compiles y [rows, outputs] = x [rows, inputs] @ weight [outputs, inputs].T. lanes: float32 numbers in a
    register; `inputs` must be a multiple. The rows of y are `stride` numbers apart."""
    tiles = tuple(tile_of(block, registers) for block in range(1, MOST_BLOCK + 1))

    def product(weight, x, y, outputs, inputs, stride, rows):
        blocks = max(1, (rows + MOST_BLOCK - 1) // MOST_BLOCK)
        block = (rows + blocks - 1) // blocks
        tile = tiles[block - 1]
        for output in range(0, outputs, tile):
            first = min(output, outputs - tile)  # the last tile may overlap the one before it
            ahead = first + max(tile, AHEAD // inputs)
            for b in range(blocks):
                row = min(b * block, rows - block)  # and so may the last block
                given, sums = x + 4 * row * inputs, y + 4 * (row * stride + first)
                multiply(kind, lanes, registers, block, weight, given, sums, first, inputs, stride, ahead)

    return entry_point(product, 7, cache)


def tile_of(block: int, registers: int) -> int:
    """How many outputs of so many rows are made at once: as many as let all their sums, and what they are
    made of, stay in registers."""
    tile = max(1, min(FEWEST_OUTPUTS, (registers - 2 - block) // block))
    return 1 << (tile.bit_length() - 1)


@intrinsic(prefer_literal=True)
def multiply(typing, kind, lanes, registers, block, weight, x, y, first, inputs, stride, ahead):
    """y [block, tile]: the outputs from `first` on of these rows of x, of which there are 1 to MOST_BLOCK.
    ahead: the row of the weight that is asked for meanwhile."""
    literals = (kind, lanes, registers)
    kind, lanes, registers = (given.literal_value for given in literals)
    vector, size = ir.VectorType(FLOAT, lanes), BYTES[kind]

    def generate(context, builder, signature, arguments):
        for block in range(1, MOST_BLOCK + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[3], ir.Constant(INT, block))):
                generate_block(builder, block, tile_of(block, registers), *arguments[4:])
        return context.get_dummy_value()

    def generate_block(builder, block, tile, weight, x, y, first, inputs, stride, ahead):
        signature = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fmuladd.v{lanes}f32")
        sums = [[cgutils.alloca_once(builder, vector) for _ in range(block)] for _ in range(tile)]
        for place in (place for row in sums for place in row):
            builder.store(ir.Constant(vector, [0.0] * lanes), place)
        step = ir.Constant(INT, lanes)
        with cgutils.for_range_slice(builder, ir.Constant(INT, 0), inputs, step, intp=INT) as (i, _):
            xs = [widened(builder, at(builder, x, n, inputs, i, 4), FLOAT32, lanes) for n in range(block)]
            for r in range(tile):
                fetched, row = (builder.add(start, ir.Constant(INT, r)) for start in (ahead, first))
                prefetch(builder, at(builder, weight, fetched, inputs, i, size))
                w = widened(builder, at(builder, weight, row, inputs, i, size), kind, lanes)
                for place, numbers in zip(sums[r], xs, strict=True):
                    builder.store(builder.call(multiply_add, [w, numbers, builder.load(place)]), place)
        group = min(tile, 4)  # so many sums are made at once
        for n in range(block):
            for r in range(0, tile, group):
                result = totals(builder, [builder.load(row[n]) for row in sums[r : r + group]])
                place = at(builder, y, n, stride, ir.Constant(INT, r), 4)
                builder.store(result, builder.inttoptr(place, result.type.as_pointer()), align=4)

    return types.void(*literals, *[types.intp] * 8), generate


def at(builder, base, row, columns, column, size: int):
    """The address of a number of `size` bytes in a matrix."""
    row = ir.Constant(INT, row) if isinstance(row, int) else row
    place = builder.add(builder.mul(row, columns), column)
    return builder.add(base, builder.mul(place, ir.Constant(INT, size)))


def widened(builder, address, kind: int, lanes: int):
    """The weights at the address as float32: float16 and int8 by the instructions for it, bfloat16 by a shift
    of its bits."""
    floats, bits = ir.VectorType(FLOAT, lanes), ir.VectorType(BITS, lanes)
    kept = ir.VectorType((FLOAT, SHORT, SHORT, BYTE)[kind], lanes)
    narrow = builder.load(builder.inttoptr(address, kept.as_pointer()), align=BYTES[kind])
    if kind == FLOAT32:
        return narrow
    if kind == INT8:
        return builder.sitofp(builder.sext(narrow, bits), floats)
    if kind == FLOAT16:
        return builder.fpext(builder.bitcast(narrow, ir.VectorType(ir.HalfType(), lanes)), floats)
    shift = ir.Constant(bits, [16] * lanes)
    return builder.bitcast(builder.shl(builder.zext(narrow, bits), shift), floats)


def totals(builder, vectors: list):
    """1, 2 or 4 vectors -> one vector with the sum of each. This takes fewer operations than sum by sum.

    The numbers of a vector are added in the same order whatever the count: so a row's result does not depend
    on the block that it is computed in."""
    count, lanes = len(vectors), vectors[0].type.count

    def added(a, b, low, high):
        """The numbers at `low` and those at `high`, in both vectors side by side."""
        masks = (ir.Constant(ir.VectorType(BITS, len(part)), list(part)) for part in (low, high))
        return builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks))

    def of_fours(*places):
        """The indices of these places in each four numbers, of a (0 to 3) or of b (4 to 7)."""
        return [four + i if i < 4 else lanes + four + i - 4 for four in range(0, lanes, 4) for i in places]

    if count == 1:
        (vector,) = vectors
        vector = added(vector, vector, of_fours(0, 1), of_fours(2, 3))
        vector = added(vector, vector, range(0, lanes // 2, 2), range(1, lanes // 2, 2))
    else:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        joined = [added(a, b, of_fours(0, 4, 1, 5), of_fours(2, 6, 3, 7)) for a, b in pairs]
        low, high = ((0, 1), (2, 3)) if count == 2 else ((0, 1, 4, 5), (2, 3, 6, 7))
        vector = added(joined[0], joined[-1], of_fours(*low), of_fours(*high))
    while (width := vector.type.count) > count:
        vector = added(vector, vector, range(width // 2), range(width // 2, width))
    return vector


def prefetch(builder, place) -> None:
    """Asks for the memory at this place, to be read."""
    byte, flag = BYTE.as_pointer(), BITS
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(place, byte), *(ir.Constant(flag, n) for n in (0, 3, 1))])


@cache
def compile_function(make: Callable, *arguments: object) -> Any:
    """What `make`, such as kernels.forward_function, has compiled. It is kept on disk by numba, which knows
    processors and versions; where that fails, nothing is kept."""
    with suppress(Exception):
        return _kept(make, *arguments)
    return make(False, *arguments)  # which raises what has nothing to do with the cache


def _kept(make: Callable, *arguments: object) -> Any:
    """A function from numba's cache. Another process compiles it if it is not there, since the one that
    compiles calls its inner functions as they were compiled by themselves, and those in the cache round
    differently. Where no process can be started, it is compiled here. One process compiles at a time: numba
    gives two that compile at once the same file, and the next one would call one function as if it were the
    other."""
    folder = Path(FunctionCache(exp.py_func).cache_path)
    file = str(folder / COMPILE_LOCK)
    lock = FileLock(file, timeout=COMPILE_SECONDS)
    with lock:
        kept = folder / COMPILED_FROM
        # numba looks at the file of a function, not at those of the functions that it calls.
        if not kept.exists() or kept.read_text() != SOURCES:
            _empty(folder)
            kept.write_text(SOURCES)
        try:
            return make(None, *arguments)
        except NotKept:
            pass
        except Exception:  # of files that are broken
            _empty(folder)
    with suppress(Exception):
        path = os.pathsep.join(part for part in sys.path if isinstance(part, str))
        env = os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": numba.config.CACHE_DIR}
        job, command = pickle.dumps((file, make, arguments)), [sys.executable, "-P", "-c", COMPILE]
        subprocess.run(command, input=job, env=env, timeout=COMPILE_SECONDS, check=True, capture_output=True)
    with lock:
        return make(True, *arguments)


def _empty(folder: Path) -> None:
    """Deletes what was compiled."""
    for file in folder.glob("*.nb[ic]"):
        file.unlink()
