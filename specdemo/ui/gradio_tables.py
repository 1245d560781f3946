"""All that is changed in Gradio's own tables, of what it keeps for those who wait for answers.

Written for Gradio 6.31. By itself it keeps the messages of 2,000 sessions; when it drops the oldest to make
room, the queue ends with a KeyError, and with it the server. And it keeps what it knows of each caller.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradio import Blocks


class _Mailboxes(dict):
    """The messages for each session, until it reads them. A message for one that has left goes nowhere, and
    only `silence` takes a session's messages away."""

    def __missing__(self, session: str) -> asyncio.Queue:
        return asyncio.Queue()

    def __delitem__(self, session: str) -> None: ...


class _Pending(dict):
    """The events of each session whose answers have not been read to their end."""

    def __missing__(self, session: str) -> set[str]:
        return set()


class _Events(dict):
    """Gradio's events, by their names. come: is called with each new one."""

    def __init__(self, come: Callable[[Any], None]) -> None:
        super().__init__()
        self.come = come

    def __setitem__(self, name: str, event: Any) -> None:
        super().__setitem__(name, event)
        self.come(event)


def replace_tables(demo: "Blocks", come: Callable[[Any], None]) -> None:
    """Puts tables of our own in the place of Gradio's. come: is called with each new event."""
    queue = demo._queue
    queue.pending_messages_per_session = _Mailboxes()  # pyrefly: ignore[bad-assignment]
    queue.pending_event_ids_session = _Pending()
    queue.event_ids_to_events = _Events(come)
    # Figures about each event for a page that nobody may open; they cost more with every event.
    queue.ANALYTICS_MAX_EVENTS = 1
    queue.compute_analytics_summary = lambda records: {"functions": {}}


async def silence(demo: "Blocks", session: str) -> None:
    """Ends a session's events, and frees what was to be read of them."""
    queue, app = demo._queue, demo.app
    events = queue.pending_event_ids_session.pop(session, set())
    queue.pending_messages_per_session.pop(session, None)
    if events:
        await queue.clean_events(session_hash=session)
    for task in list(queue._asyncio_tasks):
        event = task.get_name().rpartition("<gradio-sep>")[2]
        # One that has not taken its first step would never give its worker back.
        if event in events and inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED:
            task.cancel()
    app.iterators_to_reset -= events
    for event in events:
        queue.event_ids_to_events.pop(event, None)


def drop_state(demo: "Blocks", session: str) -> None:
    """Frees what Gradio keeps for a page or a caller besides its events."""
    holder = demo.app.state_holder
    state = holder.session_data.pop(session, None)
    holder.time_last_used.pop(session, None)
    demo.pending_streams.pop(session, None)
    demo.pending_diff_streams.pop(session, None)
    # Gradio would do this an hour later, and not for states that no event returns.
    for number, value in state.state_data.items() if state else ():
        state.blocks_config.blocks[number].delete_callback(value)
