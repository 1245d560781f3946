"""What engine.sampling does on a CPU, in functions that numba compiles: logits become probabilities, and
those a token. Numbers are given by their address, as in kernels.py, and their count."""

import math

import numpy as np
from numba import njit

from specdemo.runtime.intrinsics import INNER, ONE, REORDERED, ZERO, apart, as_bits, as_float, exp

# The bits of a number are looked at in three parts: how far each is shifted, and how many bits it has.
PARTS = ((20, 11), (10, 10), (0, 10))
BUCKETS = 2048  # numbers of memory that this takes
CHUNK = 128  # numbers that are looked at together
UNORDERED = {"nnan", "nsz"}  # the largest number may be looked for in any order, where none is NaN


@njit(fastmath=UNORDERED, **INNER)
def largest(values, count):
    """The largest of numbers, none of which is NaN."""
    apart()
    most = values[0]
    for i in range(count):
        most = values[i] if values[i] > most else most
    return most


@njit(**INNER)
def has_nan(values, count):
    apart()
    is_there = np.int32(0)
    for i in range(count):
        is_there |= np.int32(values[i] != values[i])
    return is_there != 0


@njit(**INNER)
def most_of(values, count):
    """The largest number; NaN, if one is NaN."""
    return np.float32(np.nan) if has_nan(values, count) else largest(values, count)


@njit(**INNER)
def argmax(values, count):
    """The index of the first of the largest; that of the first that is not a number, if there is one."""
    apart()
    most = most_of(values, count)
    for i in range(count):
        if values[i] == most or (most != most and values[i] != values[i]):
            return i
    return 0


@njit(**INNER)
def any_above(values, begin, end, least):
    is_there = np.int32(0)
    for i in range(begin, end):
        is_there |= np.int32(values[i] > least)
    return is_there != 0


@njit(**INNER)
def find_largest(values, count, ids, found, wanted):
    """Writes the indices of the largest numbers to ids [wanted], the largest first, of equal ones the first.
    found [wanted]: memory."""
    apart()
    for place in range(wanted):
        ids[place], found[place] = place, -np.inf
    if wanted == 0:
        return
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        if not any_above(values, begin, end, found[wanted - 1]):
            continue
        for i in range(begin, end):
            value, place = values[i], wanted
            while place > 0 and value > found[place - 1]:
                place -= 1
                if place + 1 < wanted:
                    ids[place + 1], found[place + 1] = ids[place], found[place]
            if place < wanted:
                ids[place], found[place] = i, value


@njit(fastmath=REORDERED, **INNER)
def certainty(logits, count):
    """The probability of the likeliest token, temperature 1, unfiltered."""
    apart()
    most, total = most_of(logits, count), ZERO
    for i in range(count):
        total += exp(logits[i] - most)
    return np.float64(ONE / total)


@njit(**INNER)
def add_bias(logits, biased, bias, count):
    """Adds the bias of `count` tokens, in place."""
    for i in range(count):
        logits[int(biased[i])] += np.float32(bias[i])


@njit(**INNER)
def penalise(logits, seen, count, repetition, presence, frequency):
    """Applies the penalties, in place, as Sampler does. seen: that of Sampler.seen."""
    apart()
    factor, once, each = np.float32(repetition), np.float32(presence), np.float32(frequency)
    for i in range(count):
        logit, times = logits[i], np.floor(seen[i])
        if seen[i] > ZERO:
            logit = logit * factor if logit < ZERO else logit / factor
        logits[i] = logit - (each * times + (once if times > ZERO else ZERO))


@njit(**INNER)
def heat(logits, probs, count, temperature):
    """Makes `probs` the logits at this temperature, the largest of which becomes 0."""
    apart()
    most = most_of(logits, count)
    for i in range(count):
        probs[i] = (logits[i] - most) / temperature


@njit(**INNER)
def drop_below(logits, count, least):
    apart()
    for i in range(count):
        logits[i] = -np.inf if logits[i] < least else logits[i]


@njit(**INNER)
def edge_of(logits, masses, sums, count, target):
    """Adds up masses from the likeliest token on. Returns the logit at which their sum reaches `target`, or
    the last one, and the sum before it. No logit is above 0. sums [BUCKETS]: memory.

    Nothing is sorted: the bits of -logit are in the order of the tokens, so the sums are looked up by the
    first bits, then by the next ones of the numbers that share these."""
    apart()
    known, before = 0, 0.0
    for shift, width in PARTS:
        for bucket in range(1 << width):
            sums[bucket] = 0.0
        for i in range(count):
            place = int(as_bits(ZERO - logits[i])) & 0x7FFFFFFF
            if place >> (shift + width) == known:
                sums[(place >> shift) & ((1 << width) - 1)] += masses[i]
        reached, edge = before, 0
        for bucket in range(1 << width):
            if sums[bucket] > 0:
                edge, before = bucket, reached
                reached += sums[bucket]
                if reached >= target:
                    break
        known = (known << width) | edge
    return ZERO - as_float(np.int32(known)), before


@njit(**INNER)
def of_top_k(logits, masses, sums, count, k):
    """The least of the k largest logits."""
    for i in range(count):
        masses[i] = ONE
    edge, _ = edge_of(logits, masses, sums, count, float(k))
    return edge


@njit(fastmath=REORDERED, **INNER)
def sum_exp(logits, masses, count):
    """Makes `masses` the exponentials. Returns their sum."""
    apart()
    total = 0.0
    for i in range(count):
        masses[i] = exp(logits[i])
        total += masses[i]
    return total


@njit(**INNER)
def drop_outside_nucleus(logits, masses, sums, count, top_p):
    """Makes logits -inf that top-p drops: all but the fewest likeliest that have a probability of top_p. Of
    equally likely tokens at the edge, those with the highest ids stay. The largest logit is 0."""
    apart()
    target = top_p * sum_exp(logits, masses, count)
    edge, reached = edge_of(logits, masses, sums, count, target)
    drop_below(logits, count, edge)
    at_edge, room = 0, 0
    for i in range(count):
        at_edge += logits[i] == edge
    while room < at_edge and reached < target:
        reached += exp(edge)
        room += 1
    for i in range(count):
        if at_edge == room:
            break
        if logits[i] == edge:
            logits[i] = -np.inf
            at_edge -= 1


@njit(fastmath=REORDERED, **INNER)
def normalise(probs, count):
    """Turns logits, the largest of which is 0, into their probabilities, in place."""
    apart()
    total = ZERO
    for i in range(count):
        probs[i] = exp(probs[i])
        total += probs[i]
    share = ONE / total
    for i in range(count):
        probs[i] *= share


@njit(**INNER)
def shape(logits, probs, masses, sums, count, temperature, top_k, top_p, min_p):
    """Shapes probabilities as engine.sampling does. masses [count], sums [BUCKETS]: memory."""
    heat(logits, probs, count, np.float32(temperature))
    if 0 < top_k < count:
        drop_below(probs, count, of_top_k(probs, masses, sums, count, top_k))
    if top_p < 1:
        drop_outside_nucleus(probs, masses, sums, count, top_p)
    if min_p > 0:
        drop_below(probs, count, np.float32(math.log(min_p)))
    normalise(probs, count)


@njit(fastmath=REORDERED, **INNER)
def sum_of(values, begin, end):
    apart()
    total = 0.0
    for i in range(begin, end):
        total += values[i]
    return total


@njit(**INNER)
def sum_in_chunks(values, count):
    """The sum, float64, as `draw_token` makes it."""
    total = 0.0
    for begin in range(0, count, CHUNK):
        total += sum_of(values, begin, min(begin + CHUNK, count))
    return total


@njit(**INNER)
def draw_token(weights, count, u):
    """Draws as engine.sampling does: the token at u of the cumulative distribution, never one of weight
    0. The weights need not be normalised."""
    apart()
    point, reached, last = u * sum_in_chunks(weights, count), 0.0, 0
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        beyond = reached + sum_of(weights, begin, end)
        if beyond > point:
            for i in range(begin, end):
                if weights[i] > 0:
                    reached, last = reached + weights[i], i
                    if reached > point:
                        break
            return last
        reached = beyond
    for i in range(count - 1, -1, -1):  # rounding has put the point too high
        if weights[i] > 0:
            return i
    return 0
