"""The page and its API, on Gradio.

A visitor's run goes on in the server; every 100 ms or more what is new goes to the page as one JSON text, which
static/main.js draws.
Closing the generator (Stop, a closed tab, a cancelled API job) closes the run.
"""

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, fields
from html import escape
from inspect import Parameter, Signature
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdemo.events import Params
from specdemo.events.trace import Trace
from specdemo.loading.catalog import POOR
from specdemo.loading.errors import PairError
from specdemo.session import check_prompt
from specdemo.ui.controls import QUIET, advise, controls
from specdemo.ui.feed import RunFeed, describe_pair, describe_recorded, notice, trace_file
from specdemo.ui.frame import STATIC, frame, loader, scripts, scripts_path
from specdemo.ui.models import Choice, Models
from specdemo.ui.queue import Line, Wait, running, sentence
from specdemo.ui.settings import NAMES, held, params_of, request, values_of

HERE = Path(__file__).parent
RECORDED = HERE.parents[1] / "assets" / "traces" / "first.json"
LARGEST_TRACE = (
    16 * 2**20
)  # bytes; 10,000 tokens with five alternatives take about 11 million, and several times that in memory
TITLE = "Speculative decoding, token by token"
INTRODUCTION = (
    "A small drafter guesses a few tokens ahead, and the target checks all of them in one forward. Guesses that it accepts cost "
    "next to nothing; the first one that it rejects is replaced by a token of its own, so the text is distributed exactly as if "
    "the target had written it alone."
)
STORY = "One day, a girl named Mia found a tiny kitten in the rain."
EXAMPLES = {  # what it shows: (prompt, pair, who drafts, gamma, sampler)
    "A story, sampled": (STORY, None, "model", 4, "top-p"),
    "The same, greedy": (STORY, None, "model", 4, "greedy"),
    "A story, with a poor drafter": (STORY, POOR, "model", 4, "top-p"),
    "Drafts that are too long": (
        "Tom and his dog went to the park. They saw a big red",
        None,
        "model",
        12,
        "multinomial",
    ),
    "Copying instead of a drafter": (
        '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang',
        None,
        "lookup",
        4,
        "greedy",
    ),
    "The target alone": ("The old bear was very sad because", None, "none", 4, "top-p"),
}


class Seat:
    """What the server remembers of one open page: what its stage shows, and the run behind it while one goes on."""

    def __init__(self):
        self.number = 1
        self.feed: RunFeed | None = None
        self.run = None
        self.waiting = False  # for a run to begin
        self.pair: str | None = None  # the visitor's own, while an example has set another

    def begin(self) -> int:
        """Something new comes onto the stage, under a number of its own: what went on there before has nothing to say any more."""
        self.number = max(self.number + 1, time.time_ns() // 1_000_000)
        self.run, self.waiting = None, False
        return self.number


def build(models: Models) -> gr.Blocks:
    line = Line()
    recorded = RunFeed(1, Trace.load(RECORDED), recorded=True)  # what every stage shows at first

    def whole(seat: Seat) -> dict:
        """What the stage shows, all of it, under its page's latest number."""
        return (seat.feed or recorded).snapshot(seat.number)

    async def show(seat: Seat, prompt, *values):
        """The page's own run: JSON texts for the stage. Errors go there, too, as text."""
        try:
            values = dict(zip(NAMES, values, strict=True))
            params, choice = params_of(values), Choice(**request(values))
            check_prompt(prompt)
        except Exception as error:  # what is on the stage stays there, and goes on
            yield json.dumps(notice(seat.number, "error", sentence(error)))
            return
        number, feed, told = seat.begin(), None, None
        seat.waiting = True
        try:
            async with aclosing(running(models, line, choice, prompt, params)) as steps:
                async for step in steps:
                    if seat.number != number:  # something newer has come onto the stage meanwhile
                        return
                    if isinstance(step, Wait):
                        yield json.dumps(notice(number, "wait", step.sentence, share=step.share))
                        continue
                    if feed is None:
                        feed = seat.feed = RunFeed(number, step.run.trace, step.pair.tokenizer)
                        seat.run, seat.waiting = step.run, False
                    news = {}
                    if (now := (step.pair.doing, step.pair.notes)) != told:
                        told, news = now, notice(number, "note", *describe_pair(step.pair, params))
                    yield json.dumps(feed.update() | news)
        except Exception as error:
            if seat.number == number:
                seat.waiting = False
                yield json.dumps(whole(seat) | notice(number, "error", sentence(error)))

    def halt(seat: Seat):
        """Stop: ends the run, or what is being played, and shows all of it. (Gradio cancels the event that waits or runs beside this.)"""
        if seat.run:
            seat.run.close()
            return json.dumps(whole(seat))
        waiting = seat.waiting
        seat.begin()
        stopped = notice(seat.number, "note", "Stopped before it began.") if waiting else {}
        return json.dumps(whole(seat) | stopped)

    def example(seat: Seat, index: int, chosen: str):
        """What the example sets. The pair stays as it was chosen; where an example needs another, the next gives it back."""
        prompt, pair, *how = list(EXAMPLES.values())[index]
        before = seat.pair if chosen == POOR else None
        seat.pair = pair and (before if chosen == pair else chosen)
        return prompt, pair or before or chosen, *how

    def save(seat: Seat):
        """The trace of what the stage shows, for the page to hand to the visitor."""
        return json.dumps(trace_file(seat.number, (seat.feed or recorded).trace))

    def opened(seat: Seat, file: str, prompt: str, *values):
        """A trace file on the stage, without models, and its settings in the controls."""
        try:
            trace = Trace.load(file)
        except ValueError as error:
            return json.dumps(notice(seat.number, "error", sentence(error))), prompt, *values
        finally:
            Path(file).unlink(missing_ok=True)  # the visitor has it
        known = trace.pair.name in models.requests
        usual = models.resident(Choice(trace.pair.name)) if known else None
        values = dict(zip(NAMES, values, strict=True)) | values_of(trace.params)
        if known:
            values |= {"pair": trace.pair.name} | held(trace.pair, usual and usual.info)
        if seat.run:
            seat.run.close()
        seat.begin()
        seat.feed = RunFeed(seat.number, trace, usual and usual.tokenizer, recorded=True)
        message = whole(seat) | notice(seat.number, "recorded", describe_recorded(trace))
        return json.dumps(message), trace.prompt, *(values[name] for name in NAMES)

    async def generate(prompt, pair, *values) -> AsyncIterator[dict]:
        """Continues a prompt, streaming {"text": so far, "rounds": the new ones}; the last one has the "trace", too."""
        since = 0
        try:
            params = Params(**dict(zip(PARAMS, values, strict=True)))
            async with aclosing(running(models, line, Choice(pair), prompt, params)) as steps:
                async for step in steps:
                    if isinstance(step, Wait):
                        yield {"text": "", "rounds": []}
                        continue
                    trace = step.run.trace
                    news = {
                        "text": trace.text,
                        "rounds": [asdict(round) for round in trace.rounds[since : step.until]],
                    }
                    yield news | ({"trace": json.loads(trace.to_json())} if step.ended else {})
                    since = step.until
                    # Gradio sends the difference to the message before, which it gets wrong when lists within lists shrink
                    # (6.31). From and to an empty list it is right.
                    if not step.ended:
                        yield news | {"rounds": []}
        except Exception as error:
            raise gr.Error(
                sentence(error), print_exception=not isinstance(error, (PairError, ValueError))
            ) from None

    def pairs() -> list[dict]:
        """The pairs that `generate` takes, the first of them unless told otherwise."""
        return models.listed()

    PARAMS = [field.name for field in fields(Params)]
    _sign(generate, models.default)

    with gr.Blocks(title=TITLE, delete_cache=(600, 3600)) as demo:
        seat = gr.State(Seat())
        gr.HTML(f"<h1>{escape(TITLE)}</h1><p>{escape(INTRODUCTION)}</p>", elem_id="head")
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(next(iter(EXAMPLES.values()))[0], label="Prompt", lines=3, max_lines=12)
                with gr.Row():
                    go = gr.Button("Generate", variant="primary", min_width=100)
                    end = gr.Button("Stop", min_width=100)
                with gr.Row():
                    keep = gr.Button("Save trace", size="sm", min_width=100)
                    open_ = gr.UploadButton("Open trace", file_types=[".json"], size="sm", min_width=100)
                hint = gr.Markdown(
                    visible=False, elem_id="hint"
                )  # below the buttons, which stay where they are when it comes
            with gr.Column(elem_id="show"):
                first = recorded.snapshot() | notice(1, "recorded", describe_recorded(recorded.trace))
                stage = _stage(json.dumps(first))
            with gr.Column(elem_id="settings"):
                settings = controls(models)
                examples = gr.Dataset(
                    components=[prompt],
                    samples=[[values[0]] for values in EXAMPLES.values()],
                    sample_labels=list(EXAMPLES),
                    type="index",
                    label="Examples",
                    elem_id="examples",
                )

        advice = advise(demo, models, prompt, hint, settings)
        everything = [prompt, *settings.values()]
        started = gr.on(
            [go.click, prompt.submit],
            show,
            [seat, *everything],
            stage,
            show_progress="hidden",
            trigger_mode="multiple",  # the later one ends the earlier
            concurrency_limit=None,  # visitors wait in `line`, which tells them their place
            api_visibility="private",
        )
        started.then(**advice)  # a pair that is loaded now has more to say
        filled = [prompt, *(settings[name] for name in ("pair", "draft_with", "gamma", "sampler"))]
        examples.click(example, [seat, examples, settings["pair"]], filled, **QUIET)
        end.click(halt, seat, stage, cancels=[started], **QUIET)
        stage.submit(
            lambda seat: json.dumps(whole(seat)), seat, stage, **QUIET
        )  # the page has missed something
        keep.click(save, seat, stage, **QUIET)
        open_.upload(opened, [seat, open_, *everything], [stage, *everything], **QUIET).then(**advice)
        gr.api(generate, api_name="generate", concurrency_limit=None)
        gr.api(pairs, api_name="pairs")
    # Direct calls would pass by the queue, and with it the rule of one run at a time.
    return demo.queue(api_open=False)


def _sign(generate, default: str) -> None:
    """Gives the API's function the arguments that it documents: prompt, pair, and the fields of Params with their defaults."""
    parameters = [("prompt", str, Parameter.empty), ("pair", str, default)]
    parameters += [(field.name, field.type, field.default) for field in fields(Params)]
    parameters = [
        (name, list[str] if name == "stop" else kind, [] if name == "stop" else default)
        for name, kind, default in parameters
    ]
    generate.__annotations__ |= {name: kind for name, kind, _ in parameters}
    generate.__signature__ = Signature(
        [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
            for name, kind, default in parameters
        ],
        return_annotation=dict,
    )


def _stage(first: str) -> gr.HTML:
    """Numbers, legend, stage, inspector and timeline. Its value is the latest message, which main.js draws; its
    frame never contains data.

    Not a subclass: Gradio writes a .pyi file next to the source of each.
    """
    stage = gr.HTML(html_template=frame(), js_on_load=loader(), apply_default_css=False)
    stage.postprocess = lambda value: (
        value
    )  # else it warns of <script> in what is data here, and never markup
    stage.value = first
    return stage


def _script_route() -> Route:
    """Serves the scripts and no other file. Not a StaticFiles mount, which fails behind a proxy that removes a
    path prefix."""
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
    fonts = {
        "font": ("system-ui", "sans-serif"),
        "font_mono": ("ui-monospace", "monospace"),
    }  # of the visitor's own machine
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
    css = "\n".join((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in ("stage", "panels"))
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
