"""Every private name of Gradio that is used here, in one place. PRIVATE says what each stands in for."""

from typing import Any
from uuid import uuid4

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import Request as StarletteRequest

from specdemo.ui.runs.limits import Limits, Visitor, request_address

# The keys are private names, as paths from Gradio's objects.
PRIVATE = {
    "Blocks._queue.start": "leaving out the queue, whose tasks look a thousand times a second for events",
    "Blocks.mcp_server_obj": "choosing which functions are tools",
    "LocalContext.request": "telling ZeroGPU's package who asks by a route that is not Gradio's",
}
# Private options of launch(). Without `_frontend`, Gradio waits for its own page, and gives up after 3 s.
PRIVATE_OPTIONS: dict[str, Any] = {"_frontend": False}


def caller_of(request: StarletteRequest, limits: Limits) -> Visitor:
    """The visitor who calls one of the tools. Such a caller has no session."""
    return Visitor(uuid4().hex, request_address(request.scope, limits))


def note_visitor(request: StarletteRequest) -> None:
    """Notes in this context who asks, as Gradio does for its events: ZeroGPU's package finds there whose
    quota counts. The headers alone, since the context is kept as long as what is asked for."""
    told = StarletteRequest({"type": "http", "headers": request.scope["headers"]})
    LocalContext.request.set(gr.Request(told))


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


def leave_out_queue(demo: gr.Blocks) -> None:
    """Nothing goes through Gradio's queue: calls.py answers the calls of the API."""
    demo._queue.start = lambda: None  # type: ignore[method-assign]
