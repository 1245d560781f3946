import pytest
import torch

# One thread suits models this small, and leaves the other core to the other worker.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for `-n 2 --dist loadgroup`; one worker runs a whole group.

    The browser tests, which share servers and measure times, are one group, and every other file is one.
    Tests over tables share nothing: they have no group and run last, on whichever worker is free.
    """
    for item in items:
        folder = item.path.parent.name
        if folder != "toy":
            group = "web" if folder == "web" else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
