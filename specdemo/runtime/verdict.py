"""The verdict on a chain in functions that numba compiles: what engine.step and engine.rules do with torch,
by the same names, in one call. p and q are float32; what decides, and what is recorded, is float64."""

import numpy as np
import torch
from numba import from_dtype, njit, types

from specdemo.runtime.intrinsics import INNER, ONE, ZERO, apart, doubles, floats, ints, is_cached
from specdemo.runtime.shaping import (
    add_bias,
    argmax,
    draw_token,
    find_largest,
    most_of,
    normalise,
    penalise,
    shape,
    sum_in_chunks,
)

SPECULATIVE, BLOCK = range(2)  # rules
TIE = np.float32(1e-9)  # what raw probabilities count when the likeliest tokens are looked for


# What a verdict works with: dtypes, and the names of the sizes of shapes. It is given the addresses.
MEMORY = {
    "p": (torch.float32, "positions", "width"),
    "raw_p": (torch.float32, "positions", "width"),
    "row": (torch.float32, "width"),
    "masses": (torch.float32, "width"),
    "sums": (torch.float64, "buckets"),
    "weights": (torch.float64, "positions"),  # w of block verification
    "ids": (torch.int64, "likeliest"),
    "largest": (torch.float32, "likeliest"),
}


@njit(**INNER)
def row_of(address, i, width):
    """Finds row i of a matrix of float32."""
    return floats(address + 4 * i * width)


@njit(**INNER)
def numbers_of(address, i, width):
    """Finds row i of a matrix of float64."""
    return doubles(address + 8 * i * width)


@njit(**INNER)
def number(address):
    """Reads the one float64 there."""
    return doubles(address)[0]


@njit(**INNER)
def count_drafts(given):
    """Counts the rows that are drafts: up to an eos, and up to the first place that the drafter is not sure
    of."""
    drafted, eos, confidence = ints(given.drafted), doubles(given.eos), number(given.confidence)
    for i in range(given.rows):
        if i >= number(given.k):
            return i
        if confidence > 0:
            if given.sure:
                certainty = floats(given.sure)[i]
            else:
                certainty = most_of(row_of(given.raw_q, i, given.width), given.width)
            if np.float64(certainty) < confidence:
                return i
        for one in range(given.eos_count):
            if drafted[i] == eos[one]:
                return i + 1
    return given.rows


@njit(**INNER)
def make_one_hot(row, count, token):
    apart()
    for i in range(count):
        row[i] = ZERO
    row[token] = ONE


@njit(**INNER)
def make_raw(logits, raw_p, count):
    """Makes raw probabilities: temperature 1, nothing filtered."""
    apart()
    most = most_of(logits, count)
    for i in range(count):
        raw_p[i] = logits[i] - most
    normalise(raw_p, count)


@njit(**INNER)
def ratio(p, q, token):
    return np.float64(p[token]) / np.float64(q[token])


@njit(**INNER)
def at_most_1(number):
    return 1.0 if number > 1.0 else number  # which leaves NaN as it is


@njit(**INNER)
def subtract(p, q, of_p, of_q, residual, count):
    """Makes the residual max(of_p * p - of_q * q, 0)."""
    apart()
    for i in range(count):
        left = of_p * p[i] - of_q * q[i]
        residual[i] = ZERO if left < ZERO else left


@njit(**INNER)
def find_block_probs(p, q, drafted, drafts, weights, probs, residual, count):
    """Makes h and w of block verification. p, q: addresses of their rows."""
    apart()
    weights[0] = 1.0
    for i in range(drafts):
        weight = at_most_1(weights[i] * ratio(row_of(p, i, count), row_of(q, i, count), drafted[i]))
        mass, after = weight, row_of(q, i + 1, count)
        if i + 1 < drafts and after[drafted[i + 1]] > 0:  # another draft follows
            subtract(row_of(p, i + 1, count), after, np.float32(weight), ONE, residual, count)
            mass = sum_in_chunks(residual, count)
        whole = mass + (1.0 - weight)
        probs[i] = mass / whole if whole > 0 else 1.0  # 0/0: p = q at the next place
        weights[i + 1] = weight


@njit(**INNER)
def weigh(p, raw_p, weights, count, adds):
    """Makes what the likeliest tokens are found by: the probabilities, and a little of the raw ones. adds:
    whether to what is there."""
    apart()
    for i in range(count):
        weights[i] = (weights[i] if adds else ZERO) + (p[i] + TIE * raw_p[i])


@njit(**INNER)
def gather(token_ids, count, probs, gathered):
    for place in range(count):
        gathered[place] = probs[int(token_ids[place])]


@njit(**INNER)
def shape_rows(given, memory):
    """Makes p and the raw p of all rows."""
    width, row, seen = given.width, floats(memory.row), floats(given.seen)
    for i in range(given.rows + 1):
        logits, p = row_of(given.logits, i, width), row_of(memory.p, i, width)
        make_raw(logits, row_of(memory.raw_p, i, width), width)
        if given.allowed:
            logits = row_of(given.allowed, i, width)
        if given.seen or given.biased_count:
            for token in range(width):
                row[token] = logits[token]
            logits = row
            add_bias(row, doubles(given.biased), doubles(given.bias), given.biased_count)
        if given.seen:
            penalise(
                row, seen, width,
                number(given.repetition), number(given.presence), number(given.frequency),
            )  # fmt: skip
            if i < given.rows:
                seen[ints(given.drafted)[i]] += ONE
        if given.is_greedy:
            make_one_hot(p, width, argmax(logits, width))
        else:
            shape(
                logits, p, floats(memory.masses), doubles(memory.sums), width,
                number(given.temperature), int(number(given.top_k)), number(given.top_p), number(given.min_p),
            )  # fmt: skip


@njit(**INNER)
def apply_rule(given, recorded, memory, drafts):
    """Records the verdict on each draft. Returns how many are accepted, and what p is multiplied by in what
    the next token is drawn from."""
    width, drafted, u_accept = given.width, ints(given.drafted), doubles(given.u_accept)
    accept_prob, weights, accepted = doubles(recorded.accept_prob), doubles(memory.weights), 0
    if given.rule == BLOCK:  # up to the last u that is below its probability
        row = floats(memory.row)
        find_block_probs(memory.p, given.q, drafted, drafts, weights, accept_prob, row, width)
        for i in range(drafts):
            if u_accept[i] < accept_prob[i]:
                accepted = i + 1
        return accepted, np.float32(weights[accepted])
    for i in range(drafts):
        p, q = row_of(memory.p, i, width), row_of(given.q, i, width)
        accept_prob[i] = at_most_1(ratio(p, q, drafted[i]))
    while accepted < drafts and u_accept[accepted] < accept_prob[accepted]:
        accepted += 1
    return accepted, ONE


@njit(**INNER)
def record_tokens(given, recorded, memory, drafts, next_id):
    """Records the tokens at each position (the drafted one, the next one, the likeliest), those that the
    drafter learns from, and their probabilities. drafts: how many rows are."""
    width, ids, largest, row = given.width, ints(memory.ids), floats(memory.largest), floats(memory.row)
    tokens, likely = recorded.tokens, recorded.likely
    for i in range(given.rows + 1):
        p, raw_p = row_of(memory.p, i, width), row_of(memory.raw_p, i, width)
        token_ids = numbers_of(recorded.token_ids, i, tokens)
        token_ids[0] = ints(given.drafted)[i] if i < given.rows else next_id
        token_ids[1] = next_id
        if tokens > 2:
            weigh(p, raw_p, row, width, False)
            if i < drafts:
                weigh(row_of(given.q, i, width), row_of(given.raw_q, i, width), row, width, True)
            find_largest(row, width, ids, largest, tokens - 2)
            for place in range(2, tokens):
                token_ids[place] = ids[place - 2]
        gather(token_ids, tokens, p, numbers_of(recorded.p, i, tokens))
        gather(token_ids, tokens, raw_p, numbers_of(recorded.raw_p, i, tokens))
        if i < drafts:
            gather(token_ids, tokens, row_of(given.q, i, width), numbers_of(recorded.q, i, tokens))
            gather(token_ids, tokens, row_of(given.raw_q, i, width), numbers_of(recorded.raw_q, i, tokens))
        if likely:
            find_largest(raw_p, width, ids, largest, likely)
            for place in range(likely):
                numbers_of(recorded.likely_ids, i, likely)[place] = ids[place]
                numbers_of(recorded.likely_p, i, likely)[place] = raw_p[ids[place]]


def verdict_function(cache: bool | None, given: np.dtype, recorded: np.dtype, memory: np.dtype):
    """Compiles the verdict: a function of records of these dtypes. given: what it reads (engine.compiled).
    recorded: the address of each field of engine.step.Verified, 0 where it is not recorded, and the sizes of
    shapes. What it does not write is 0. memory: addresses of MEMORY."""

    def judge(given, recorded, memory):
        width, drafts = given.width, count_drafts(given)
        doubles(recorded.k)[0] = drafts if number(given.confidence) > 0 else number(given.k)
        doubles(recorded.u_next)[0] = number(given.u_next)
        for i in range(given.rows):
            doubles(recorded.u_accept)[i] = doubles(given.u_accept)[i] if i < drafts else np.inf
        shape_rows(given, memory)
        accepted, of_p = apply_rule(given, recorded, memory, drafts)
        # The next token, from what is left of p; from p itself where nothing is left.
        p, residual = row_of(memory.p, accepted, width), floats(memory.row)
        if accepted < drafts:
            subtract(p, row_of(given.q, accepted, width), of_p, ONE, residual, width)
        else:  # after a whole draft q is 0
            subtract(p, p, of_p, ZERO, residual, width)
        mass = sum_in_chunks(residual, width)
        next_id = draw_token(residual if mass > 0 else p, width, number(given.u_next))
        doubles(recorded.accepted)[0], doubles(recorded.residual_mass)[0] = accepted, mass
        record_tokens(given, recorded, memory, drafts, next_id)

    signature = types.void(*map(from_dtype, (given, recorded, memory)))
    cached = is_cached(cache, judge, signature)
    return njit(signature, cache=cached, nogil=True, error_model="numpy")(judge)
