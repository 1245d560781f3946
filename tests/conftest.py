from pathlib import Path

import pytest
import torch

# One thread suits models this small, and leaves the other core to the other worker.
torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Which tests `-n 2` keeps in one worker. (With pytest 9.2 the groups of xdist 3.8 have no effect.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            """The browser tests share servers and measure times, so together they are one unit. Tests over
            tables share nothing, so each is a unit. Otherwise a file is one. The smallest units run last."""
            file = nodeid.split("::")[0]
            folder = Path(file).parent.name
            return {"web": folder, "toy": nodeid}.get(folder, file)

    return Scheduler(config, log)
