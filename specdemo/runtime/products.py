"""The product of few rows with a weight on a CPU. What limits it is how fast the weight is read. So a weight
is read from memory once, whatever the number of rows, and may be kept in 16 or 8 bits.

numba compiles it. Its inner part is written as LLVM's instructions on vectors, for which numba has no
Python."""

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT32, BFLOAT16, FLOAT16, INT8, KINDS = range(5)  # how a weight is kept
BYTES = (4, 2, 2, 1)  # of a number, by kind
MOST_BLOCK = 8  # rows of x that are multiplied at once
FEWEST_OUTPUTS = 8  # of a product
AHEAD = 8192  # weights: so far ahead memory is asked for
INT, BITS, SHORT, BYTE, FLOAT = *(ir.IntType(size) for size in (64, 32, 16, 8)), ir.FloatType()


def product_function(cache: bool, kind: int, block: int, lanes: int, registers: int):
    """Compiles y [B, outputs] = x [B, inputs] @ weight [outputs, inputs].T for B = `blocks` times `block`
    rows. lanes: float32 numbers in a register; `inputs` must be a multiple. The rows of y are `stride`
    numbers apart."""
    # As many outputs at once as let all their sums, and what they are made of, stay in registers.
    tile = max(1, min(FEWEST_OUTPUTS, (registers - 2 - block) // block))
    tile = 1 << (tile.bit_length() - 1)

    def product(weight, x, y, outputs, inputs, stride, blocks):
        for output in range(0, outputs, tile):
            first = min(output, outputs - tile)  # the last tile may overlap the one before it
            ahead = first + max(tile, AHEAD // inputs)
            for b in range(blocks):
                rows = x + 4 * b * block * inputs
                sums = y + 4 * (b * block * stride + first)
                multiply(kind, block, lanes, tile, weight, rows, sums, first, inputs, stride, ahead)

    return cfunc(types.void(*[types.intp] * 7), cache=cache, error_model="numpy")(product)


@intrinsic(prefer_literal=True)
def multiply(typing, kind, block, lanes, tile, weight, x, y, first, inputs, stride, ahead):
    """y [block, tile]: the outputs from `first` on of these rows of x. ahead: the row of the weight that is
    asked for meanwhile."""
    literals = (kind, block, lanes, tile)
    kind, block, lanes, tile = (given.literal_value for given in literals)
    vector, size = ir.VectorType(FLOAT, lanes), BYTES[kind]

    def generate(context, builder, signature, arguments):
        weight, x, y, first, inputs, stride, ahead = arguments[4:]
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
        return context.get_dummy_value()

    return types.void(*literals, *[types.intp] * 7), generate


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
        masks = (ir.Constant(ir.VectorType(ir.IntType(32), len(part)), list(part)) for part in (low, high))
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
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(place, byte), *(ir.Constant(flag, n) for n in (0, 3, 1))])
