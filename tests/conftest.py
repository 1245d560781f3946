import asyncio
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

gc.disable()  # while all is imported: two seconds fewer

# One thread suits models this small, and leaves the other core to the other worker.
torch.set_num_threads(1)

# Without a GPU, kernels written in Triton run in its interpreter, which is chosen when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

FOLDERS = ("web", "models", "gpu", "toy", "pure")  # what takes longest begins first


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


@pytest.fixture(scope="module", autouse=True)
def give_memory_back() -> Iterator[None]:
    """Else a process keeps the most that any of its files has taken."""
    yield
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is imported stays, and is not looked at in each collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the line leaves out is slow, too, since -m "not slow" takes the place of the line's own choice."""
    for item in items:
        if {"long", "peers", "vllm"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: FOLDERS.index(item.path.parent.name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Which tests `-n 2` keeps in one worker: those of a file, which share what it sets up. Those of the web
    share servers and a browser, and often wait: one worker has all of them, while the other one computes.
    Tests over tables share nothing, so each is a unit."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            folder = Path(file).parent.name
            return {"toy": nodeid, "web": folder}.get(folder, file)

    config.option.loadscopereorder = False
    return Scheduler(config, log)
