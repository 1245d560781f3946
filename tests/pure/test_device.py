"""What is known of the machine, on every operating system."""

import os

from specdemo.runtime.device import memory_of


def test_memory_is_known_where_there_is_no_sysconf(monkeypatch):
    """Windows has no os.sysconf."""
    usual = memory_of("cpu")
    monkeypatch.delattr(os, "sysconf")
    assert memory_of("cpu") == usual > 2**28
