"""A stand-in for a vLLM server, which the tests of a file share."""

import pytest

from specdemo.servers.client import READ_SECONDS
from tests.stand_ins.vllm import connected


@pytest.fixture(scope="module")
def shared():
    with connected() as (server, pair):
        yield server, pair


@pytest.fixture
def served(shared):
    """The server as it is at first, and its pair."""
    server, pair = shared
    server.behave()
    pair.client.read_seconds = READ_SECONDS
    return server, pair
