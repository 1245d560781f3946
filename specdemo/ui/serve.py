"""Serves the page: Gradio's app with the gate in front of it, and the routes that are not Gradio's."""

from importlib.util import find_spec
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdemo.ui.fragments import Filling
from specdemo.ui.frame import STATIC, scripts, scripts_path
from specdemo.ui.functions import functions_of
from specdemo.ui.gate import Gate, with_host
from specdemo.ui.gradio_queue import Visits
from specdemo.ui.headers import headers_of
from specdemo.ui.health import health_route, openapi_route
from specdemo.ui.limits import LOCAL, Limits
from specdemo.ui.line import RunQueue
from specdemo.ui.page import Page
from specdemo.ui.resume import Resuming
from specdemo.ui.sending import Sending
from specdemo.ui.tools import bound

STYLES = ("stage", "panels", "positions", "exactness", "touch", "lecture", "instruments")


def launch(demo: Page, queue: RunQueue, host: str, port: int, limits: Limits = LOCAL) -> str:
    """Serves the page from other threads; returns its address. OSError when it cannot listen there."""
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
    css = "\n".join((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    demo.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        ssr_mode=False,
        run_history=False,
        mcp_server=find_spec("mcp") is not None,
        footer_links=["api", "gradio", "settings"],
        theme=theme,
        head=f"<style>{css}</style><script>{(STATIC / 'resume.js').read_text(encoding='utf-8')}</script>",
        app_kwargs=_in_front(demo, queue, limits),
        max_file_size=limits.trace_bytes,
        max_threads=500,  # as many events go on at once, those of visitors who wait in line among them
    )
    bound(demo)
    demo.app.middleware_stack = with_host(demo.app.middleware_stack, limits)
    return f"http://{host}:{port}"


def _in_front(demo: Page, queue: RunQueue, limits: Limits) -> dict[str, Any]:
    """What Gradio's app gets besides Gradio's own: the gate, and the routes that are not Gradio's."""
    visits = Visits(demo, limits, queue.look)
    queue.is_read = visits.is_read

    return {
        "routes": [
            _script_route(),
            demo.desk.route(),
            health_route(queue, lambda: visits.stopped),
            openapi_route(demo, limits),
        ],
        "middleware": [
            Middleware(Sending, limits.reader_seconds),
            Middleware(Resuming, limits, headers_of(limits)),
            Middleware(Gate, limits, visits, functions_of(demo), {demo._id, *demo.blocks}),
            Middleware(Filling),
        ],
        "lifespan": lambda app: visits.sweeping(),
        "openapi_url": None,
    }


def _script_route() -> Route:
    """Serves the scripts and no other file. Not a StaticFiles mount, which fails behind a proxy that removes
    a path prefix."""
    contents = scripts()
    forever = {"Cache-Control": "public, max-age=31536000, immutable"}  # a changed script has another path

    async def script(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in contents:
            return Response(status_code=404)
        return Response(contents[name], media_type="text/javascript", headers=forever)

    return Route(f"/{scripts_path()}/{{name}}", script)
