"""The page and its API, on Gradio.

A visitor's run happens in the server. At most every 100 ms, what is new is sent to the page as one JSON text,
which the page's scripts draw. Closing the generator (Stop, a closed tab, a cancelled API job) closes the run.
"""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict, fields
from html import escape
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.catalog import POOR
from specdemo.loading.errors import PairError
from specdemo.ui.controls import QUIET, controls, keep_hints_current
from specdemo.ui.feed import RunFeed, notice
from specdemo.ui.frame import STATIC, frame, loader, scripts, scripts_path
from specdemo.ui.handlers import Handlers, PageSession
from specdemo.ui.models import Choice, Models
from specdemo.ui.queue import RunQueue, Waiting, follow, sentence
from specdemo.ui.settings import FIRST
from specdemo.ui.texts import describe_recorded

HERE = Path(__file__).parent
RECORDED = HERE.parents[1] / "assets" / "traces" / "first.json"
# bytes; 10,000 tokens with five alternatives take about 11 million, and several times that in memory
LARGEST_TRACE = 16 * 2**20
STYLES = ("stage", "panels", "positions", "exactness", "touch", "lecture", "instruments")
TITLE = "Speculative decoding, token by token"
INTRODUCTION = (
    "A large language model goes through all of its weights for each word. Here a small model guesses "
    "the next few words, and the large one checks them all at once: it keeps the good ones and replaces the "
    "first bad one. The text is exactly as random as if the large one had written it alone, and it often "
    "arrives sooner."
)
STORY = "One day, a girl named Mia found a tiny kitten in the rain."
# label: (prompt, pair, drafting method, gamma, sampler). What is to be compared shares prompt and sampler.
EXAMPLES = {
    "A story, sampled": (STORY, None, "model", 4, FIRST["sampler"]),
    "Drafts that are too long": (STORY, None, "model", 16, FIRST["sampler"]),
    "A story, with a poor drafter": (STORY, POOR, "model", 4, FIRST["sampler"]),
    "The target alone": (STORY, None, "none", 4, FIRST["sampler"]),
    "A story, greedy": (STORY, None, "model", 4, "greedy"),
    "Copying instead of a drafter": (
        '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang',
        None,
        "lookup",
        4,
        "greedy",
    ),
}


# Gradio calls it with what an event's inputs hold; the second one becomes the address's query.
ADDRESS = "(session, address) => [session, location.search]"


def build(models: Models) -> gr.Blocks:
    queue = RunQueue()
    recorded = RunFeed(1, Trace.load(RECORDED), recorded=True)  # what every stage shows at first
    on = Handlers(models, queue, recorded)

    def apply_example(session: PageSession, index: int, chosen: str) -> tuple:
        """The values of the controls that an example sets. If it needs another pair than the chosen one, the
        next example that needs none restores the visitor's choice."""
        prompt, pair, *how = list(EXAMPLES.values())[index]
        before = session.pair if chosen == POOR else None
        session.pair = pair and (before if chosen == pair else chosen)
        return prompt, pair or before or chosen, *how

    async def generate(prompt: str, pair: str, *values: Any) -> AsyncIterator[dict]:
        """Continues a prompt, streaming {"text": so far, "rounds": the new ones}; the last one has the
        "trace", too."""
        since = 0
        try:
            params = Params(**dict(zip(PARAMS, values, strict=True)))
            async with aclosing(follow(models, queue, Choice(pair), prompt, params)) as reports:
                async for report in reports:
                    if isinstance(report, Waiting):
                        yield {"text": "", "rounds": []}
                        continue
                    trace = report.run.trace
                    rounds = [asdict(a_round) for a_round in trace.rounds[since : report.until]]
                    news = {"text": trace.text, "rounds": rounds}
                    yield news | ({"trace": json.loads(trace.to_json())} if report.ended else {})
                    since = report.until
                    # Gradio 6.31 sends the difference from the message before, and gets it wrong when lists
                    # within lists shrink. From and to an empty list it is right.
                    if not report.ended:
                        yield news | {"rounds": []}
        except Exception as error:
            is_visitors = isinstance(error, (PairError, ValueError))
            raise gr.Error(sentence(error), print_exception=not is_visitors) from None

    def pairs() -> list[dict]:
        """The pairs that `generate` takes; the first is the default."""
        return models.listed()

    PARAMS = [field.name for field in fields(Params)]
    _set_signature(generate, models.default)

    with gr.Blocks(title=TITLE, delete_cache=(600, 3600)) as demo:
        session = gr.State(PageSession())
        gr.HTML(f"<h1>{escape(TITLE)}</h1><p>{escape(INTRODUCTION)}</p>", elem_id="head")
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(next(iter(EXAMPLES.values()))[0], label="Prompt", lines=3, max_lines=12)
                with gr.Row(elem_id="start"):
                    go = gr.Button("Generate", variant="primary", min_width=100, elem_id="go")
                    end = gr.Button("Stop", min_width=100, elem_id="end")
                with gr.Row(elem_id="keep"):
                    keep = gr.Button("Save trace", size="sm", min_width=60)
                    open_ = gr.UploadButton("Open trace", file_types=[".json"], size="sm", min_width=60)
                    gr.Button("Copy link", size="sm", min_width=60, elem_id="copy")
                # Below the buttons, which then do not move when it appears.
                prompt_hint = gr.Markdown(visible=False, elem_id="hint")
            with gr.Column(elem_id="show"):
                first = recorded.snapshot() | notice(1, "recorded", describe_recorded(recorded.trace))
                stage = _stage(json.dumps(first))
            address = gr.Textbox(visible=False)
            with gr.Column(elem_id="settings"):
                settings = controls(models)
                examples = gr.Dataset(
                    components=[prompt],
                    samples=[[values[0]] for values in EXAMPLES.values()],
                    sample_labels=list(EXAMPLES),
                    type="index",
                    label="Examples: choose one, then press Generate",
                    elem_id="examples",
                )

        hints_event = keep_hints_current(demo, models, prompt, prompt_hint, settings)
        everything = [prompt, *settings.values()]
        running = {
            "inputs": [session, *everything],
            "outputs": stage,
            "show_progress": "hidden",
            "trigger_mode": "multiple",  # the later one ends the earlier
            "concurrency_limit": None,  # visitors wait in `queue`, which tells them their place
            "api_visibility": "private",
        }
        started = gr.on([go.click, prompt.submit], on.run_on_stage, **running)
        linked = demo.load(on.open_link, [session, address], [stage, *everything], js=ADDRESS, **QUIET).then(
            on.run_link, **running
        )
        linked.then(**hints_event)
        started.then(**hints_event)  # more is known about a pair that is loaded now
        filled = [prompt, *(settings[name] for name in ("pair", "draft_with", "gamma", "sampler"))]
        examples.click(apply_example, [session, examples, settings["pair"]], filled, **QUIET)
        measured = stage.apply(
            on.measure_on_stage,
            [session, *everything],
            stage,
            show_progress="hidden",
            trigger_mode="multiple",
            concurrency_limit=None,
            api_visibility="private",
        )
        taken_over = [settings["draft_with"], settings["gamma"]]
        stage.select(on.choose_gamma, settings["draft_with"], taken_over, **QUIET)
        gr.on([end.click, stage.stop], on.stop, session, stage, cancels=[started, linked, measured], **QUIET)
        # The page asks for the whole state after it has missed a message.
        stage.submit(lambda session: json.dumps(on.whole(session)), session, stage, **QUIET)
        keep.click(on.save_trace, session, stage, **QUIET)
        opening = open_.upload(on.open_trace, [session, open_], [stage, *everything], **QUIET)
        opening.then(**hints_event)
        gr.api(generate, api_name="generate", concurrency_limit=None)
        gr.api(pairs, api_name="pairs")
    # Direct calls would bypass Gradio's queue.
    return demo.queue(api_open=False)


def _set_signature(generate: Callable, default: str) -> None:
    """Sets the arguments that the API documents: prompt, pair, and the fields of Params with their
    defaults."""
    arguments = [("prompt", str, Parameter.empty), ("pair", str, default)]
    for field in fields(Params):
        is_stop = field.name == "stop"  # a list in JSON
        arguments.append((field.name, list[str] if is_stop else field.type, [] if is_stop else field.default))
    parameters = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=kind)
        for name, kind, value in arguments
    ]
    returned = generate.__annotations__["return"]
    generate.__annotations__ = {name: kind for name, kind, _ in arguments} | {"return": returned}
    generate.__signature__ = Signature(parameters, return_annotation=dict)


def _stage(first: str) -> gr.HTML:
    """Numbers, legend, stage, inspector and timeline. Its value is the latest message, which main.js draws;
    its frame never contains data.

    Not a subclass: Gradio writes a .pyi file next to the source of each.
    """
    stage = gr.HTML(html_template=frame(), js_on_load=loader(), apply_default_css=False)
    # Gradio would warn about <script> in the value, which is data here and never markup.
    stage.postprocess = lambda value: value
    stage.value = first
    return stage


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


def launch(demo: gr.Blocks, host: str, port: int) -> str:
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
        footer_links=["api", "gradio", "settings"],
        theme=theme,
        head=f"<style>{css}</style>",
        app_kwargs={"routes": [_script_route()]},
        max_file_size=LARGEST_TRACE,
        max_threads=500,  # as many events go on at once, those of visitors who wait in line among them
    )
    return f"http://{host}:{port}"
