"""Serves the page: Gradio's app with the gate in front of it, and the routes that are not Gradio's. It ends
on SIGINT (Ctrl+C), and on SIGTERM, which a host sends."""

import gc
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import gradio as gr
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from specdemo.ui.front.checks import EVERYWHERE, Hosts
from specdemo.ui.front.connections import bound_connections
from specdemo.ui.front.gate import Gate, with_host
from specdemo.ui.page.api import PRIVATE_OPTIONS, choose_tools
from specdemo.ui.page.frame import STATIC, scripts, scripts_path
from specdemo.ui.page.page import Page
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import health_route

STARTING = {
    # Otherwise uvicorn trusts X-Forwarded-For on connections from this machine. limits.py reads that header.
    "FORWARDED_ALLOW_IPS": "",
    # Gradio asks its own address whether it has started, which a proxy cannot know.
    "NO_PROXY": "*",
    "no_proxy": "*",
}
STYLE_SHEETS = (
    *("view/stage", "page/layout", "view/panels", "view/positions", "view/exactness"),
    *("page/touch", "page/lecture", "page/reduced", "page/tour", "traces/recorded"),
    *("runs/instruments", "runs/guess", "runs/trials", "runs/worlds"),
    *("lesson/figure", "keep/saving"),
)
# Runs before anything is drawn. The gate lets other pages frame a page with the name frame in its address.
REDUCING = """<script>
const asked = new URLSearchParams(location.search), looks = document.documentElement.classList;
if (asked.getAll("frame").includes("1")) looks.add("reduced");
if (asked.has("hall")) looks.add("in-hall");
</script>"""


def launch(
    demo: Page, queue: RunQueue, host: str, port: int, limits: Limits = LOCAL, allowed: Iterable[str] = ()
) -> str:
    """Serves the page from other threads. Returns its address. Raises OSError when it cannot listen there.
    allowed: names that the server is reached by, besides its own."""
    # Fonts of the visitor's own machine.
    fonts = {"font": ("system-ui", "sans-serif"), "font_mono": ("ui-monospace", "monospace")}
    colours = {
        "body_background_fill": "var(--page)",
        "body_text_color": "var(--ink)",
        "block_background_fill": "var(--paper)",
        "block_border_color": "var(--rule)",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--muted)",
        "body_text_color_subdued": "var(--muted)",
        "input_placeholder_color": "var(--muted)",
        "input_background_fill": "var(--page)",
        "button_primary_background_fill": "var(--accent)",
        "button_primary_background_fill_hover": "var(--accent)",
        "button_primary_text_color": "var(--accent-ink)",
        "slider_color": "var(--accent)",
    }  # of stage.css, which has them for both themes
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="zinc", **fonts)
    theme.set(**colours, **{f"{name}_dark": colour for name, colour in colours.items()})
    css = "\n".join((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in STYLE_SHEETS)
    # Modules and the page stay. A full collection that looked at them again would stop a run for 0.3 s.
    gc.collect()
    gc.freeze()
    shown = f"[{host}]" if ":" in host else host  # Gradio makes an address of it, and strips the brackets
    with patch.dict(os.environ, STARTING):  # Gradio takes no arguments for them
        demo.launch(
            server_name=shown,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            run_history=False,
            mcp_server=find_spec("mcp") is not None,
            footer_links=["api", "gradio", "settings"],
            theme=theme,
            head=f"<style>{css}</style>{REDUCING}",
            app_kwargs=_in_front(demo, queue, limits),
            **PRIVATE_OPTIONS,
        )
    demo.halls.reached = _reached(host)
    bound_connections(demo.server, limits)
    hosts = Hosts(host, allowed, limits.hosted, limits.behind_proxy)
    demo.app.middleware_stack = with_host(demo.app.middleware_stack, limits, hosts)
    return f"http://{shown}:{port}"


def _in_front(demo: Page, queue: RunQueue, limits: Limits) -> dict[str, Any]:
    """What stands in front of Gradio's app: the gate, and the routes that are not Gradio's."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        choose_tools(demo)  # before anybody asks for a description of the API
        yield

    return {
        "routes": [_script_route(), Route("/embed", _embed), *demo.routes, health_route(queue)],
        "middleware": [Middleware(Gate, limits)],
        "lifespan": lifespan,
        "openapi_url": None,
    }


def _reached(host: str) -> str:
    """The address by which other machines reach this one, where it listens on all of its own; else empty."""
    if host not in EVERYWHERE:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # which sends nothing
        return str(probe.getsockname()[0])
    return ""


def _script_route() -> Route:
    """Serves the scripts and no other file. The route is not a StaticFiles mount, which fails behind a proxy
    that removes a path prefix."""
    contents = scripts()
    forever = {"Cache-Control": "public, max-age=31536000, immutable"}  # a changed script has another path

    async def script(request: Request) -> Response:
        path = request.path_params["path"]
        if path not in contents:
            return Response(status_code=404)
        kind = "application/json" if path.endswith(".json") else "text/javascript"
        return Response(contents[path], media_type=kind, headers=forever)

    return Route(f"/{scripts_path()}/{{path:path}}", script)


async def _embed(request: Request) -> Response:
    """Redirects to the page for a frame of another one. The address is relative, so that it leads there
    behind a path prefix, too."""
    return RedirectResponse(f"./?frame=1&{request.url.query}")


SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Times in seconds. Together they are less than the 2 s in which the program is to end.
RUN_PATIENCE = 0.8  # for the run that goes on to end
ANSWER_PATIENCE = 0.5  # for visitors to read its end
STREAM_PATIENCE = 0.3  # for open connections to close


Ended = SimpleQueue[Exception | None]


@contextmanager
def ended_by_signals() -> Iterator[Ended]:
    """A queue that gets None at SIGINT and at SIGTERM. A second signal ends the process at once.

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


def close(demo: Page, queue: RunQueue) -> None:
    """Ends the run that goes on, answers whoever waits, and closes the server."""
    queue.close(RUN_PATIENCE)
    if not demo.is_running:
        return
    deadline = time.monotonic() + ANSWER_PATIENCE
    while time.monotonic() < deadline and (demo.calls.has_readers or demo.board.has_readers()):
        time.sleep(0.02)
    if demo.server:  # or it would wait until the last visitor closes the page
        demo.server.config.timeout_graceful_shutdown = STREAM_PATIENCE
    demo.close(verbose=False)
