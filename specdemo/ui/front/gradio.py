"""Every private name of Gradio that is used here, in one place.

Gradio has no public way to bound what it keeps for those who ask its API and do not read the answers, or to
offer only some of its tools. PRIVATE says what each name stands in for.
"""

import asyncio
import inspect
import os
from collections.abc import Callable, Collection
from typing import Any, cast
from uuid import uuid4

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import Request as StarletteRequest

from specdemo.events.params import JSON_OBJECT, PARAMETERS
from specdemo.ui.front.checks import Field, FieldKind, Function
from specdemo.ui.runs.limits import Limits, Visitor, request_address

# The keys are private names, as paths from Gradio's objects; the values say what each name stands in for.
PRIVATE = {
    "Blocks._queue.pending_messages_per_session": "a bound on answers that nobody reads",
    "Blocks._queue.pending_event_ids_session": "knowing whose answers have not been read",
    "Blocks._queue.event_ids_to_events": "knowing who asked for an event",
    "Blocks._queue.clean_events": "ending the events of one who has left",
    "Blocks._queue._asyncio_tasks": "the same, while they are computed",
    "Blocks._queue.stopped": "knowing whether Gradio still answers",
    "Blocks._queue.sleep_when_free": "looking for new events less often than a thousand times a second",
    "Blocks._queue.progress_update_sleep_when_free": "looking seldom for progress, since none is reported",
    "Blocks.mcp_server_obj": "choosing which functions are tools",
    "App.iterators_to_reset": "freeing what is kept of events that were cancelled",
    "LocalContext.request": "telling ZeroGPU's package who asks by a route that is not Gradio's",
}
# Private options of launch(). Without `_frontend`, Gradio waits for its own page, and gives up after 3 s.
PRIVATE_OPTIONS: dict[str, Any] = {"_frontend": False}
# Seconds between two looks at the queue. Gradio's 0.001 takes 7 % of a core when idle; 0.05 on Windows stays.
LOOKS_EVERY = 0.02
FIELD_KINDS: dict[str, FieldKind] = {
    "textbox": "text",
    "slider": "number",
    "number": "number",
    "checkbox": "switch",
    "dropdown": "choice",
}


# Gradio reads these when a page is built: its figures about events cost more with every event.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))


# Who asks, and for what


def visitor_of(request: gr.Request, limits: Limits) -> Visitor:
    """The visitor who has asked for an event of Gradio's queue."""
    session, scope = str(request.session_hash), cast(StarletteRequest, request.request).scope
    page = scope["app"].get_blocks()
    return Visitor(session, request_address(scope, limits), is_read=lambda: page.is_read(session))


def caller_of(request: StarletteRequest, limits: Limits) -> Visitor:
    """The visitor who calls one of the tools. Such a caller has no session and does not go through Gradio's
    queue."""
    return Visitor(uuid4().hex, request_address(request.scope, limits))


def note_visitor(request: StarletteRequest) -> None:
    """Notes in this context who asks, as Gradio does for its events: ZeroGPU's package finds there whose
    quota counts. The headers alone, since the context is kept as long as what is asked for."""
    told = StarletteRequest({"type": "http", "headers": request.scope["headers"]})
    LocalContext.request.set(gr.Request(told))


def triggers_of(demo: gr.Blocks) -> Collection[int | None]:
    """The numbers of the page and its components that trigger events."""
    return {number for function in demo.fns.values() for number, _ in function.targets}


def functions_of(demo: gr.Blocks, tools: Collection[str]) -> dict[int, Function]:
    """The functions that can be called, by Gradio's numbers. tools: names that only the tools' server calls,
    in this process."""
    documented = demo.get_api_info()["named_endpoints"]
    found = {}
    for number, function in demo.fns.items():
        name, private = str(function.api_name), function.api_visibility == "private"
        if name in tools or function.fn is None:  # what has none is done by the page's scripts
            continue
        if private:
            fields = map(field_of, function.inputs)
        else:
            fields = map(_argument, documented[f"/{name}"]["parameters"])
        found[number] = Function(name, tuple(fields), private)
    return found


def _argument(documented: dict[str, Any]) -> Field:
    name = documented["parameter_name"]
    row = PARAMETERS.get(name)
    kind: FieldKind = "object" if row and row.codec.in_json == JSON_OBJECT else "anything"
    return Field(name, kind, required=not documented["parameter_has_default"])


def field_of(block: Any) -> Field:
    """What a component of the page can hold."""
    name = block.get_block_name()
    choices = tuple(value for _, value in getattr(block, "choices", None) or ())
    label = (getattr(block, "label", None) or "The value").split(":")[0]
    return Field(label, FIELD_KINDS.get(name, "anything"), choices)


def choose_tools(demo: gr.Blocks, endpoints: dict[str, str]) -> None:
    """Leaves of Gradio's MCP server these tools, whose functions are `endpoints`."""
    served = demo.mcp_server_obj
    if served is None:  # the package mcp is not installed
        return
    served.tool_to_endpoint = {served.tool_prefix + tool: f"/{name}" for tool, name in endpoints.items()}
    for function in demo.fns.values():
        if function.api_name in endpoints.values():
            function.api_visibility = "private"  # the tools' server knows them by now, and nobody else is to
    demo.config = demo.get_config_file()


# What is kept for those who ask


class GradioQueue:
    """Gradio's tables of what it keeps for those who wait for answers, with tables of our own in the place of
    three of them.

    By itself Gradio keeps the messages of 2,000 sessions; when it drops the oldest to make room, the queue
    ends with a KeyError, and with it the server. And it keeps what it knows of each caller. come: is called
    with the session and the request's ASGI scope of each new event.
    """

    def __init__(self, demo: gr.Blocks, come: Callable[[str, Any], None]) -> None:
        self.demo, self.queue = demo, demo._queue
        self.queue.sleep_when_free = max(LOOKS_EVERY, self.queue.sleep_when_free)
        self.queue.progress_update_sleep_when_free = 1.0  # s
        self.queue.pending_messages_per_session = _Mailboxes()  # pyrefly: ignore[bad-assignment]
        self.queue.pending_event_ids_session = _Pending()
        self.queue.event_ids_to_events = _Events(come)

    @property
    def stopped(self) -> bool:
        return self.queue.stopped

    @property
    def sessions(self) -> set[str]:
        """All sessions for which something is kept."""
        return {*self.queue.pending_messages_per_session, *self.queue.pending_event_ids_session}

    @property
    def unread(self) -> dict[str, set[str]]:
        """The events of each session whose answers have not been read to their end. Any thread may ask."""
        return {name: events for name, events in list(self.queue.pending_event_ids_session.items()) if events}

    def events_of(self, session: str | None) -> Collection[str]:
        """The events of one session whose answers have not been read to their end."""
        return self.queue.pending_event_ids_session[session] if session is not None else ()

    def has_messages(self, session: str) -> bool:
        """Whether the session has anything to read, now or later."""
        return session in self.queue.pending_messages_per_session

    def session_of(self, event: str) -> str | None:
        """The session that an event belongs to, while its answer can be read."""
        if event in self.queue.pending_messages_per_session:
            return event
        if known := self.queue.event_ids_to_events.get(event):
            return known.session_hash
        return next((name for name, events in self.unread.items() if event in events), None)

    async def silence(self, session: str) -> None:
        """Ends a session's events, and frees what was to be read of them."""
        queue, app = self.queue, self.demo.app
        events = queue.pending_event_ids_session.pop(session, set())
        queue.pending_messages_per_session.pop(session, None)
        if events:
            await queue.clean_events(session_hash=session)
        for task in list(queue._asyncio_tasks):
            event = task.get_name().rpartition("<gradio-sep>")[2]
            # A task that has not taken its first step would never give its worker back.
            if event in events and inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED:
                task.cancel()
        app.iterators_to_reset -= events
        for event in events:
            queue.event_ids_to_events.pop(event, None)

    def forget_ended_iterators(self) -> None:
        self.demo.app.iterators_to_reset &= self.queue.event_ids_to_events.keys()


def has_unread_answers(demo: gr.Blocks) -> bool:
    return any(demo._queue.pending_event_ids_session.values())


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
    """Gradio's events, by their names."""

    def __init__(self, come: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.come = come

    def __setitem__(self, name: str, event: Any) -> None:
        super().__setitem__(name, event)
        self.come(event.session_hash, event.request.scope)
