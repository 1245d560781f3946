"""The arithmetic of a forward on a CPU in a few functions that numba compiles. native.py calls them.

They are given addresses, because a model's weights and its cache stay where they are. They compute in
float32. Weights may be kept in other ways, which products.py reads, and embeddings, cache and features may be
bfloat16."""

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from specdemo.runtime.intrinsics import (
    HALF,
    INNER,
    ONE,
    REORDERED,
    TWO,
    ZERO,
    apart,
    as_bits,
    as_float,
    bits,
    doubles,
    exp,
    floats,
    ints,
    shorts,
)
from specdemo.runtime.products import BYTES, FEWEST_OUTPUTS
from specdemo.runtime.shaping import add_bias, argmax, certainty, draw_token, penalise, shape

# What a forward reads of its model: whole numbers, by index. All that is not a size or a flag is an address.
(
    LAYER_COUNT,
    HIDDEN,
    HEADS,
    GROUPS,
    HEAD_DIM,
    ROTATED,  # channels of a head
    WIDTH,  # of the MLP
    OUTPUT_WIDTH,  # numbers that the output layer gives
    VOCAB,
    DRAFT_IDS,  # [OUTPUT_WIDTH]: which tokens these are; 0: all, in their order
    KNOWN,  # tokens with an embedding
    EMBEDDING_TABLE,
    NARROW_TABLE,  # whether it is bfloat16, not float32
    TANH_GELU,  # whether that is the activation; else it is SiLU
    NORM_HEADS,  # whether q and k are normed head by head
    STATES,  # of the features
    STATES_WIDTH,
    NARROW_STATES,  # as NARROW_TABLE
    CAPACITY,  # of the cache
    NARROW,  # the same
    READS,  # how features are read: see below; 0: they are not
    PARTS,  # of the features, each normed by itself
    BEGINS_WITH_READS,  # whether the stream begins with what is read, and embeddings are read beside it
    READS_EMBEDDINGS,  # whether the product that reads features reads embeddings before them
    STREAM,  # [rows, HIDDEN]: where the last layer's output is left for later; 0: it is not
    STREAM_IS_NORMED,
    NEWEST,  # rows of the cache that do not all follow each other, see attention.Branches; 0: all do
    DEPTHS,  # [NEWEST]
    HIDDEN_ROWS,  # [rows, NEWEST], float32: what is added to the scores of these rows
    MODEL_FIELDS,
) = range(30)
# Real numbers of a model: a cap of 0 is none. The last two are the epsilons of norms of what is read.
EMBEDDING_SCALE, LOGITS_SCALE, LOGITS_CAP, BEFORE_READS, AFTER_READS, MODEL_NUMBERS = range(6)
# A product: its weight, how that is kept, what its outputs are multiplied by (0: nothing), its bias (0:
# none), and its sizes.
MATRIX, KIND, SCALES, BIAS, OUTPUTS, INPUTS, PRODUCT_FIELDS = range(7)
# A norm: its weight (0: there is no such norm), and its index among the layer's real numbers.
# A layer: its products, then the weights of its norms, then the rest.
Q, K, V, OUT, GATE, UP, DOWN = range(0, 7 * PRODUCT_FIELDS, PRODUCT_FIELDS)
NORMS = 7 * PRODUCT_FIELDS
BEFORE_ATTENTION, AFTER_ATTENTION, BEFORE_MLP, AFTER_MLP, Q_NORM, K_NORM, OF_EMBEDDING = range(
    NORMS, NORMS + 7
)
(
    KEEPS_NORMED,  # see decoder.Layer
    WINDOW,  # 0: none
    FROM_FIRST,  # see decoder.RowMask
    LATER,
    COS,  # [capacity, rotated channels], 0 where nothing is rotated
    SIN,  # the same; the first half of each row is negative
    KEY_CACHE,  # [groups, capacity, head_dim]
    VALUE_CACHE,
    FEATURE,  # 1 + the column of the features where its input is kept; 0: it is not
    LAYER_FIELDS,
) = range(NORMS + 7, NORMS + 17)
# Real numbers of a layer: the epsilons of its norms, in their order, then the scores' scale and cap.
SCALING, SCORES_CAP, LAYER_NUMBERS = range(7, 10)
# The last norm and the output layer are a layer of their own, of which only these two are read. So is what
# reads features: their norm, the product that makes one hidden state of them, and its norm.
LAST_NORM, LAST = BEFORE_ATTENTION, OUT
READ_NORM, READ, READ_AFTER = BEFORE_ATTENTION, OUT, AFTER_ATTENTION
# What the stream of a forward begins with: embeddings, features, or what the last forward has left.
EMBEDDINGS, FEATURES, LEFT = range(3)
# How the tokens of a draft are drawn, see lm.Drawing: real numbers of 64 bits. From BIASED on, the tokens
# with a bias follow, and then their biases.
(
    TEMPERATURE,  # 0: the likeliest token
    TOP_K,
    TOP_P,
    MIN_P,
    REPETITION,
    PRESENCE,
    FREQUENCY,
    STOPS_BELOW,
    BIASED_COUNT,
    BIASED,
) = range(10)
# What threads that compute a forward together share: how often they have met, how many wait, whether they
# are to give up, and the address of the system's function that lets others run.
GENERATION, ARRIVED, GIVEN_UP, GIVE_WAY, TEAM_FIELDS = range(5)
SPINS = 2000  # tries before a thread that waits lets others run


@intrinsic
def call(typing, function, weight, x, y, outputs, inputs, stride, blocks):
    """Calls a function of products.py by its address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 7)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 8), generate


@intrinsic
def give_way(typing, function):
    """Calls the operating system's function that lets other threads run."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def of_place(work):
    """An intrinsic on the whole number at an address."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return work(builder, place, *arguments[1:]) or context.get_dummy_value()

    return generate


@intrinsic
def atomic_load(typing, address):
    return types.int64(types.intp), of_place(lambda builder, place: builder.load_atomic(place, "acquire", 8))


@intrinsic
def atomic_store(typing, address, value):
    def store(builder, place, value):
        builder.store_atomic(value, place, "release", 8)

    return types.void(types.intp, types.int64), of_place(store)


@intrinsic
def atomic_add(typing, address, value):
    """Adds to the number at an address, and returns what was there before."""
    add = of_place(lambda builder, place, value: builder.atomic_rmw("add", place, value, "acq_rel"))
    return types.int64(types.intp, types.int64), add


GELU_A, GELU_B = np.float32(0.7978845608), np.float32(0.044715)
SIXTEEN, NAN_BITS = np.uint32(16), np.uint16(0x7FC0)


@njit(**INNER)
def as_it_is(number):
    return number


@njit(**INNER)
def from_bfloat16(short):
    """The float32 number of a bfloat16 number's bits."""
    return as_float(np.int32(np.uint32(short) << SIXTEEN))


@njit(**INNER)
def to_bfloat16(x):
    """The bits of the bfloat16 number that is nearest, the even one of two."""
    bits = np.uint32(as_bits(x))
    rounded = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> SIXTEEN) & np.uint32(1))) >> SIXTEEN)
    return rounded if x == x else NAN_BITS


@njit(fastmath={"contract"}, **INNER)
def tanh(x):
    return ONE - TWO / (exp(TWO * x) + ONE)


@njit(fastmath=REORDERED, **INNER)
def norm(x, weight, y, rows, size, stride, eps):
    """y [rows, size], whose rows are `stride` numbers apart = the RMS norm of x [rows, size]; in place where
    y is x."""
    apart()
    w = floats(weight)
    for n in range(rows):
        row, to = floats(x + 4 * n * size), floats(y + 4 * n * stride)
        squares = ZERO
        for i in range(size):
            squares += row[i] * row[i]
        scale = ONE / np.float32(np.sqrt(squares / np.float32(size) + np.float32(eps)))
        for i in range(size):
            to[i] = row[i] * scale * w[i]


@njit(**INNER)
def add(x, y, count):
    """x += y"""
    a, b = floats(x), floats(y)
    for i in range(count):
        a[i] += b[i]


@njit(**INNER)
def scale(x, scales, count):
    """x *= scales"""
    a, b = floats(x), floats(scales)
    for i in range(count):
        a[i] *= b[i]


@njit(**INNER)
def write_numbers(x, y, at, count, narrow):
    """x [count], float32 -> the numbers of y, which are bfloat16 if `narrow`, from the one with index `at`
    on."""
    v = floats(x)
    if narrow:
        short = shorts(y + 2 * at)
        for i in range(count):
            short[i] = to_bfloat16(v[i])
    else:
        wide = floats(y + 4 * at)
        for i in range(count):
            wide[i] = v[i]


@njit(**INNER)
def copy(x, y, count):
    """y = x"""
    a, b = floats(x), floats(y)
    for i in range(count):
        b[i] = a[i]


@njit(**INNER)
def read_numbers(x, at, y, count, narrow):
    """The numbers of x, which are bfloat16 if `narrow`, from the one with index `at` on -> y [count],
    float32."""
    to = floats(y)
    if narrow:
        short = shorts(x + 2 * at)
        for i in range(count):
            to[i] = from_bfloat16(short[i])
    else:
        copy(x + 4 * at, y, count)


@njit(**INNER)
def share_of(outputs, me, threads):
    """The outputs that this thread computes: the first, and how many."""
    if outputs % FEWEST_OUTPUTS:
        return 0, outputs if me == 0 else 0
    parts = outputs // FEWEST_OUTPUTS
    first, end = parts * me // threads, parts * (me + 1) // threads
    return first * FEWEST_OUTPUTS, (end - first) * FEWEST_OUTPUTS


@njit(**INNER)
def product(given, kernels, x, y, rows, blocks, me, threads):
    """This thread's share of y, the product that is described at the address `given`, with its bias."""
    apart()
    own = ints(given)
    outputs, inputs, kind = own[OUTPUTS], own[INPUTS], own[KIND]
    first, count = share_of(outputs, me, threads)
    if count:
        weight = own[MATRIX] + first * inputs * BYTES[kind]
        call(ints(kernels)[kind], weight, x, y + 4 * first, count, inputs, outputs, blocks)
        for n in range(rows):
            if own[SCALES]:
                scale(y + 4 * (n * outputs + first), own[SCALES] + 4 * first, count)
            if own[BIAS]:
                add(y + 4 * (n * outputs + first), own[BIAS] + 4 * first, count)


@njit(**INNER)
def meet(team, threads):
    """Waits until all threads have come here."""
    apart()
    if threads == 1:
        return
    generation = atomic_load(team + 8 * GENERATION)
    if atomic_add(team + 8 * ARRIVED, 1) == threads - 1:
        atomic_store(team + 8 * ARRIVED, 0)
        atomic_store(team + 8 * GENERATION, generation + 1)
        return
    tries = 0
    while atomic_load(team + 8 * GENERATION) == generation and not atomic_load(team + 8 * GIVEN_UP):
        tries += 1
        if tries > SPINS:
            give_way(ints(team)[GIVE_WAY])


@njit(**INNER)
def place_of(model, start, rows, n):
    """The position in the text of row n of a forward, whose rows the cache has from `start` on."""
    newest = model[NEWEST]
    return start + rows - newest + ints(model[DEPTHS])[newest - rows + n] if newest else start + n


@njit(**INNER)
def rotate(model, x, rows, heads, cos, sin, start):
    """Rotates the first channels of x [rows, heads, HEAD_DIM], ROTATED of them, by the positions of a
    forward's rows."""
    apart()
    d, rotated = model[HEAD_DIM], model[ROTATED]
    half = rotated // 2
    for n in range(rows):
        at = 4 * place_of(model, start, rows, n) * rotated
        c, s = floats(cos + at), floats(sin + at)
        for head in range(heads):
            v = floats(x + 4 * (n * heads + head) * d)
            for j in range(half):
                a, b = v[j], v[j + half]
                v[j] = a * c[j] + b * s[j]
                v[j + half] = b * c[j + half] + a * s[j + half]


@njit(**INNER)
def store(x, cache, rows, groups, d, capacity, start, narrow):
    """Writes x [rows, groups, d] to the cache [groups, capacity, d], at `start`."""
    apart()
    for n in range(rows):
        for group in range(groups):
            write_numbers(
                x + 4 * (n * groups + group) * d, cache, (group * capacity + start + n) * d, d, narrow
            )


@njit(fastmath=REORDERED, **INNER)
def scaled(score, scaling, cap):
    score *= scaling
    return tanh(score / cap) * cap if cap else score


def attend_over(numbers, size, wide):
    """The attention of one head over a cache of numbers of `size` bytes, which `wide` makes float32."""

    @njit(fastmath=REORDERED, **INNER)
    def attend(q, out, keys, values, scores, d, count, scaling, cap, hidden, newest):
        """The attention of one head's query [d] over `count` keys and values [count, d] -> out [d]. It takes
        four keys at a time, so that sums stay in registers longer. hidden [newest]: what is added to the
        scores of the last keys."""
        apart()
        query, weight, result = floats(q), floats(scores), floats(out)
        whole = count // 4 * 4
        for p in range(0, whole, 4):
            a, b = numbers(keys + size * p * d), numbers(keys + size * (p + 1) * d)
            c, e = numbers(keys + size * (p + 2) * d), numbers(keys + size * (p + 3) * d)
            s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
            for j in range(d):
                s0 += query[j] * wide(a[j])
                s1 += query[j] * wide(b[j])
                s2 += query[j] * wide(c[j])
                s3 += query[j] * wide(e[j])
            weight[p], weight[p + 1], weight[p + 2], weight[p + 3] = s0, s1, s2, s3
        for p in range(whole, count):
            a, s0 = numbers(keys + size * p * d), ZERO
            for j in range(d):
                s0 += query[j] * wide(a[j])
            weight[p] = s0
        most = np.float32(-np.inf)
        for p in range(count - newest):
            score = scaled(weight[p], scaling, cap)
            weight[p] = score
            most = most if score <= most else score  # NaN, if there is one
        for i in range(newest):
            score = scaled(weight[count - newest + i], scaling, cap) + floats(hidden)[i]
            weight[count - newest + i] = score
            most = most if score <= most else score
        total = ZERO
        for p in range(count):
            weight[p] = exp(weight[p] - most)
            total += weight[p]
        share = ONE / total
        for j in range(d):
            result[j] = ZERO
        for p in range(0, whole, 4):
            a, b = numbers(values + size * p * d), numbers(values + size * (p + 1) * d)
            c, e = numbers(values + size * (p + 2) * d), numbers(values + size * (p + 3) * d)
            w0, w1, w2, w3 = (
                weight[p] * share,
                weight[p + 1] * share,
                weight[p + 2] * share,
                weight[p + 3] * share,
            )
            for j in range(d):
                result[j] += w0 * wide(a[j]) + w1 * wide(b[j]) + w2 * wide(c[j]) + w3 * wide(e[j])
        for p in range(whole, count):
            a, w = numbers(values + size * p * d), weight[p] * share
            for j in range(d):
                result[j] += w * wide(a[j])

    return attend


attend = attend_over(floats, 4, as_it_is)
attend_narrow = attend_over(shorts, 2, from_bfloat16)


@njit(**INNER)
def activate(gate, up, count, is_tanh_gelu):
    """gate = activation(gate) * up"""
    apart()
    g, u = floats(gate), floats(up)
    if is_tanh_gelu:
        for i in range(count):
            x = g[i]
            g[i] = HALF * x * (ONE + tanh(GELU_A * (x + GELU_B * x * x * x))) * u[i]
    else:
        for i in range(count):
            g[i] = g[i] / (ONE + exp(-g[i])) * u[i]


@njit(**INNER)
def embed(model, ids, x, rows, scale):
    apart()
    size, table = model[HIDDEN], model[EMBEDDING_TABLE]
    for n in range(rows):
        at = max(0, min(ids[n], model[KNOWN] - 1)) * size
        to = floats(x + 4 * n * size)
        read_numbers(table, at, x + 4 * n * size, size, model[NARROW_TABLE])
        for i in range(size):
            to[i] *= scale


@njit(**INNER)
def keep(model, layer, x, rows, start):
    """Keeps the layer's input in the features."""
    apart()
    if layer[FEATURE]:
        size = model[HIDDEN]
        for n in range(rows):
            at = (start + n) * model[STATES_WIDTH] + layer[FEATURE] - 1
            write_numbers(x + 4 * n * size, model[STATES], at, size, model[NARROW_STATES])


@njit(**INNER)
def read_features(
    model, numbers, kernels, result, beside, work, rows, blocks, start, begins, team, me, threads
):
    """Reads the target's features at the positions from `start` on, or what the last forward has left ->
    result [padded rows, HIDDEN]. beside [rows, HIDDEN]: the embeddings that are read before them, if any are.
    work: memory for what is read."""
    apart()
    place = model[READS]
    own, width, parts = ints(place), model[STATES_WIDTH], model[PARTS]
    before = model[HIDDEN] if model[READS_EMBEDDINGS] else 0
    if me == 0:
        for n in range(rows):
            row = work + 4 * n * (before + width)
            copy(beside + 4 * n * before, row, before)
            row += 4 * before
            if begins == LEFT:
                copy(model[STREAM] + 4 * n * width, row, width)
                continue
            read_numbers(model[STATES], (start + n) * width, row, width, model[NARROW_STATES])
            if own[READ_NORM]:
                size = width // parts
                for part in range(parts):
                    at = row + 4 * part * size
                    norm(at, own[READ_NORM] + 4 * part * size, at, 1, size, size, numbers[BEFORE_READS])
    meet(team, threads)
    product(place + 8 * READ, kernels, work, result, rows, blocks, me, threads)
    meet(team, threads)
    if own[READ_AFTER]:
        size = model[HIDDEN]
        if me == 0:
            norm(result, own[READ_AFTER], result, rows, size, size, numbers[AFTER_READS])
        meet(team, threads)


@njit(**INNER)
def norm_heads(model, x, weight, rows, heads, eps):
    """Norms x [rows, heads, HEAD_DIM], each head by itself or all as one."""
    d = model[HEAD_DIM]
    if model[NORM_HEADS]:
        norm(x, weight, x, rows * heads, d, d, eps)
    else:
        norm(x, weight, x, rows, heads * d, heads * d, eps)


@njit(**INNER)
def write_keys(model, layer, numbers, k, v, rows, start):
    """Norms and rotates k [rows, GROUPS, HEAD_DIM], and writes k and v to the layer's cache."""
    apart()
    groups, d = model[GROUPS], model[HEAD_DIM]
    if layer[K_NORM]:
        norm_heads(model, k, layer[K_NORM], rows, groups, numbers[5])
    if layer[COS]:
        rotate(model, k, rows, groups, layer[COS], layer[SIN], start)
    store(k, layer[KEY_CACHE], rows, groups, d, model[CAPACITY], start, model[NARROW])
    store(v, layer[VALUE_CACHE], rows, groups, d, model[CAPACITY], start, model[NARROW])


@njit(**INNER)
def run_layer(
    model, place, numbers, kernels, x, beside, own, shared, rows, blocks, padded, start, team, me, threads
):
    """Runs the decoder layer that is described at the address `place`: attention, then the MLP, each added to
    the stream x. x, beside (embeddings, where the layer reads them) and `own` are this thread's memory; what
    the threads compute for each other is in `shared`."""
    layer = ints(place)
    size, heads, groups, d, width = model[HIDDEN], model[HEADS], model[GROUPS], model[HEAD_DIM], model[WIDTH]
    h, scores = own, own + 4 * padded * size * (2 if model[BEGINS_WITH_READS] else 1)
    result = shared
    q = result + 4 * padded * size
    k = q + 4 * padded * heads * d
    v = k + 4 * padded * groups * d
    gate, up = q, q + 4 * padded * width

    source = x
    if layer[OF_EMBEDDING]:
        norm(beside, layer[OF_EMBEDDING], h, rows, size, 2 * size, numbers[6])
        norm(x, layer[BEFORE_ATTENTION], h + 4 * size, rows, size, 2 * size, numbers[0])
        if layer[KEEPS_NORMED]:
            for n in range(rows):
                copy(h + 4 * (2 * n + 1) * size, x + 4 * n * size, size)
        source = h
    elif layer[BEFORE_ATTENTION]:
        norm(x, layer[BEFORE_ATTENTION], h, rows, size, size, numbers[0])
        source = h
    product(place + 8 * Q, kernels, source, q, rows, blocks, me, threads)
    product(place + 8 * K, kernels, source, k, rows, blocks, me, threads)
    product(place + 8 * V, kernels, source, v, rows, blocks, me, threads)
    meet(team, threads)
    if me == 0:
        if layer[Q_NORM]:
            norm_heads(model, q, layer[Q_NORM], rows, heads, numbers[4])
        if layer[COS]:
            rotate(model, q, rows, heads, layer[COS], layer[SIN], start)
        write_keys(model, layer, numbers, k, v, rows, start)
    meet(team, threads)
    scaling, cap = np.float32(numbers[SCALING]), np.float32(numbers[SCORES_CAP])
    newest = model[NEWEST]
    for n in range(rows):
        end = start + (rows if layer[LATER] or newest else n + 1)
        first, hidden = 0, model[HIDDEN_ROWS] + 4 * n * newest
        if layer[WINDOW]:
            after = start if layer[FROM_FIRST] else place_of(model, start, rows, n) + 1
            first = max(0, after - layer[WINDOW])
        for head in range(me, heads, threads):
            at = q + 4 * (n * heads + head) * d
            cached = (2 if model[NARROW] else 4) * (head // (heads // groups) * model[CAPACITY] + first) * d
            keys, values = layer[KEY_CACHE] + cached, layer[VALUE_CACHE] + cached
            if model[NARROW]:
                attend_narrow(at, at, keys, values, scores, d, end - first, scaling, cap, hidden, newest)
            else:
                attend(at, at, keys, values, scores, d, end - first, scaling, cap, hidden, newest)
    meet(team, threads)
    product(place + 8 * OUT, kernels, q, result, rows, blocks, me, threads)
    meet(team, threads)
    source = result
    if layer[AFTER_ATTENTION]:
        norm(result, layer[AFTER_ATTENTION], h, rows, size, size, numbers[1])
        source = h
    add(x, source, rows * size)

    source = x
    if layer[BEFORE_MLP]:
        norm(x, layer[BEFORE_MLP], h, rows, size, size, numbers[2])
        source = h
    product(place + 8 * GATE, kernels, source, gate, rows, blocks, me, threads)
    product(place + 8 * UP, kernels, source, up, rows, blocks, me, threads)
    first, count = share_of(width, me, threads)
    for n in range(rows):
        at = 4 * (n * width + first)
        activate(gate + at, up + at, count, model[TANH_GELU])
    meet(team, threads)
    product(place + 8 * DOWN, kernels, gate, result, rows, blocks, me, threads)
    meet(team, threads)
    source = result
    if layer[AFTER_MLP]:
        norm(result, layer[AFTER_MLP], h, rows, size, size, numbers[3])
        source = h
    add(x, source, rows * size)


@njit(**INNER)
def run(
    model,
    numbers,
    layers,
    layer_numbers,
    kernels,
    of_one,
    begins,
    ids,
    start,
    rows,
    block,
    last_alone,
    logits,
    scratch,
    team,
    me,
    threads,
):
    """Runs a forward: ids [rows] at the positions from `start` on -> logits [padded rows, OUTPUT_WIDTH], none
    where that is 0. begins: what the stream begins with. last_alone: whether it makes only the last row's
    logits [1, OUTPUT_WIDTH], by `of_one`, the products of a single row."""
    size = model[HIDDEN]
    blocks = (rows + block - 1) // block
    padded = blocks * block
    beside_size = padded * size if model[BEGINS_WITH_READS] else 0
    own_size = 2 * padded * size + 2 * beside_size + model[CAPACITY]
    x = scratch + 4 * me * own_size
    beside, shared = x + 4 * padded * size, scratch + 4 * threads * own_size
    own = beside + 4 * beside_size
    embed(model, ids, beside if model[BEGINS_WITH_READS] else x, rows, numbers[EMBEDDING_SCALE])
    if begins == FEATURES or (begins == LEFT and model[READS_EMBEDDINGS]):
        work = shared + 4 * padded * size
        read_features(
            model, numbers, kernels, shared, beside, work, rows, blocks, start, begins, team, me, threads
        )
        copy(shared, x, rows * size)
    elif begins == LEFT:
        copy(model[STREAM], x, rows * size)
    for index in range(model[LAYER_COUNT]):
        place, reals = layers + 8 * index * LAYER_FIELDS, floats(layer_numbers + 4 * index * LAYER_NUMBERS)
        if me == 0:
            keep(model, ints(place), x, rows, start)
        run_layer(
            model, place, reals, kernels, x, beside, own, shared, rows, blocks, padded, start, team, me,
            threads,
        )  # fmt: skip
    index = model[LAYER_COUNT]
    place, reals = layers + 8 * index * LAYER_FIELDS, floats(layer_numbers + 4 * index * LAYER_NUMBERS)
    layer = ints(place)
    if me == 0:
        keep(model, layer, x, rows, start)
    if last_alone:
        x += 4 * (rows - 1) * size
        rows, blocks, kernels = 1, 1, of_one
    if not layer[LAST_NORM]:
        copy(x, own, rows * size)
    elif logits or model[STREAM_IS_NORMED]:
        norm(x, layer[LAST_NORM], own, rows, size, size, reals[0])
    if logits:
        product(place + 8 * LAST, kernels, own, logits, rows, blocks, me, threads)
    meet(team, threads)
    if me == 0:
        if model[STREAM]:
            copy(own if model[STREAM_IS_NORMED] else x, model[STREAM], rows * size)
        if logits:
            scale_and_cap(model, numbers, logits, rows)


@njit(**INNER)
def scale_and_cap(model, numbers, logits, rows):
    """Applies the logits' scale and cap."""
    apart()
    factor, cap = numbers[LOGITS_SCALE], numbers[LOGITS_CAP]
    values = floats(logits)
    if factor != ONE:
        for i in range(rows * model[OUTPUT_WIDTH]):
            values[i] *= factor
    if cap:
        for i in range(rows * model[OUTPUT_WIDTH]):
            values[i] = tanh(values[i] / cap) * cap


@njit(**INNER)
def widen(model, logits, said):
    """Writes a row of logits to said [VOCAB], where a token that cannot be drafted has -inf."""
    apart()
    if not model[DRAFT_IDS]:
        copy(logits, said, model[VOCAB])
        return
    ids, given, to = ints(model[DRAFT_IDS]), floats(logits), floats(said)
    for i in range(model[VOCAB]):
        to[i] = -np.inf
    for i in range(model[OUTPUT_WIDTH]):
        to[ids[i]] = given[i]


@njit(**INNER)
def adjust(drawing, seen, said, adjusted, count):
    """Adds the bias to a row of logits and applies the penalties. Returns the address of what that gives:
    `said` itself where there are none."""
    apart()
    how = doubles(drawing)
    biased = int(how[BIASED_COUNT])
    if not seen and not biased:
        return said
    copy(said, adjusted, count)
    add_bias(
        floats(adjusted), doubles(drawing + 8 * BIASED), doubles(drawing + 8 * (BIASED + biased)), biased
    )
    if seen:
        penalise(floats(adjusted), floats(seen), count, how[REPETITION], how[PRESENCE], how[FREQUENCY])
    return adjusted


@njit(**INNER)
def draw(drawing, seen, logits, probs, u, count, adjusted, masses, sums):
    """A token that is drawn from a row of logits. Unless that is the likeliest one, it also makes the row of
    probabilities that the token is drawn from."""
    apart()
    how, row = doubles(drawing), adjust(drawing, seen, logits, adjusted, count)
    if how[TEMPERATURE] == 0:
        return argmax(floats(row), count)
    shape(
        floats(row), floats(probs), floats(masses), doubles(sums), count,
        how[TEMPERATURE], int(how[TOP_K]), how[TOP_P], how[MIN_P],
    )  # fmt: skip
    return draw_token(floats(probs), count, u)


def sampling_function(cache: bool):
    """Compiles what Sampler.sample does. logits, probs: [rows, width]. The others are as in
    `forward_function`."""

    def sample(drawing, seen, logits, rows, width, uniforms, tokens, probs, adjusted, masses, sums):
        for i in range(rows):
            at = 4 * i * width
            u, to = doubles(uniforms)[i], probs + at
            ints(tokens)[i] = draw(drawing, seen, logits + at, to, u, width, adjusted, masses, sums)

    return cfunc(types.void(*[types.intp] * 11), cache=cache, error_model="numpy")(sample)


def forward_function(cache: bool):
    """Compiles a forward (see `run`), and, if `drafts` is not 0, up to so many tokens more, each drawn from
    the last row of the logits and then fed.

    ids [rows + drafts]: the drafted tokens are written after the others. then: the products of a single row.
    logits: memory for a row, at least. said [drafts, VOCAB]: the logits after each token. drawing: how tokens
    are drawn. seen [VOCAB]: that of Sampler.seen, which counts the drafts too in the end; 0: nothing is
    penalised. uniforms [drafts], probs [drafts, VOCAB]: what tokens are drawn with and from, at a temperature
    above 0. made: how many tokens are drafted, and whether the draft ends with the last of them. adjusted,
    masses [VOCAB], sums: memory (see shaping.shape). team: shared by the `threads` threads that call it at
    once, of which this is number `me`."""

    def forward(
        model_address,
        numbers_address,
        layers,
        layer_numbers,
        kernels,
        then,
        begins,
        ids,
        start,
        rows,
        block,
        last_alone,
        logits,
        scratch,
        drafts,
        said,
        drawing,
        seen,
        uniforms,
        probs,
        made,
        adjusted,
        masses,
        sums,
        team,
        me,
        threads,
    ):
        model, numbers, begin = ints(model_address), floats(numbers_address), ints(start)[0]
        vocab_size, drafted = model[VOCAB], 0
        while True:
            run(
                model, numbers, layers, layer_numbers, kernels, then, begins, ints(ids), begin, rows, block,
                last_alone, logits, scratch, team, me, threads,
            )  # fmt: skip
            if drafts == 0:
                return
            begin += rows
            ids += 8 * rows
            if me == 0:
                widen(model, logits, said)
                how, u = doubles(drawing), doubles(uniforms)[drafted] if uniforms else 0.0
                token = draw(drawing, seen, said, probs, u, vocab_size, adjusted, masses, sums)
                if probs:
                    probs += 4 * vocab_size
                ints(ids)[0] = token
                if seen:
                    floats(seen)[token] += ONE
                is_last = drafted + 1 == drafts
                if how[STOPS_BELOW] > 0 and certainty(floats(said), vocab_size) < how[STOPS_BELOW]:
                    is_last = True  # the verifier drops this token
                ints(made)[0], ints(made)[1] = drafted + 1, is_last
            meet(team, threads)
            said += 4 * vocab_size
            drafted += 1
            # A thread that has given up waiting for the first one counts for itself.
            if drafted == drafts or ints(made)[1]:
                return
            rows, block, kernels = 1, 1, then
            begins = LEFT if model[BEGINS_WITH_READS] else EMBEDDINGS

    return cfunc(types.void(*[types.intp] * 27), cache=cache, error_model="numpy")(forward)


def reading_function(cache: bool):
    """Compiles what a head, whose layers make keys and values of its target's features, does before a
    forward: it writes those of `rows` positions from `start` on to each layer's cache. scratch: memory for
    padded rows of a hidden state, and of the features or a layer's keys and values."""

    def read(
        model_address,
        numbers_address,
        layers,
        layer_numbers,
        kernels,
        start,
        rows,
        block,
        scratch,
        team,
        me,
        threads,
    ):
        model, numbers, begin = ints(model_address), floats(numbers_address), ints(start)[0]
        blocks = (rows + block - 1) // block
        context, work = scratch, scratch + 4 * blocks * block * model[HIDDEN]
        k, v = work, work + 4 * blocks * block * model[GROUPS] * model[HEAD_DIM]
        read_features(
            model, numbers, kernels, context, 0, work, rows, blocks, begin, FEATURES, team, me, threads
        )
        for index in range(model[LAYER_COUNT]):
            place = layers + 8 * index * LAYER_FIELDS
            reals = floats(layer_numbers + 4 * index * LAYER_NUMBERS)
            product(place + 8 * K, kernels, context, k, rows, blocks, me, threads)
            product(place + 8 * V, kernels, context, v, rows, blocks, me, threads)
            meet(team, threads)
            if me == 0:
                write_keys(model, ints(place), reals, k, v, rows, begin)
            meet(team, threads)

    return cfunc(types.void(*[types.intp] * 12), cache=cache, error_model="numpy")(read)


def are_upcast_function(cache: bool):
    """Compiles a test whether float32 numbers are bfloat16 numbers, to the bit: 1 or 0. weights: the address
    of three whole numbers a row: where the float32 numbers are, where the others are, and how many."""

    def are_upcast(weights, rows):
        table, different = ints(weights), np.int32(0)
        for row in range(rows):
            wide, short = bits(table[3 * row]), shorts(table[3 * row + 1])
            for i in range(table[3 * row + 2]):
                different |= wide[i] ^ np.int32(np.uint32(short[i]) << np.uint32(16))
        return different == 0

    return cfunc(types.intp(types.intp, types.intp), cache=cache, error_model="numpy")(are_upcast)


def scratch_size(model: np.ndarray, padded: int, threads: int) -> int:
    """How many numbers of scratch memory a forward of so many rows takes, or reading so many features. model:
    its whole numbers."""
    hidden, capacity, features = (int(model[field]) for field in (HIDDEN, CAPACITY, STATES_WIDTH))
    heads, groups, d, width = (int(model[field]) for field in (HEADS, GROUPS, HEAD_DIM, WIDTH))
    own = padded * hidden * (4 if model[BEGINS_WITH_READS] else 2) + capacity
    read = features + (hidden if model[READS_EMBEDDINGS] else 0) if model[READS] else 0
    return threads * own + padded * (hidden + max((heads + 2 * groups) * d, 2 * width, read))
