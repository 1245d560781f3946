"""The one driver of all measurements: settings in turns on prompts."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

S, P, T = TypeVar("S"), TypeVar("P"), TypeVar("T")


def measure(
    settings: Sequence[S],
    prompts: Sequence[P],
    sample: Callable[[S, P], T],
    still_running: Callable[[list[T], list[S]], list[S]] = lambda samples, running: running,
) -> Iterator[list[T]]:
    """Each setting on each prompt, rotated, so that none is always first. Yields all samples so far after
    each one. still_running: asked after each prompt for the settings that go on; none ends it."""
    running, samples = list(settings), list[T]()
    for at, prompt in enumerate(prompts):
        for offset in range(len(running)):
            samples.append(sample(running[(at + offset) % len(running)], prompt))
            yield samples
        running = still_running(samples, running)
        if not running:
            return
