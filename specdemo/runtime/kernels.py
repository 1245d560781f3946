"""The arithmetic of a forward on a CPU in a few functions that numba compiles. native.py calls them.

They are given addresses, because a model's weights and its cache stay where they are. They compute in
float32. Weights may be kept in other ways, which intrinsics.py reads, and embeddings, cache and features may
be bfloat16."""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from specdemo.runtime import records
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
    entry_point,
    exp,
    floats,
    ints,
    record_at,
    shorts,
)
from specdemo.runtime.records import BYTES, EMBEDDINGS, FEATURES, FEWEST_OUTPUTS, LEFT
from specdemo.runtime.shaping import add_bias, argmax, certainty, draw_token, penalise, shape

DRAWING_BYTES = records.DRAWING.itemsize
SPINS = 2000  # tries before a thread that waits lets others run
GENERATION, ARRIVED, GIVEN_UP, _ = (place for _, place in records.TEAM.fields.values())
layer_at, model_at, call_at = map(record_at, (records.LAYER, records.MODEL, records.CALL))
drawing_at, copy_at, team_at = map(record_at, (records.DRAWING, records.COPY, records.TEAM))


class ThreadPart(NamedTuple):
    """A thread's part in a forward: one of `threads` threads, whose number is `me`. rows: those of the
    forward, which the cache has from `start` on. kernels [KINDS]: the products, by how weights are kept.
    newest: rows of the cache that do not all follow each other (see attention.Branches), with their depths
    [newest]; 0: all do."""

    rows: int
    start: int
    kernels: int
    newest: int
    depths: int
    team: int
    me: int
    threads: int


@intrinsic
def call_product(typing, function, weight, x, y, outputs, inputs, stride, rows):
    """Calls what intrinsics.product_function has compiled by its address."""

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
def norm(x, weight, eps, y, rows, size, stride):
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
def normed(given, x, y, rows, size):
    """Norms x [rows, size] to y. Returns the address of what comes of it: x itself where there is no norm."""
    if not given.weight:
        return x
    norm(x, given.weight, given.eps, y, rows, size, size)
    return y


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
def share_of(outputs, part):
    """The outputs that this thread computes: the first, and how many."""
    if outputs % FEWEST_OUTPUTS:
        return 0, outputs if part.me == 0 else 0
    parts = outputs // FEWEST_OUTPUTS
    first, end = parts * part.me // part.threads, parts * (part.me + 1) // part.threads
    return first * FEWEST_OUTPUTS, (end - first) * FEWEST_OUTPUTS


@njit(**INNER)
def product(given, part, x, y):
    """This thread's share of y, a product, with its bias."""
    apart()
    outputs, inputs, kind = given.outputs, given.inputs, given.kind
    first, count = share_of(outputs, part)
    if count:
        weight = given.weight + first * inputs * BYTES[kind]
        function = ints(part.kernels)[kind]
        call_product(function, weight, x, y + 4 * first, count, inputs, outputs, part.rows)
        for n in range(part.rows):
            if given.scales:
                scale(y + 4 * (n * outputs + first), given.scales + 4 * first, count)
            if given.bias:
                add(y + 4 * (n * outputs + first), given.bias + 4 * first, count)


@njit(**INNER)
def meet(part):
    """Waits until all threads have come here."""
    apart()
    team = part.team
    if part.threads == 1:
        return
    generation = atomic_load(team + GENERATION)
    if atomic_add(team + ARRIVED, 1) == part.threads - 1:
        atomic_store(team + ARRIVED, 0)
        atomic_store(team + GENERATION, generation + 1)
        return
    tries = 0
    while atomic_load(team + GENERATION) == generation and not atomic_load(team + GIVEN_UP):
        tries += 1
        if tries > SPINS:
            give_way(team_at(team, 0).give_way)


@njit(**INNER)
def place_of(part, n):
    """The position in the text of row n of a forward."""
    newest, start, rows = part.newest, part.start, part.rows
    return start + rows - newest + ints(part.depths)[newest - rows + n] if newest else start + n


@njit(**INNER)
def rotate(model, layer, part, x, heads):
    """Rotates the first channels of x [rows, heads, head_dim] by the positions of a forward's rows."""
    apart()
    d, rotated = model.head_dim, model.rotated
    half = rotated // 2
    for n in range(part.rows):
        at = 4 * place_of(part, n) * rotated
        c, s = floats(layer.cos + at), floats(layer.sin + at)
        for head in range(heads):
            v = floats(x + 4 * (n * heads + head) * d)
            for j in range(half):
                a, b = v[j], v[j + half]
                v[j] = a * c[j] + b * s[j]
                v[j + half] = b * c[j + half] + a * s[j + half]


@njit(**INNER)
def store(model, part, x, cache):
    """Writes x [rows, groups, head_dim] to the cache [groups, capacity, head_dim]."""
    apart()
    groups, d = model.groups, model.head_dim
    for n in range(part.rows):
        for group in range(groups):
            at = (group * model.capacity + part.start + n) * d
            write_numbers(x + 4 * (n * groups + group) * d, cache, at, d, model.narrow)


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
            w0, w1 = weight[p] * share, weight[p + 1] * share
            w2, w3 = weight[p + 2] * share, weight[p + 3] * share
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
def embed(model, part, ids, x):
    apart()
    size, scale = model.hidden, model.embedding_scale
    for n in range(part.rows):
        at = max(0, min(ints(ids)[n], model.known - 1)) * size
        to = floats(x + 4 * n * size)
        read_numbers(model.embedding_table, at, x + 4 * n * size, size, model.narrow_table)
        for i in range(size):
            to[i] *= scale


@njit(**INNER)
def keep(model, part, feature, x):
    """Keeps a layer's input in the features."""
    apart()
    if feature and part.me == 0:
        size = model.hidden
        for n in range(part.rows):
            at = (part.start + n) * model.states_width + feature - 1
            write_numbers(x + 4 * n * size, model.states, at, size, model.narrow_states)


@njit(**INNER)
def read_features(model, part, begins, beside, work, result):
    """Reads the target's features, or what the last forward has left -> result [rows, hidden]. beside
    [rows, hidden]: the embeddings that are read before them, if any are. work: memory for what is read."""
    apart()
    width, parts = model.states_width, model.parts
    before = model.hidden if model.reads_embeddings else 0
    if part.me == 0:
        for n in range(part.rows):
            row = work + 4 * n * (before + width)
            copy(beside + 4 * n * before, row, before)
            row += 4 * before
            if begins == LEFT:
                copy(model.stream + 4 * n * width, row, width)
                continue
            read_numbers(model.states, (part.start + n) * width, row, width, model.narrow_states)
            if model.read_norm.weight:
                size = width // parts
                for index in range(parts):
                    at = row + 4 * index * size
                    weight = model.read_norm.weight + 4 * index * size
                    norm(at, weight, model.read_norm.eps, at, 1, size, size)
    meet(part)
    product(model.read, part, work, result)
    meet(part)
    if model.read_after.weight:
        if part.me == 0:
            normed(model.read_after, result, result, part.rows, model.hidden)
        meet(part)


@njit(**INNER)
def norm_heads(model, given, x, rows, heads):
    """Norms x [rows, heads, head_dim], each head by itself or all as one."""
    d = model.head_dim
    if model.norm_heads:
        normed(given, x, x, rows * heads, d)
    else:
        normed(given, x, x, rows, heads * d)


@njit(**INNER)
def write_keys(model, layer, part, k, v):
    """Norms and rotates k [rows, groups, head_dim], and writes k and v to the layer's cache."""
    apart()
    norm_heads(model, layer.k_norm, k, part.rows, model.groups)
    if layer.cos:
        rotate(model, layer, part, k, model.groups)
    store(model, part, k, layer.key_cache)
    store(model, part, v, layer.value_cache)


@njit(**INNER)
def run_layer(model, layer, part, hidden, x, beside, alone, shared):
    """Runs a decoder layer: attention, then the MLP, each added to the stream x. hidden [rows, newest]: what
    is added to the scores of the newest rows. x, beside (embeddings, where the layer reads them) and `alone`
    are this thread's memory; what the threads compute for each other is in `shared`."""
    size, heads, groups, d = model.hidden, model.heads, model.groups, model.head_dim
    rows, width, start, newest = part.rows, model.width, part.start, part.newest
    h, scores = alone, alone + 4 * rows * size * (2 if model.begins_with_reads else 1)
    result = shared
    q = result + 4 * rows * size
    k = q + 4 * rows * heads * d
    v = k + 4 * rows * groups * d
    gate, up = q, q + 4 * rows * width

    if layer.of_embedding.weight:
        source, before = h, layer.before_attention
        norm(beside, layer.of_embedding.weight, layer.of_embedding.eps, h, rows, size, 2 * size)
        norm(x, before.weight, before.eps, h + 4 * size, rows, size, 2 * size)
        if layer.keeps_normed:
            for n in range(rows):
                copy(h + 4 * (2 * n + 1) * size, x + 4 * n * size, size)
    else:
        source = normed(layer.before_attention, x, h, rows, size)
    product(layer.q, part, source, q)
    product(layer.k, part, source, k)
    product(layer.v, part, source, v)
    meet(part)
    if part.me == 0:
        norm_heads(model, layer.q_norm, q, rows, heads)
        if layer.cos:
            rotate(model, layer, part, q, heads)
        write_keys(model, layer, part, k, v)
    meet(part)
    for n in range(rows):
        end = start + (rows if layer.later or newest else n + 1)
        first = 0
        if layer.window:
            after = start if layer.from_first else place_of(part, n) + 1
            first = max(0, after - layer.window)
        for head in range(part.me, heads, part.threads):
            at = q + 4 * (n * heads + head) * d
            cached = (2 if model.narrow else 4) * (head // (heads // groups) * model.capacity + first) * d
            keys, values, seen = layer.key_cache + cached, layer.value_cache + cached, end - first
            added, scaling, cap = hidden + 4 * n * newest, layer.scaling, layer.softcap
            if model.narrow:
                attend_narrow(at, at, keys, values, scores, d, seen, scaling, cap, added, newest)
            else:
                attend(at, at, keys, values, scores, d, seen, scaling, cap, added, newest)
    meet(part)
    product(layer.out, part, q, result)
    meet(part)
    add(x, normed(layer.after_attention, result, h, rows, size), rows * size)

    source = normed(layer.before_mlp, x, h, rows, size)
    product(layer.gate, part, source, gate)
    product(layer.up, part, source, up)
    first, count = share_of(width, part)
    for n in range(rows):
        at = 4 * (n * width + first)
        activate(gate + at, up + at, count, model.tanh_gelu)
    meet(part)
    product(layer.down, part, gate, result)
    meet(part)
    add(x, normed(layer.after_mlp, result, h, rows, size), rows * size)


@njit(**INNER)
def run(model, layers, call, part, begins, ids):
    """Runs a forward: ids [rows] -> the call's logits [rows, output_width], none where that is 0. begins:
    what the stream begins with."""
    rows, size = part.rows, model.hidden
    beside_size = rows * size if model.begins_with_reads else 0
    alone_size = 2 * rows * size + 2 * beside_size + model.capacity
    x = call.scratch + 4 * part.me * alone_size
    beside, shared = x + 4 * rows * size, call.scratch + 4 * part.threads * alone_size
    alone = beside + 4 * beside_size
    embed(model, part, ids, beside if model.begins_with_reads else x)
    if begins == FEATURES or (begins == LEFT and model.reads_embeddings):
        read_features(model, part, begins, beside, shared + 4 * rows * size, shared)
        copy(shared, x, rows * size)
    elif begins == LEFT:
        copy(model.stream, x, rows * size)
    for index in range(model.layer_count):
        layer = layer_at(layers, index)
        keep(model, part, layer.feature, x)
        run_layer(model, layer, part, call.hidden, x, beside, alone, shared)
    keep(model, part, model.last_feature, x)
    if call.last_alone:
        x += 4 * (rows - 1) * size
        rows = 1
        part = ThreadPart(1, part.start, part.kernels, 0, 0, part.team, part.me, part.threads)
    if not model.last_norm.weight:
        copy(x, alone, rows * size)
    elif call.logits or model.stream_is_normed:
        normed(model.last_norm, x, alone, rows, size)
    if call.logits:
        product(model.head, part, alone, call.logits)
    meet(part)
    if part.me == 0:
        if model.stream:
            copy(alone if model.stream_is_normed else x, model.stream, rows * size)
        if call.logits:
            scale_and_cap(model, call.logits, rows)


@njit(**INNER)
def scale_and_cap(model, logits, rows):
    """Applies the logits' scale and cap."""
    apart()
    factor, cap = model.logits_scale, model.softcap
    values = floats(logits)
    if factor != ONE:
        for i in range(rows * model.output_width):
            values[i] *= factor
    if cap:
        for i in range(rows * model.output_width):
            values[i] = tanh(values[i] / cap) * cap


@njit(**INNER)
def widen(model, logits, wide):
    """Writes a row of logits to wide [vocab], where a token that cannot be drafted has -inf."""
    apart()
    if not model.draft_ids:
        copy(logits, wide, model.vocab)
        return
    ids, given, to = ints(model.draft_ids), floats(logits), floats(wide)
    for i in range(model.vocab):
        to[i] = -np.inf
    for i in range(model.output_width):
        to[ids[i]] = given[i]


@njit(**INNER)
def adjust(drawing, seen, logits, adjusted, count):
    """Adds the bias to a row of logits and applies the penalties. Returns the address of what that gives:
    `logits` itself where there are none."""
    apart()
    how = drawing_at(drawing, 0)
    biased, tokens = int(how.biased_count), drawing + DRAWING_BYTES
    if not seen and not biased:
        return logits
    copy(logits, adjusted, count)
    add_bias(floats(adjusted), doubles(tokens), doubles(tokens + 8 * biased), biased)
    if seen:
        penalise(floats(adjusted), floats(seen), count, how.repetition, how.presence, how.frequency)
    return adjusted


@njit(**INNER)
def draw(drawing, seen, logits, probs, u, count, adjusted, masses, sums):
    """A token that is drawn from a row of logits. Unless that is the likeliest one, it also makes the row of
    probabilities that the token is drawn from."""
    apart()
    how, row = drawing_at(drawing, 0), adjust(drawing, seen, logits, adjusted, count)
    if how.temperature == 0:
        return argmax(floats(row), count)
    shape(
        floats(row), floats(probs), floats(masses), doubles(sums), count,
        how.temperature, int(how.top_k), how.top_p, how.min_p,
    )  # fmt: skip
    return draw_token(floats(probs), count, u)


def sampling_function(cache: bool | None):
    """Compiles what Sampler.sample does. logits, probs: [rows, width]. The others are as in
    `forward_function`."""

    def sample(drawing, seen, logits, rows, width, uniforms, tokens, probs, adjusted, masses, sums):
        for i in range(rows):
            at = 4 * i * width
            u, to = doubles(uniforms)[i], probs + at
            ints(tokens)[i] = draw(drawing, seen, logits + at, to, u, width, adjusted, masses, sums)

    return entry_point(sample, 11, cache)


def forward_function(cache: bool | None):
    """Compiles a forward, and, if `drafts` is not 0, up to so many tokens more, each drawn from the last row
    of the logits and then fed. It takes the addresses of MODEL, of LAYERs and of a CALL.

    Of the call: begins: what the stream begins with. ids [rows + drafts]: the drafted tokens are written
    after the others. start []: the position of the first. last_alone: whether only the last row's logits are
    made. logits: memory for all that are made; 0: none are. hidden [rows, newest]: what is added to the
    scores of the newest rows. draft_logits [drafts, vocab]: the logits after each token. drawing: how
    tokens are drawn. seen [vocab]: that of Sampler.seen, which counts the drafts too in the end; 0:
    nothing is penalised. uniforms [drafts], probs [drafts, vocab]: what tokens are drawn with and from, at a
    temperature above 0. made: how many tokens are drafted, and whether the draft ends with the last of them.
    adjusted, masses [vocab], sums: memory (see shaping.shape)."""

    def forward(model_address, layers, call_address, team, me, threads):
        model, call = model_at(model_address, 0), call_at(call_address, 0)
        begins, ids, rows = call.begins, call.ids, call.rows
        start, wide, probs, drafted = ints(call.start)[0], call.draft_logits, call.probs, 0
        while True:
            part = ThreadPart(rows, start, call.kernels, call.newest, call.depths, team, me, threads)
            run(model, layers, call, part, begins, ids)
            if call.drafts == 0:
                return
            start += rows
            ids += 8 * rows
            if me == 0:
                widen(model, call.logits, wide)
                u = doubles(call.uniforms)[drafted] if call.uniforms else 0.0
                token = draw(
                    call.drawing,
                    call.seen,
                    wide,
                    probs,
                    u,
                    model.vocab,
                    call.adjusted,
                    call.masses,
                    call.sums,
                )
                if probs:
                    probs += 4 * model.vocab
                ints(ids)[0] = token
                if call.seen:
                    floats(call.seen)[token] += ONE
                is_last, least = drafted + 1 == call.drafts, drawing_at(call.drawing, 0).stops_below
                if least > 0 and certainty(floats(wide), model.vocab) < least:
                    is_last = True  # the verifier drops this token
                ints(call.made)[0], ints(call.made)[1] = drafted + 1, is_last
            meet(part)
            wide += 4 * model.vocab
            drafted += 1
            # A thread that has given up waiting for the first one counts for itself.
            if drafted == call.drafts or ints(call.made)[1]:
                return
            rows, begins = 1, LEFT if model.begins_with_reads else EMBEDDINGS

    return entry_point(forward, 6, cache)


def reading_function(cache: bool | None):
    """Compiles what a head, whose layers make keys and values of its target's features, does before a
    forward: it writes those of `rows` positions from `start` on to each layer's cache. It takes what a
    forward takes. scratch: memory for rows of a hidden state, and of the features or a layer's keys and
    values."""

    def read(model_address, layers, call_address, team, me, threads):
        model, call = model_at(model_address, 0), call_at(call_address, 0)
        part = ThreadPart(call.rows, ints(call.start)[0], call.kernels, 0, 0, team, me, threads)
        context, work = call.scratch, call.scratch + 4 * call.rows * model.hidden
        k, v = work, work + 4 * call.rows * model.groups * model.head_dim
        read_features(model, part, FEATURES, 0, work, context)
        for index in range(model.layer_count):
            layer = layer_at(layers, index)
            product(layer.k, part, context, k)
            product(layer.v, part, context, v)
            meet(part)
            if me == 0:
                write_keys(model, layer, part, k, v)
            meet(part)

    return entry_point(read, 6, cache)


def are_upcast_function(cache: bool | None):
    """Compiles a test whether float32 numbers are bfloat16 numbers, to the bit: 1 or 0. It takes the address
    of so many COPYs."""

    def are_upcast(copies, count):
        different = np.int32(0)
        for index in range(count):
            one = copy_at(copies, index)
            wide, short = bits(one.wide), shorts(one.narrow)
            for i in range(one.count):
                different |= wide[i] ^ np.int32(np.uint32(short[i]) << np.uint32(16))
        return different == 0

    return entry_point(are_upcast, 2, cache, types.intp)
