"""The comparison of a GPU's text with the CPU's: made once, remembered if it was right, told if not."""

import pytest
import torch

from specdemo.runtime import probe

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def new_process(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    return lambda: monkeypatch.setattr(probe, "_known", {})


class Writer:
    def __init__(self, on_gpu, on_cpu=(5, 6, 7)):
        self.texts = {"cuda:0": on_gpu, "cpu": on_cpu}
        self.asked = []

    def __call__(self, device):
        self.asked.append(device)
        return list(self.texts[device])


def test_a_gpu_that_writes_the_same_is_compared_once_for_all_processes(new_process, monkeypatch):
    write = Writer((5, 6, 7))
    for _ in range(2):
        for _ in range(2):
            assert probe.gpu_fault(GPU, write) is None
            assert write.asked == ["cuda:0", "cpu"]
        new_process()
    monkeypatch.setattr(probe, "version", lambda package: "99.0")
    probe.gpu_fault(GPU, write)
    assert len(write.asked) == 4, "other versions are compared again"


@pytest.mark.parametrize(("text", "place"), [((5, 9, 7), 2), ((5, 6), 3), ((5, 6, 7, 8), 4)])
def test_one_that_differs_is_told_and_compared_again_in_the_next_process(new_process, text, place):
    write = Writer(text)
    note = probe.gpu_fault(GPU, write)
    assert "Some GPU" in note and f"token {place} " in note
    assert probe.gpu_fault(GPU, write) == note and len(write.asked) == 2
    new_process()
    assert probe.gpu_fault(GPU, write) == note and len(write.asked) == 4


def test_the_comparison_s_own_runs_are_not_compared_and_an_error_in_one_ends_nothing():
    def write(device):
        assert probe.gpu_fault(GPU, write) is None
        raise RuntimeError("out of memory")

    assert "out of memory" in probe.gpu_fault(GPU, write)


@pytest.mark.parametrize("content", ["no json", None])
def test_a_broken_file_and_a_cache_that_cannot_be_written_are_no_obstacle(tmp_path, content):
    if content is None:
        (tmp_path / "cache").write_text("a file where the directory should be")
    else:
        (tmp_path / "cache" / "specdemo").mkdir(parents=True)
        (tmp_path / "cache" / "specdemo" / "gpus.json").write_text(content)
    assert probe.gpu_fault(GPU, Writer((5, 6, 7))) is None
