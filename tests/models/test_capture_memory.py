"""What a capture of a forward on a CPU leaves in memory."""

import torch

from specdemo.runtime.device import Clock
from specdemo.runtime.torchscript import TorchScriptLM
from tests.tiny import tiny


@torch.no_grad()
def test_a_capture_belongs_to_its_model_alone():
    """torch.jit.trace would keep it in a compilation unit of the process, which never frees anything: 40 MB
    for each number of rows of the embedded target."""
    kept = len(torch.jit._state._python_cu.get_functions())
    lm = TorchScriptLM(tiny(), Clock())
    lm.begin_run(static=True)
    lm.capture_soon(1)
    lm.reserve(0, 1)
    lm.forward(torch.tensor([5]), torch.tensor(0))
    assert lm.captures and lm.blocker is None
    assert len(torch.jit._state._python_cu.get_functions()) == kept
