"""Fused forwards whose small operations are compiled, which are captured on CUDA. What a CPU can show: they
compile in one piece, once for all numbers of rows, and write the same."""

import shutil
from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.runtime.graphs import EagerSteps
from tests.runners import run_by
from tests.tiny import noisy, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU"),
]


def test_a_compiled_pair_writes_the_same():
    target = tiny("gemma3")
    drafter, params = noisy(target), Params(temperature=0, max_new_tokens=30, seed=1)
    expected = text_of(load_pair(target=target, drafter=drafter), params)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = run_by(target, drafter, EagerSteps(), compiled=True)
    assert text_of(compiled, params) == expected
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs >= 2, "the rotation and the gate"
    assert not torch._dynamo.utils.counters["graph_break"]
    text_of(compiled, replace(params, gamma=7, max_new_tokens=60))  # other numbers of rows, longer caches
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def text_of(pair, params):
    trace = generate(pair, [5, 17, 3, 88, 42], params)
    assert trace.stats.accepted
    return trace.output_ids
