"""How a server ends: on SIGINT (Ctrl+C) and on SIGTERM, which a host sends. Without importing Gradio."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from specdemo.ui.line import RunQueue

if TYPE_CHECKING:
    from gradio import Blocks

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# All in seconds; together less than the 2 s in which the program is to end.
RUN_PATIENCE = 0.8  # for the run that goes on to end
ANSWER_PATIENCE = 0.5  # for visitors to read its end
STREAM_PATIENCE = 0.3  # for open connections to close


Ended = SimpleQueue[Exception | None]


@contextmanager
def ended_by_signals() -> Iterator[Ended]:
    """The queue gets None at SIGINT and at SIGTERM. A second one ends the process at once.

    The handler raises nothing: it runs in the middle of any code of the main thread, and what is raised in a
    finalizer is lost."""
    ended: Ended = SimpleQueue()

    def end(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        ended.put(None)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def close(demo: "Blocks", queue: RunQueue) -> None:
    """Ends the run that goes on, answers whoever waits, and closes the server."""
    queue.close(RUN_PATIENCE)
    if not demo.is_running:
        return
    deadline = time.monotonic() + ANSWER_PATIENCE
    while time.monotonic() < deadline and any(demo._queue.pending_event_ids_session.values()):
        time.sleep(0.02)
    if demo.server:  # or it would wait until the last visitor closes the page
        demo.server.config.timeout_graceful_shutdown = STREAM_PATIENCE
    demo.close(verbose=False)
