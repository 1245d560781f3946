"""How long a round would take, by count: of the bytes that it must read, of the kernels that it launches, and
with figures that are taken, not measured. The roofline and the doctor count bytes by the same function."""

from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from specdemo.bench.shapes import SHAPES, ModelShape
from specdemo.events.speedup import expected_tokens
from specdemo.runtime.attention import KEYS_AT_ONCE, number_of_parts, parts_of_text
from specdemo.runtime.lm import kv_length_for

COUNTED_GAMMA, COUNTED_ACCEPTANCE = 4, 0.75
TEXTS = (512, 4096, 32_768)  # tokens
ITEMSIZE = 2  # bfloat16
# Taken, not measured: by reading others' measurements on an H100.
PRODUCTS_REACH = 0.68  # of the bandwidth, when few rows are multiplied with a weight
KEY_US = 2.6 / 128  # how long a block of torch's attention takes for a key, of which it reads 128 at a time
# Between two rounds, processor time with the embedded pair on a CPU: 0.70 to 0.84 ms while the host wrote a
# round down before it launched the next one; 0.13 to 0.15 ms now, by `python -m tests.gpu.micro --small`.
HOST_US, HOST_AHEAD_US = 770.0, 140.0
COMBINING = 4  # launches of torch's attention where it is split over the keys, besides its own


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


# Counted without a GPU (torch 2.11, transformers 5.17 and 5.24, 2026-11-26). tests/gpu/test_fake_device.py
# does it again, and says how this table is made anew. What is in SHAPES has the same name there.
COUNTED_PAIRS = {
    "llama-3.2-3b-1b": CountedPair(
        plain=CountedLaunches(draft=1054, verify=557),
        triton=CountedLaunches(draft=638, verify=345),
        from_host=2,
        on_device=0,
    ),
    "qwen3-8b-0.6b": CountedPair(
        plain=CountedLaunches(draft=2086, verify=793),
        triton=CountedLaunches(draft=1070, verify=417),
        from_host=2,
        on_device=0,
    ),
    "llama-3.1-8b-1b": CountedPair(
        plain=CountedLaunches(draft=1054, verify=621),
        triton=CountedLaunches(draft=638, verify=381),
        from_host=2,
        on_device=0,
    ),
    "llama-3.1-8b-eagle3": CountedPair(
        plain=CountedLaunches(draft=240, verify=624),
        triton=CountedLaunches(draft=240, verify=384),
        from_host=2,
        on_device=0,
    ),
    "qwen2.5-7b-0.5b": CountedPair(
        plain=CountedLaunches(draft=1522, verify=557),
        triton=CountedLaunches(draft=930, verify=345),
        from_host=2,
        on_device=0,
    ),
    "gemma-3-1b-270m": CountedPair(
        plain=CountedLaunches(draft=2618, verify=1039),
        triton=CountedLaunches(draft=858, verify=380),
        from_host=2,
        on_device=0,
    ),
}


@dataclass(frozen=True)
class CountedEngine:
    """triton: whether it has kernels written in Triton. attention: over a long cache by our own kernel
    ("kernel"), by torch's, split over the keys ("split"), or by torch's unsplit ("whole"). host_us: between
    two rounds."""

    triton: bool
    attention: Literal["kernel", "split", "whole"]
    host_us: float


ENGINES = {
    "now": CountedEngine(triton=True, attention="kernel", host_us=HOST_AHEAD_US),
    "without Triton": CountedEngine(triton=False, attention="split", host_us=HOST_AHEAD_US),
    "before": CountedEngine(triton=False, attention="whole", host_us=HOST_US),
}


@dataclass(frozen=True)
class Accelerator:
    bandwidth: float  # bytes per second
    node_us: float  # of an empty kernel in a graph
    processors: int


# Nine tenths of the bandwidth that NVIDIA publishes, as copies reach; a node as others have measured it on an
# H100.
GIVEN = {"NVIDIA H200": Accelerator(0.9 * 4.8e12, 1.3, 132)}


@dataclass(frozen=True)
class ForwardBytes:
    """What one forward of few tokens reads."""

    weights: int
    position: int = 0  # keys and values of one position of the text, in all layers
    layers: int = 0
    key_heads: int = 0


def bytes_of_shape(shape: ModelShape) -> ForwardBytes:
    with torch.device("meta"):
        parameters = shape.model().num_parameters()
    of_keys = 2 * shape.num_key_value_heads * shape.head_dim * shape.num_hidden_layers
    table = shape.vocab_size * shape.hidden_size  # of embeddings, of which only some rows are read
    layers = shape.num_hidden_layers, shape.num_key_value_heads
    return ForwardBytes(ITEMSIZE * (parameters - table), ITEMSIZE * of_keys, *layers)


def bytes_of_model(model: PreTrainedModel, weights: int) -> ForwardBytes:
    """weights: bytes of them that a forward reads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = config.num_hidden_layers
    return ForwardBytes(weights, 2 * heads * width * layers * model.dtype.itemsize, layers, heads)


def round_bytes(target: ForwardBytes, drafter: ForwardBytes | None, gamma: int, text: int = 0) -> int:
    """What a round must read: the target's weights once and the drafter's `gamma` times, and each time the
    keys and values of `text` positions."""
    once = [target] + [drafter] * (gamma if drafter is not None else 0)
    return sum(model.weights + model.position * text for model in once if model is not None)


@dataclass(frozen=True)
class CountedRound:
    """Microseconds. The limit: what must be read, at the memory's bandwidth."""

    limit: float
    products: float
    attention: float
    launches: float
    host: float

    @property
    def us(self) -> float:
        return self.products + self.attention + self.launches + self.host

    @property
    def share(self) -> float:
        return self.limit / self.us


def counted_round(
    name: str, machine: Accelerator, text: int, gamma: int = COUNTED_GAMMA, engine: str = "now"
) -> CountedRound:
    """A round of SHAPES[name] after `text` tokens. gamma 0: a round of the target alone. engine: one of
    ENGINES."""
    target, drafter = (bytes_of_shape(shape) for shape in SHAPES[name])
    per_us = machine.bandwidth / 1e6  # bytes
    weights, how = round_bytes(target, drafter, gamma), ENGINES[engine]
    of_steps = COUNTED_PAIRS[name].triton if how.triton else COUNTED_PAIRS[name].plain
    launches = of_steps.draft * gamma / COUNTED_GAMMA + of_steps.verify
    attentions = [target, *[drafter] * gamma]
    return CountedRound(
        limit=round_bytes(target, drafter, gamma, text) / per_us,
        products=weights / per_us / PRODUCTS_REACH,
        attention=sum(_attention_us(model, machine, text, how.attention) for model in attentions),
        launches=launches * machine.node_us,
        host=how.host_us,
    )


def _attention_us(model: ForwardBytes, machine: Accelerator, text: int, how: str) -> float:
    """Of one forward. A block reads the keys of its part one after the other, and all together are no faster
    than the memory. Our own kernel reads what the text has, and then the forward's tokens; torch's reads as
    many keys as the captured forward has, masked ones as well."""
    keys = kv_length_for(text + COUNTED_GAMMA + 1, torch.device("cuda"))
    combining = 0.0
    if how == "kernel":
        steps = -(-text // KEYS_AT_ONCE)
        one_block = -(-steps // parts_of_text(keys, model.key_heads, machine.processors)) + 1
        of_block, keys = one_block * KEYS_AT_ONCE, text
    else:
        parts = number_of_parts(keys, model.key_heads, machine.processors) if how == "split" else 1
        of_block = keys // parts
        combining = model.layers * COMBINING * machine.node_us if parts > 1 else 0.0
    of_blocks = model.layers * of_block * KEY_US
    return max(of_blocks, model.position * keys * 1e6 / machine.bandwidth) + combining


COUNT_COLUMNS = ["engine", "text", "limit", "products", "attention", "launches", "host", "round"]
COUNT_COLUMNS += ["of the limit", "tokens/s", "x plain"]


def count_rows(name: str, machine: Accelerator) -> list[list[str | float | None]]:
    """A table by COUNT_COLUMNS, times in us, with COUNTED_GAMMA and COUNTED_ACCEPTANCE."""
    tokens, rows = expected_tokens(COUNTED_ACCEPTANCE, COUNTED_GAMMA), []
    for engine in ENGINES:
        for text in TEXTS:
            one = counted_round(name, machine, text, engine=engine)
            plain = counted_round(name, machine, text, gamma=0, engine=engine)
            times = (one.limit, one.products, one.attention, one.launches, one.host, one.us)
            speed = (f"{one.share:.0%}", round(tokens * 1e6 / one.us), f"{tokens * plain.us / one.us:.2f}")
            rows.append([engine, text, *map(round, times), *speed])
    return rows
