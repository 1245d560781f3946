"""How long a round would take, by count: of the bytes that it must read and of the kernels that it launches,
with times that were measured on one GPU. The roofline and the doctor count bytes by the same function."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from specdemo.bench.cards import Accelerator, reached
from specdemo.bench.shapes import LLAMA_1B, LLAMA_3B, LLAMA_8B, SHAPES, ModelShape
from specdemo.events.speedup import expected_tokens

COUNTED_GAMMA, COUNTED_ACCEPTANCE = 4, 0.75
TEXTS = (512, 4096, 32_768)  # tokens
ITEMSIZE = 2  # bfloat16
# Microseconds, measured on an NVIDIA H100 (2026-11-26, torch 2.11, bfloat16; see the README).
LIBRARY_US, ROW_US = 3.5, 1.0  # of a product beyond reading its weight: by cuBLAS, and of a row by our kernel
SMALL_KERNEL_US = 0.9  # of a norm, a gate or a step of the sampler, beyond an empty kernel
HOST_US = 130.0  # between two rounds


@dataclass(frozen=True)
class CountedLaunches:
    """Kernels of the two steps of a round with COUNTED_GAMMA drafts, greedy, without alternatives."""

    draft: int
    verify: int


@dataclass(frozen=True)
class CountedPair:
    """What a round gives a GPU. plain, triton: without and with kernels written in Triton. from_host,
    on_device: copies that the host launches before the steps are replayed, to the device and on it."""

    plain: CountedLaunches
    triton: CountedLaunches
    from_host: int
    on_device: int


# These launches were counted without a GPU (torch 2.11, transformers 5.17, 2026-11-27).
# tests/gpu/test_fake_device.py counts them again, and says how this table is made anew. A pair that is also
# in SHAPES has the same name there.
COUNTED_PAIRS = {
    "llama-3.2-3b-1b": CountedPair(
        plain=CountedLaunches(draft=1043, verify=554),
        triton=CountedLaunches(draft=627, verify=342),
        from_host=2,
        on_device=0,
    ),
    "qwen3-8b-0.6b": CountedPair(
        plain=CountedLaunches(draft=2075, verify=790),
        triton=CountedLaunches(draft=1059, verify=414),
        from_host=2,
        on_device=0,
    ),
    "llama-3.1-8b-1b": CountedPair(
        plain=CountedLaunches(draft=1043, verify=618),
        triton=CountedLaunches(draft=627, verify=378),
        from_host=2,
        on_device=0,
    ),
    "llama-3.1-8b-eagle3": CountedPair(
        plain=CountedLaunches(draft=145, verify=621),
        triton=CountedLaunches(draft=103, verify=381),
        from_host=2,
        on_device=0,
    ),
    "qwen2.5-7b-0.5b": CountedPair(
        plain=CountedLaunches(draft=1511, verify=554),
        triton=CountedLaunches(draft=919, verify=342),
        from_host=2,
        on_device=0,
    ),
    "gemma-3-1b-270m": CountedPair(
        plain=CountedLaunches(draft=2611, verify=1037),
        triton=CountedLaunches(draft=847, verify=377),
        from_host=2,
        on_device=0,
    ),
}


@dataclass(frozen=True)
class CountedEngine:
    """The engine, with or without Triton. row_us: the time of a product with one row or two, beyond reading
    its weight. A layer's attention takes `attention_us`, and reads its keys and values at `attention_reach`
    of the copy bandwidth. attention_launches: the attention's kernels in CountedLaunches. The times of
    one row were measured as those above, and two are taken to be the same."""

    triton: bool
    row_us: float
    attention_us: float
    attention_launches: int
    attention_reach: float


ENGINES = {
    "with Triton": CountedEngine(
        triton=True, row_us=ROW_US, attention_us=6.0, attention_launches=2, attention_reach=1.0
    ),
    "without Triton": CountedEngine(
        triton=False, row_us=LIBRARY_US, attention_us=27.0, attention_launches=1, attention_reach=0.6
    ),
}


@dataclass(frozen=True)
class ForwardBytes:
    """What one forward of few tokens reads."""

    weights: int
    position: int = 0  # keys and values of one position of the text, in all layers
    layers: int = 0
    parameters: int = 0  # that each row is multiplied with; 0: computing is taken to be free

    @property
    def products(self) -> int:
        """The number of products in a fused forward: four a layer, and the output layer's."""
        return 4 * self.layers + 1


def bytes_of_shape(shape: ModelShape) -> ForwardBytes:
    with torch.device("meta"):
        parameters = shape.model().num_parameters()
    of_keys = 2 * shape.num_key_value_heads * shape.head_dim * shape.num_hidden_layers
    table = shape.vocab_size * shape.hidden_size  # of embeddings, of which only some rows are read
    read = parameters - table
    return ForwardBytes(ITEMSIZE * read, ITEMSIZE * of_keys, shape.num_hidden_layers, read)


def bytes_of_model(model: PreTrainedModel, weights: int) -> ForwardBytes:
    """What one forward of the model reads. weights: the bytes of weights that it reads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers, output = config.num_hidden_layers, model.get_output_embeddings()
    parameters = model.num_parameters(exclude_embeddings=True)
    if output is not None and output.weight is model.get_input_embeddings().weight:
        parameters += output.weight.numel()
    return ForwardBytes(weights, 2 * heads * width * layers * model.dtype.itemsize, layers, parameters)


def round_bytes(target: ForwardBytes, drafter: ForwardBytes | None, gamma: int, text: int = 0) -> int:
    """What a round must read: the target's weights once and the drafter's `gamma` times, and each time the
    keys and values of `text` positions."""
    once = [target] + [drafter] * (gamma if drafter is not None else 0)
    return sum(model.weights + model.position * text for model in once if model is not None)


@dataclass(frozen=True)
class CountedRound:
    """The times of a round in microseconds. The limit is the time of what must be read, at the copy
    bandwidth."""

    limit: float
    products: float
    attention: float
    others: float
    host: float

    @property
    def us(self) -> float:
        return self.products + self.attention + self.others + self.host


@dataclass(frozen=True)
class Forward:
    """One forward of a round, and the rows that go through it: a token of one text each."""

    read: ForwardBytes
    rows: int


def forwards_of_round(
    target: ForwardBytes, drafter: ForwardBytes | None, gamma: int, batch: int = 1, at_once: bool = False
) -> list[Forward]:
    """The forwards of a round of `batch` texts, the target's first. drafter: None where drafting runs no
    model. at_once: the drafter makes a whole draft in one forward."""
    checks = [Forward(target, batch * (gamma + 1))]
    if drafter is None or not gamma:
        return checks
    if at_once:
        return [*checks, Forward(drafter, batch * (gamma + 1))]
    # The first draft's forward has two rows.
    return [*checks, Forward(drafter, 2 * batch), *[Forward(drafter, batch)] * (gamma - 1)]


def counted(
    forwards: Sequence[Forward],
    launches: float,
    machine: Accelerator,
    text: int,
    engine: str = "with Triton",
    batch: int = 1,
) -> CountedRound:
    """A round of these forwards after `text` tokens of each of `batch` texts. launches: its kernels. engine:
    one of ENGINES. A forward's products take as long as reading its weights, or as computing them where that
    is longer."""
    per_us, peak_us, how = machine.bandwidth / 1e6, machine.peak / 1e6, ENGINES[engine]  # bytes, operations
    reading = sum(
        max(one.read.weights / per_us, 2 * one.read.parameters * one.rows / peak_us) for one in forwards
    )
    products = sum(one.read.products for one in forwards)
    layers = sum(one.read.layers for one in forwards)
    # Products with one row or two, which are not the output layers'.
    few = 4 * sum(one.read.layers for one in forwards if one.rows <= 2)
    weights = sum(one.read.weights for one in forwards)
    keys_and_values = sum(one.read.position for one in forwards) * text * batch
    return CountedRound(
        limit=(weights + keys_and_values) / per_us,
        products=reading + few * how.row_us + (products - few) * LIBRARY_US,
        attention=layers * how.attention_us + keys_and_values / per_us / how.attention_reach,
        others=(launches - products - layers * how.attention_launches) * (machine.node_us + SMALL_KERNEL_US),
        host=HOST_US,
    )


def counted_round(
    name: str, machine: Accelerator, text: int, gamma: int = COUNTED_GAMMA, engine: str = "with Triton"
) -> CountedRound:
    """A round of SHAPES[name] after `text` tokens. gamma 0: a round of the target alone. engine: one of
    ENGINES."""
    target, drafter = (bytes_of_shape(shape) for shape in SHAPES[name])
    of_steps = launches_of(name, engine)
    launches = of_steps.draft * gamma / COUNTED_GAMMA + of_steps.verify
    return counted(forwards_of_round(target, drafter, gamma), launches, machine, text, engine)


def launches_of(name: str, engine: str) -> CountedLaunches:
    pair = COUNTED_PAIRS[name]
    return pair.triton if ENGINES[engine].triton else pair.plain


def usual_launches(forwards: Sequence[Forward], engine: str = "with Triton") -> float:
    """The kernels of a round of Llama-like models, by their layers: on the straight line through two pairs of
    COUNTED_PAIRS. The first forward is the target's."""
    small, large = (launches_of(name, engine) for name in ("llama-3.2-3b-1b", "llama-3.1-8b-1b"))
    of_layer = (large.verify - small.verify) / (LLAMA_8B.num_hidden_layers - LLAMA_3B.num_hidden_layers)
    of_check = small.verify - of_layer * LLAMA_3B.num_hidden_layers  # beside its layers
    of_draft = small.draft / COUNTED_GAMMA - of_layer * LLAMA_1B.num_hidden_layers
    layers = sum(one.read.layers for one in forwards)
    return of_layer * layers + of_check + of_draft * (len(forwards) - 1)


COUNT_COLUMNS = ["engine", "text", "limit", "products", "attention", "others", "host", "round"]
COUNT_COLUMNS += ["of copy", "of spec.", "tokens/s", "x plain"]


def count_rows(name: str, machine: Accelerator) -> list[list[str | float | None]]:
    """A table by COUNT_COLUMNS, times in us, with COUNTED_GAMMA and COUNTED_ACCEPTANCE. of copy, of spec.:
    the shares of the copy bandwidth and of the specified one that are reached."""
    tokens, rows = expected_tokens(COUNTED_ACCEPTANCE, COUNTED_GAMMA), []
    for engine in ENGINES:
        for text in TEXTS:
            one = counted_round(name, machine, text, engine=engine)
            plain = counted_round(name, machine, text, gamma=0, engine=engine)
            times = (one.limit, one.products, one.attention, one.others, one.host, one.us)
            share = reached(machine.bandwidth * one.limit / one.us, machine.bandwidth, machine.specified)
            shares = [one and f"{one:.0%}" for one in (share.of_copy, share.of_specification)]
            speed = (round(tokens * 1e6 / one.us), f"{tokens * plain.us / one.us:.2f}")
            rows.append([engine, text, *map(round, times), *shares, *speed])
    return rows
