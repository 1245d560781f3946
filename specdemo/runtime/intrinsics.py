"""What compiled functions are made with: numbers at an address, the bits of a number, its exponential, and
how numba compiles a function that only other compiled functions call."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


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
