"""The doctor's cheap sections, run on this machine's CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdemo.doctor.sections import capture, failed_capture, parity
from specdemo.doctor.trials import Failed
from tests.fake_cuda import FakeCuda, install

ROOT = Path(__file__).resolve().parents[2]


def doctor(sections: str) -> tuple[subprocess.CompletedProcess, dict]:
    """With no GPU, whether there is one or not."""
    done = subprocess.run(
        [sys.executable, "-m", "specdemo", "doctor", "--sections", sections],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    return done, json.loads(done.stdout.splitlines()[-2])


def test_without_a_gpu_what_needs_one_is_not_run_and_nothing_fails():
    done, told = doctor("versions,capture")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    outcomes = {(check["section"], check["name"]): check["outcome"] for check in told["checks"]}
    assert outcomes["versions", "packages"] == outcomes["versions", "processor"] == "PASS"
    assert outcomes["versions", "GPU"] == outcomes["versions", "bfloat16"] == "NOT RUN"
    assert {outcome for (section, _), outcome in outcomes.items() if section == "capture"} == {"NOT RUN"}
    assert told["versions"]["torch"] == torch.__version__ and told["hardware"]["cpu"]
    assert all(
        "torch" in check["detail"] and "CPU build" in check["detail"] or "sees no" in check["detail"]
        for check in told["checks"]
        if check["section"] == "capture"
    )


@pytest.mark.slow
def test_the_embedded_pairs_rounds_are_profiled_on_a_cpu():
    done, told = doctor("speed")
    assert done.returncode == 0, done.stdout
    measured = told["measured"]
    assert 0 < measured["embedded, greedy"]["roofline"] < 3 and measured["copy_gb_per_s"] > 0
    assert len(told["tables"]) == 2
    for table in told["tables"]:
        times = [row[0] for row in table["rows"]]
        assert len(times) == 15 and times == sorted(times, reverse=True)
        assert "aten::mm" in {row[-1] for row in table["rows"]}


@pytest.mark.slow
def test_the_text_is_compared_with_transformers_and_uncaptured_steps():
    done, told = doctor("parity")
    assert done.returncode == 0, done.stdout
    passed = [check["name"] for check in told["checks"] if check["outcome"] == "PASS"]
    assert passed[0] == "greedy text on the CPU is transformers' own" and len(passed) == 5
    assert all("4 of 4 texts equal" in check["detail"] for check in told["checks"][2:6])


def test_a_text_that_differs_fails(monkeypatch):
    other = iter([[1, 2, 3], [1, 2, 4]])
    monkeypatch.setattr(parity, "text", lambda *_: next(other))
    monkeypatch.setattr(parity, "SAMPLERS", {"greedy": parity.SAMPLERS["greedy"]})
    monkeypatch.setattr(parity, "check_captured", lambda _: None)
    with pytest.raises(Failed, match="greedy from token 2 on"):
        parity.captured_and_not("float32", "model")
    with pytest.raises(Failed, match="differ from token 1 of 3 on"):
        parity._equal([5, 7], [5, 6, 8])


@pytest.mark.parametrize("version", ["2.11", "2.13"])
def test_the_capture_sections_pass_over_stand_ins_for_cuda(monkeypatch, version):
    """But for what measures a GPU's memory."""
    install(monkeypatch, FakeCuda(version))
    for section in (capture, failed_capture):
        monkeypatch.setattr(section, "need_cuda", lambda: None)
        monkeypatch.setattr(
            section, "numbers", lambda n, size=100: capture.Numbers(torch.arange(size).double() + n)
        )
    failed_capture.fail.cache_clear()
    assert "reads tensor values on the host" in failed_capture.fail()
    failed_capture.uncaptured()
    failed_capture.captured()
    capture.replay()
    failed_capture.fail.cache_clear()
