"""What a capture of a forward on a CPU leaves in memory."""

import torch

from specdemo.runtime.torchscript import Traced
from tests.tiny import tiny


@torch.no_grad()
def test_a_capture_belongs_to_its_model_alone():
    """torch.jit.trace would keep it for the life of the process, 40 MB for each number of rows of the
    embedded target."""
    kept = len(torch.jit._state._python_cu.get_functions())
    lm = Traced(tiny())
    lm.begin(True)
    lm.expect(1)
    lm.reach(0, 1)
    lm.forward(torch.tensor([5]), torch.tensor(0))
    assert lm.traces and lm.reason is None
    assert len(torch.jit._state._python_cu.get_functions()) == kept
