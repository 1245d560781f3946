"""The doctor's cheap sections, run on this machine's CPU."""

import json

import pytest
import torch

from specdemo.cli.main import main
from specdemo.doctor import checks
from specdemo.doctor.run import Failed
from specdemo.measure import bench


@pytest.fixture(scope="module", autouse=True)
def no_pair_is_kept():
    yield
    checks.embedded.cache_clear()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_what_needs_one_is_not_run_and_a_broken_package_fails_nothing(
    capsys, monkeypatch, tmp_path
):
    (tmp_path / "transformers.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["doctor", "--sections", "versions"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-2])
    outcomes = {(check["section"], check["name"]): check["outcome"] for check in told["checks"]}
    assert outcomes["versions", "packages"] == outcomes["versions", "processor"] == "PASS"
    assert outcomes["versions", "GPU"] == "NOT RUN"
    assert told["versions"]["torch"] == torch.__version__ and told["hardware"]["cpu"]


def test_transformers_text_is_made_with_one_thread_as_a_run_is(monkeypatch, three_threads):
    seen = []
    monkeypatch.setattr(
        bench, "theirs", lambda *_: lambda ids: (seen.append(torch.get_num_threads()) or [5, 6], None)
    )
    monkeypatch.setattr(checks, "text", lambda _: [5, 6])
    assert "1 of 1" in checks.cpu_and_transformers()
    assert seen == [1] and torch.get_num_threads() == 3


@pytest.mark.slow
def test_the_text_is_compared_with_transformers_and_uncaptured_steps():
    assert "1 of 1" in checks.cpu_and_transformers()
    assert "4 of 4" in checks.captured_and_not("float32", "model")


def test_a_text_that_differs_fails(monkeypatch):
    other = iter([[1, 2, 3], [1, 2, 4]])
    monkeypatch.setattr(checks, "text", lambda *_: next(other))
    monkeypatch.setattr(checks, "SAMPLERS", {"greedy": checks.SAMPLERS["greedy"]})
    with pytest.raises(Failed, match="greedy from token 2"):
        checks.captured_and_not("float32", "model")
    assert checks.compared({"one": ([5, 7], [5, 6])}, must_be_equal=False).startswith("0 of 1")
