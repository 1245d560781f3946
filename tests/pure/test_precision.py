"""What torch is told for a pair's forwards, whatever the process or its container has asked for: float32 on a
GPU is computed in float32, and cuDNN's attention is left out."""

from contextlib import ExitStack

import pytest
import torch

from specdemo import load_pair
from specdemo.runtime.shared import full_float32
from tests.fake_cuda import FakeCuda, install
from tests.tiny import tiny

backends = torch.backends
NEW = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)


def set_new(value: str, *which: object) -> None:
    for one in which:
        one.fp32_precision = value


ASKS = {
    "torch's defaults": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "the new settings": lambda: set_new("tf32", *NEW[:1], *NEW[2:]),
    "the old and the new ones contradict each other": lambda: (
        torch.set_float32_matmul_precision("high"),
        set_new("ieee", backends.cuda.matmul, backends.cudnn.conv),
    ),
}


def told(read):
    try:
        return read()
    except RuntimeError:  # the settings contradict each other
        return "contradiction"


def settings() -> list:
    old = (torch.get_float32_matmul_precision, lambda: backends.cudnn.allow_tf32)
    return [*map(told, old), *(one.fp32_precision for one in (backends, *NEW))]


def is_full() -> bool:
    now = settings()
    return [*now[:2], *now[3:]] == ["highest", False, "ieee", "ieee", "ieee", "ieee"]


@pytest.fixture(params=ASKS)
def asked(request):
    """What the process has asked for, as `settings` tells it."""
    before = backends.fp32_precision, [one.fp32_precision for one in NEW], backends.cudnn.allow_tf32
    ASKS[request.param]()
    yield settings()
    set_new(before[0], backends)
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = before[2]
    for one, value in zip(NEW, before[1], strict=True):
        one.fp32_precision = value


def test_full_precision_is_set_and_put_back(asked):
    assert not is_full()
    with ExitStack() as other:
        with full_float32():
            assert is_full()
            other.enter_context(full_float32())
        assert is_full(), "another thread still needs that"
    assert settings() == asked
    with pytest.raises(ZeroDivisionError), full_float32():
        1 / 0  # noqa: B018
    assert settings() == asked


def now() -> tuple[bool, bool]:
    """Whether float32 is computed in full, and whether cuDNN's attention may be taken."""
    return is_full(), backends.cuda.cudnn_sdp_enabled()


def test_a_model_is_tried_in_it_on_a_gpu_alone(monkeypatch):
    seen, model = [], tiny("llama", seed=5)
    model.register_forward_pre_hook(lambda *_: seen.append(now()))
    with monkeypatch.context() as on_gpu:
        install(on_gpu, FakeCuda())
        load_pair(target=model)
    assert set(seen) == {(True, False)} and now() == (False, True)
