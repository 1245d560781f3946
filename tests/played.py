"""Tests that are coroutines."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps


def played(test: Callable[..., Coroutine]) -> Callable[..., None]:
    """The test, in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run
