"""Float32 on a GPU is computed in float32, whatever the process or its container has asked for."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from specdemo import load_pair
from specdemo.drafters.kinds import cached_drafter
from specdemo.runtime.precision import full_float32
from specdemo.runtime.runner import Runner
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
    "the new settings for all": lambda: set_new("tf32", backends),
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


FULL = ["highest", False, "ieee", "ieee", "ieee", "ieee"]


def is_full() -> bool:
    now = settings()
    return [*now[:2], *now[3:]] == FULL


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


@pytest.mark.parametrize(
    ("target", "drafter", "full"),
    [
        (("cuda", torch.float32), None, True),
        (("cuda", torch.bfloat16), ("cuda", torch.float32), True),
        (("cuda", torch.bfloat16), ("cpu", torch.float32), False),
        (("cpu", torch.float32), None, False),
    ],
    ids=str,
)
def test_a_runner_sets_it_for_float32_on_a_gpu(target, drafter, full):
    models = [
        given and SimpleNamespace(device=torch.device(given[0]), dtype=given[1], num_parameters=lambda: 1)
        for given in (target, drafter)
    ]
    usual = settings()
    assert not is_full()
    with Runner(*models, cached_drafter).torch_settings():
        assert is_full() == full
    assert settings() == usual


def test_a_model_is_tried_in_it_before_its_first_run(monkeypatch):
    seen, model = [], tiny("llama", seed=5)
    model.register_forward_pre_hook(lambda *_: seen.append(is_full()))
    with monkeypatch.context() as on_gpu:
        install(on_gpu, FakeCuda())
        load_pair(target=model)
    assert seen and all(seen) and not is_full()
