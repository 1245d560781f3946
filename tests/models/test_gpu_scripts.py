"""The scripts for a GPU (tests/gpu), over stand-ins for CUDA's graphs and on the CPU."""

import pytest

from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs
from tests.fake_cuda import FakeCuda, install
from tests.gpu.micro import main as micro_main
from tests.gpu.soak import main as soak_main
from tests.gpu.soak import soak
from tests.runners import run_by
from tests.tiny import noisy, tiny

pytestmark = pytest.mark.slow
BEGINNING = [5, 17, 3, 8]


@pytest.fixture
def fake(monkeypatch):
    """On a CPU a draft looks at its confidence token by token, which no capture allows."""
    monkeypatch.setattr("tests.gpu.soak.CONFIDENCES", (0.0,))
    return install(monkeypatch, FakeCuda())


def captured_pair():
    return run_by(tiny("llama"), noisy(tiny("llama")), Graphs(Clock()))


def test_graphs_that_are_right_pass(fake):
    found = soak(captured_pair(), BEGINNING, seconds=600, seed=1, most_runs=2)
    assert found.runs == 2 and found.difference is None and "replay" in fake.log


def no_verdict(graph, fake):
    graph.operations.noted[-1][-1].zero_()


def no_write(graph, fake):
    """Keys and values are not written any more."""
    fake.skipped.add("index_copy_")


@pytest.mark.parametrize("fault", [no_verdict, no_write])
def test_a_graph_that_is_wrong_when_it_is_used_again_is_found(fake, fault):
    """Its comparison with the step, at its capture, takes three replays."""
    fake.tamper = lambda graph: fault(graph, fake) if graph.replays > 8 else None
    found = soak(captured_pair(), BEGINNING, seconds=600, seed=1)
    assert found.difference and "draft_with=" in found.difference and "seed=" in found.difference


def test_a_pair_that_is_not_captured_fails(fake):
    pair = captured_pair()
    pair.runner.graphs.blocker = "it must not be"
    found = soak(pair, BEGINNING, seconds=600, seed=1)
    assert found.runs == 1 and "cannot be captured" in found.difference
    assert "it must not be" in found.difference


def test_the_scripts_run_on_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr("tests.gpu.micro.RUNS", 1)
    assert soak_main(["--seconds", "1", "--device", "cpu"]) == 0
    assert "each equal to itself uncaptured" in capsys.readouterr().out
    assert micro_main(["--small"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
