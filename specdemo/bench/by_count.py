"""How long a round would take, by count: of the bytes that it must read and of the kernels that it launches,
with times that were measured on one GPU. The roofline and the doctor count bytes by the same function."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from specdemo.bench.shapes import SHAPES, ModelShape
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
    """The engine, with or without Triton. row_us: the time of a product with a single row, beyond reading its
    weight. A layer's attention takes `attention_us`, and reads its keys and values at `attention_reach` of
    the memory's bandwidth. attention_launches: the attention's kernels in CountedLaunches. The times were
    measured as those above."""

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
class Accelerator:
    bandwidth: float  # bytes per second
    node_us: float  # of an empty kernel in a graph


GIVEN = {"NVIDIA H200": Accelerator(3.78e12, 0.91)}  # as measured on one (2026-11-26, `doctor`)


@dataclass(frozen=True)
class ForwardBytes:
    """What one forward of few tokens reads."""

    weights: int
    position: int = 0  # keys and values of one position of the text, in all layers
    layers: int = 0

    @property
    def products(self) -> int:
        """The number of products in a fused forward: four a layer, and the output layer's."""
        return 4 * self.layers + 1


def bytes_of_shape(shape: ModelShape) -> ForwardBytes:
    with torch.device("meta"):
        parameters = shape.model().num_parameters()
    of_keys = 2 * shape.num_key_value_heads * shape.head_dim * shape.num_hidden_layers
    table = shape.vocab_size * shape.hidden_size  # of embeddings, of which only some rows are read
    return ForwardBytes(ITEMSIZE * (parameters - table), ITEMSIZE * of_keys, shape.num_hidden_layers)


def bytes_of_model(model: PreTrainedModel, weights: int) -> ForwardBytes:
    """What one forward of the model reads. weights: the bytes of weights that it reads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = config.num_hidden_layers
    return ForwardBytes(weights, 2 * heads * width * layers * model.dtype.itemsize, layers)


def round_bytes(target: ForwardBytes, drafter: ForwardBytes | None, gamma: int, text: int = 0) -> int:
    """What a round must read: the target's weights once and the drafter's `gamma` times, and each time the
    keys and values of `text` positions."""
    once = [target] + [drafter] * (gamma if drafter is not None else 0)
    return sum(model.weights + model.position * text for model in once if model is not None)


@dataclass(frozen=True)
class CountedRound:
    """The times of a round in microseconds. The limit is the time of what must be read, at the memory's
    bandwidth."""

    limit: float
    products: float
    attention: float
    others: float
    host: float

    @property
    def us(self) -> float:
        return self.products + self.attention + self.others + self.host

    @property
    def share(self) -> float:
        return self.limit / self.us


def counted_round(
    name: str, machine: Accelerator, text: int, gamma: int = COUNTED_GAMMA, engine: str = "with Triton"
) -> CountedRound:
    """A round of SHAPES[name] after `text` tokens. gamma 0: a round of the target alone. engine: one of
    ENGINES."""
    target, drafter = (bytes_of_shape(shape) for shape in SHAPES[name])
    per_us, how = machine.bandwidth / 1e6, ENGINES[engine]  # bytes
    of_steps = COUNTED_PAIRS[name].triton if how.triton else COUNTED_PAIRS[name].plain
    launches = of_steps.draft * gamma / COUNTED_GAMMA + of_steps.verify
    forwards = [target, *[drafter] * gamma]
    products = sum(model.products for model in forwards)
    layers = sum(model.layers for model in forwards)
    # Products with a single row, which are not the output layers'. The first draft's forward has two rows.
    rows = 4 * ((gamma - 1) * drafter.layers if gamma else target.layers)
    keys_and_values = sum(model.position for model in forwards) * text
    return CountedRound(
        limit=round_bytes(target, drafter, gamma, text) / per_us,
        products=(
            round_bytes(target, drafter, gamma) / per_us + rows * how.row_us + (products - rows) * LIBRARY_US
        ),
        attention=layers * how.attention_us + keys_and_values / per_us / how.attention_reach,
        others=(launches - products - layers * how.attention_launches) * (machine.node_us + SMALL_KERNEL_US),
        host=HOST_US,
    )


COUNT_COLUMNS = ["engine", "text", "limit", "products", "attention", "others", "host", "round"]
COUNT_COLUMNS += ["of the limit", "tokens/s", "x plain"]


def count_rows(name: str, machine: Accelerator) -> list[list[str | float | None]]:
    """A table by COUNT_COLUMNS, times in us, with COUNTED_GAMMA and COUNTED_ACCEPTANCE."""
    tokens, rows = expected_tokens(COUNTED_ACCEPTANCE, COUNTED_GAMMA), []
    for engine in ENGINES:
        for text in TEXTS:
            one = counted_round(name, machine, text, engine=engine)
            plain = counted_round(name, machine, text, gamma=0, engine=engine)
            times = (one.limit, one.products, one.attention, one.others, one.host, one.us)
            speed = (f"{one.share:.0%}", round(tokens * 1e6 / one.us), f"{tokens * plain.us / one.us:.2f}")
            rows.append([engine, text, *map(round, times), *speed])
    return rows
