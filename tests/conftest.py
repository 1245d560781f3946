import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# One thread suits models this small, and leaves the other core to the other worker.
torch.set_num_threads(1)

# Without a GPU, kernels written in Triton run in its interpreter, which is chosen when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests of the real server that hardly need a browser.
BY_HTTP = {
    "test_api",
    "test_app",
    "test_attack",
    "test_connections",
    "test_ending",
    "test_front",
    "test_gate",
}
BY_HTTP |= {"test_mcp", "test_readme", "test_cut_streams"}


@pytest.fixture(autouse=True)
def no_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """While a browser is open, playwright's event loop counts as running in its thread, so no other test of
    that worker could start one."""
    loop = None if request.path.parent.name == "web" else asyncio._get_running_loop()
    if loop is None:
        yield
    else:
        asyncio._set_running_loop(None)
        yield
        asyncio._set_running_loop(loop)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Which tests `-n 2` keeps in one worker. (With pytest 9.2 the groups of xdist 3.8 have no effect.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            """The browser tests share servers and measure times, so together they are one unit, and those
            that only talk HTTP are another, about as long. Tests over tables share nothing, so each is a
            unit. Otherwise a file is one. The smallest units run last."""
            file = nodeid.split("::")[0]
            folder, name = Path(file).parent.name, Path(file).stem
            web = "web by HTTP" if name in BY_HTTP else "web"
            return {"web": web, "toy": nodeid}.get(folder, file)

    return Scheduler(config, log)
