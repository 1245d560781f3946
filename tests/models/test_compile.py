"""Compiled forwards, which are recorded on CUDA. What a CPU can show: they compile in one piece, and write the same."""

import shutil

import pytest
import torch

from specdemo import Params, load_pair, stream
from specdemo.loading.pair import Pair
from specdemo.runtime.graphs import Eager
from tests.tiny import noisy, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU"),
]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_compiled_pair_writes_the_same(name, monkeypatch):
    target = tiny(name)
    pair, params = (
        load_pair(target=target, drafter=noisy(target)),
        Params(temperature=0, max_new_tokens=30, seed=1),
    )
    expected = text_of(pair, params)
    for lm in pair.lms:
        lm.exact = False
        lm.compile(True)
    monkeypatch.setattr(Pair, "steps", lambda pair: (*pair.lms, Eager()))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert text_of(pair, params) == expected
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 3, (
        "target and drafter, of one row, two and more"
    )
    assert not torch._dynamo.utils.counters["graph_break"]


def text_of(pair, params):
    run = stream(pair, [5, 17, 3, 88, 42], params)
    for _ in run:
        pass
    assert run.trace.stats.accepted
    return run.trace.output_ids
