"""What a round would take by count."""

from dataclasses import replace

import pytest
import torch

from specdemo.bench import by_count
from specdemo.bench.by_count import (
    COUNT_COLUMNS,
    ForwardBytes,
    bytes_of_model,
    bytes_of_shape,
    count_rows,
    counted_round,
    round_bytes,
)
from specdemo.bench.cards import CARDS
from specdemo.bench.shapes import SHAPES, TINY_TARGET
from specdemo.events.speedup import expected_tokens
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.weights import weight_bytes
from tests.tiny import tiny

H200 = CARDS["h200"].accelerator
ENGINES_IN_TURN = ("with Triton", "without Triton")


def test_the_bytes_of_a_round_are_counted_by_hand():
    target, drafter = ForwardBytes(1000, 10), ForwardBytes(100, 1)
    assert round_bytes(target, drafter, 4) == 1000 + 4 * 100
    assert round_bytes(target, drafter, 4, 50) == 1000 + 50 * 10 + 4 * (100 + 50)
    assert round_bytes(target, drafter, 0, 50) == round_bytes(target, None, 4, 50) == 1500


def test_a_shape_reads_what_a_model_of_it_reads():
    model = TINY_TARGET.model().to(torch.bfloat16)
    counted, read = bytes_of_shape(TINY_TARGET), bytes_of_model(model, weight_bytes(model))
    assert replace(counted, weights=0) == replace(read, weights=0)
    # A model has the angles of the rotation, too.
    assert counted.weights == pytest.approx(read.weights, rel=1e-3)
    published = {"llama-3.2-3b-1b": (3.21e9, 1.24e9), "qwen3-8b-0.6b": (7.57e9, 0.596e9)}
    for name, parameters in published.items():  # those that a forward reads
        read = [bytes_of_shape(shape).weights / 2 for shape in SHAPES[name]]
        assert read == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_the_bytes_of_a_position_are_those_that_the_cache_takes(name):
    model = tiny(name)
    lm = CachedLM(model)
    lm.prefill(torch.arange(8))
    cached = [each for layer in lm.cache.layers for each in (layer.keys, layer.values)]
    held = [tensor.nbytes // tensor.shape[-2] for tensor in cached]
    assert sum(held) == bytes_of_model(model, 0).position


@pytest.mark.slow
def test_a_round_takes_longer_than_its_limit_and_least_with_triton():
    for name in (name for name in by_count.COUNTED_PAIRS if name in SHAPES):
        for text in by_count.TEXTS:
            now, without = (counted_round(name, H200, text, engine=engine) for engine in ENGINES_IN_TURN)
            assert now.limit == without.limit < now.products + now.attention < now.us < without.us
            assert now.attention < without.attention and now.others < without.others


def test_the_count_is_near_what_was_measured():
    """On that H200: `bench --shapes llama-3.2-3b-1b`, see the README."""
    for text, measured_ms in ((512, 6.42), (4096, 6.72)):
        counted = counted_round("llama-3.2-3b-1b", H200, text)
        assert counted.us / 1000 == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.slow
def test_a_row_of_the_table():
    row = dict(zip(COUNT_COLUMNS, count_rows("llama-3.2-3b-1b", H200)[0], strict=True))
    plain = counted_round("llama-3.2-3b-1b", H200, row["text"], gamma=0, engine=row["engine"])
    tokens = expected_tokens(0.75, 4)
    assert row["tokens/s"] == pytest.approx(tokens * 1e6 / row["round"], rel=0.01)
    assert float(row["x plain"]) == pytest.approx(tokens * plain.us / row["round"], rel=0.01)
    assert row["of copy"] == f"{row['limit'] / row['round']:.0%}"
    assert row["of spec."] == f"{row['limit'] * 3.78 / 4.8 / row['round']:.0%}"
