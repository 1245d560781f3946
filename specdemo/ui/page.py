"""The page and its API, on Gradio.

A visitor's run happens in the server. At most every 100 ms, what is new is sent to the page as one JSON text,
which the page's scripts draw. Closing the generator (Stop, a closed tab, a cancelled API job) closes the run.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict, fields, replace
from html import escape
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdemo.events import Params, check_number
from specdemo.events.trace import Trace
from specdemo.loading.catalog import POOR
from specdemo.loading.errors import PairError
from specdemo.session import Run, check_prompt
from specdemo.ui import links
from specdemo.ui.controls import QUIET, controls, keep_hints_current
from specdemo.ui.feed import RunFeed, describe_pair, describe_recorded, notice, trace_file
from specdemo.ui.frame import STATIC, frame, loader, scripts, scripts_path
from specdemo.ui.instruments import KINDS, measure, request_of
from specdemo.ui.models import Choice, Models
from specdemo.ui.queue import REPORT_PERIOD, RunQueue, Waiting, follow, sentence
from specdemo.ui.settings import (
    FIRST,
    NAMES,
    about_file,
    choice_of,
    in_labels,
    params_of,
    values_of,
    weights_of,
)
from specdemo.ui.wire import Measurement

HERE = Path(__file__).parent
RECORDED = HERE.parents[1] / "assets" / "traces" / "first.json"
# bytes; 10,000 tokens with five alternatives take about 11 million, and several times that in memory
LARGEST_TRACE = 16 * 2**20
STYLES = ("stage", "panels", "positions", "exactness", "touch", "lecture", "instruments")
TITLE = "Speculative decoding, token by token"
INTRODUCTION = (
    "A large language model goes through all of its weights for each word. Here a small model guesses "
    "the next few words, and the large one checks them all at once: it keeps the good ones and replaces the "
    "first bad one. The text is exactly as random as if the large one had written it alone, and often faster."
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


class PageSession:
    """What the server remembers about one open page: what its stage shows, and the run that goes on there."""

    def __init__(self) -> None:
        self.number = 1
        self.feed: RunFeed | None = None
        self.run: Run | None = None
        self.waiting = False  # for a run to begin
        self.measuring: object | None = None  # which measurement goes on
        self.measurement: Measurement | None = None  # the latest of it
        self.runs_link = False  # the page's address asks for a run that has not been asked for yet
        self.note = ""  # about the page's address, for the next run's notice
        self.pair: str | None = None  # the visitor's own choice, while an example has set another pair

    def begin(self) -> int:
        """Makes room on the stage for something new, and returns its number. Messages with an older number
        are ignored."""
        self.number = max(self.number + 1, time.time_ns() // 1_000_000)
        if self.feed:
            self.feed.ended = True  # nobody follows its run any more
        self.run, self.waiting = None, False
        return self.number

    def end_run(self) -> None:
        if self.run and self.feed:
            self.run.close()
            self.feed.ended = True  # the event that would report it may be gone already


def build(models: Models) -> gr.Blocks:
    queue = RunQueue()
    recorded = RunFeed(1, Trace.load(RECORDED), recorded=True)  # what every stage shows at first

    def whole(session: PageSession) -> dict[str, Any]:
        """All that the stage shows, as one message with the page's latest number."""
        return (session.feed or recorded).snapshot(session.number)

    async def run_on_stage(session: PageSession, prompt: str, *held: Any) -> AsyncIterator[str]:
        """The page's own run: JSON texts for the stage. Errors are shown there, too."""
        try:
            values = dict(zip(NAMES, held, strict=True))
            params, choice = params_of(values), Choice(**choice_of(values))
            check_prompt(prompt)
        except Exception as error:  # what is on the stage stays there, and goes on
            yield json.dumps(notice(session.number, "error", in_labels(sentence(error))))
            return
        number, feed, shown = session.begin(), None, None
        remarks, session.note = [session.note] if session.note else [], ""
        session.waiting = True
        try:
            async with aclosing(follow(models, queue, choice, prompt, params)) as reports:
                async for report in reports:
                    if session.number != number:  # the stage shows something newer by now
                        return
                    if isinstance(report, Waiting):
                        yield json.dumps(notice(number, "wait", report.sentence, share=report.share))
                        continue
                    if feed is None:
                        trace = report.run.trace
                        link = links.write(prompt, trace.pair.name, choice_of(values), trace.params)
                        feed = session.feed = RunFeed(number, trace, report.pair.tokenizer, link=link)
                        session.run, session.waiting = report.run, False
                    note = {}
                    if (state := (report.pair.runner.warming_up, report.pair.notes)) != shown:
                        shown, note = (
                            state,
                            notice(number, "note", *remarks, *describe_pair(report.pair, params)),
                        )
                    yield json.dumps(feed.update(report.ended) | note)
        except Exception as error:
            if session.number == number:
                session.waiting = False
                yield json.dumps(whole(session) | notice(number, "error", in_labels(sentence(error))))

    def open_link(session: PageSession, query: str) -> tuple:
        """What the page's address says, in the controls; what is wrong with it, on the stage.

        The other controls are skipped, since the visitor may have changed them meanwhile.
        """
        skipped = gr.skip()
        try:
            link = links.read(query, models.arguments)
        except ValueError as error:
            said = json.dumps(notice(session.number, "error", in_labels(sentence(error))))
            return said, skipped, *(skipped for _ in NAMES)
        session.runs_link, session.note = link.runs, link.note
        said = json.dumps(notice(session.number, "note", link.note)) if link.note else skipped
        prompt = skipped if link.prompt is None else link.prompt
        return said, prompt, *(link.values.get(name, skipped) for name in NAMES)

    async def run_link(session: PageSession, *asked: Any) -> AsyncIterator[Any]:
        """The run that the address asks for, if it does."""
        if not session.runs_link:
            yield gr.skip()
            return
        session.runs_link = False
        async with aclosing(run_on_stage(session, *asked)) as texts:
            async for text in texts:
                yield text

    async def measure_on_stage(
        event: gr.EventData, session: PageSession, prompt: str, *held: Any
    ) -> AsyncIterator[str]:
        """What an instrument asks for: JSON texts for the stage's panels."""

        def message(measurement: Measurement) -> str:
            return json.dumps({"run": session.number, "measurement": measurement})

        asked = event._data if isinstance(event._data, dict) else {}
        kind = asked.get("kind") if asked.get("kind") in KINDS else "compare"
        latest: Measurement = {"kind": kind, "state": "waiting", "whose": "", "text": "", "share": None}
        own = session.measuring = object()  # it ends the one before
        session.measurement = latest
        try:
            values = dict(zip(NAMES, held, strict=True))
            params = params_of(values)
            if params.seed is None and session.feed:  # that of the run which it is compared with
                params = replace(params, seed=session.feed.trace.params.seed)
            request = request_of(asked, Choice(**choice_of(values)), prompt, params)
            async with aclosing(measure(models, queue, request)) as measurements:
                async for latest in measurements:
                    if session.measuring is not own:  # stopped, or another one has begun
                        return
                    session.measurement = latest
                    yield message(latest)
            # Once more, since a message that another follows at once may never be seen.
            await asyncio.sleep(REPORT_PERIOD)
            yield message(latest)
        except Exception as error:
            if session.measuring is own:
                failure = {"state": "failed", "text": in_labels(sentence(error)), "share": None}
                yield message(latest | failure)
        finally:
            if session.measuring is own:
                session.measuring = session.measurement = None

    def choose_gamma(event: gr.EventData, draft_with: str) -> tuple:
        """The drafting method and the draft length that the gamma panel takes over; 0 is plain decoding."""
        gamma = event._data.get("gamma") if isinstance(event._data, dict) else None
        if type(gamma) is int and gamma == 0:
            return "none", gr.update()
        try:
            gamma = check_number("gamma", gamma)
        except ValueError as error:
            raise gr.Error(in_labels(str(error)), print_exception=False) from None
        return "model" if draft_with == "none" else draft_with, gamma

    def stop(session: PageSession) -> str:
        """Ends the run or the replay, and the measurement, and shows all of it. Gradio cancels the events
        that wait or run."""
        message: dict[str, Any] = {}
        if session.measurement:
            stopped = {"state": "stopped", "text": "Stopped.", "share": None}
            message = {"run": session.number, "measurement": session.measurement | stopped}
            session.measuring = session.measurement = None
            if not (session.waiting or (session.run and session.run.trace.finish is None)):
                return json.dumps(message)
        if session.run:
            session.end_run()
            return json.dumps(message | whole(session))
        waiting = session.waiting
        session.begin()
        stopped = notice(session.number, "note", "Stopped before the run began.") if waiting else {}
        return json.dumps(message | whole(session) | stopped)

    def apply_example(session: PageSession, index: int, chosen: str) -> tuple:
        """The values of the controls that an example sets. If it needs another pair than the chosen one, the
        next example that needs none restores the visitor's choice."""
        prompt, pair, *how = list(EXAMPLES.values())[index]
        before = session.pair if chosen == POOR else None
        session.pair = pair and (before if chosen == pair else chosen)
        return prompt, pair or before or chosen, *how

    def save_trace(session: PageSession) -> str:
        """The trace of what the stage shows, for the page to offer as a file."""
        return json.dumps(trace_file(session.number, (session.feed or recorded).trace))

    def open_trace(session: PageSession, file: str, prompt: str, *held: Any) -> tuple:
        """Shows a trace file on the stage, without models, and its settings in the controls."""
        try:
            trace = Trace.load(file)
        except ValueError as error:
            wrong = json.dumps(notice(session.number, "error", about_file(str(error))))
            return wrong, *(gr.skip() for _ in ("prompt", *NAMES))
        finally:
            Path(file).unlink(missing_ok=True)  # the visitor has it
        known = trace.pair.name in models.arguments
        usual = models.loaded(Choice(trace.pair.name)) if known else None
        values = dict(zip(NAMES, held, strict=True)) | values_of(trace.params)
        if known:
            values |= {"pair": trace.pair.name} | weights_of(trace.pair, usual and usual.info)
        if session.run:
            session.run.close()
        session.begin()
        session.feed = RunFeed(session.number, trace, usual and usual.tokenizer, recorded=True)
        message = whole(session) | notice(session.number, "recorded", describe_recorded(trace))
        return json.dumps(message), trace.prompt, *(values[name] for name in NAMES)

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
        started = gr.on([go.click, prompt.submit], run_on_stage, **running)
        linked = demo.load(open_link, [session, address], [stage, *everything], js=ADDRESS, **QUIET).then(
            run_link, **running
        )
        linked.then(**hints_event)
        started.then(**hints_event)  # more is known about a pair that is loaded now
        filled = [prompt, *(settings[name] for name in ("pair", "draft_with", "gamma", "sampler"))]
        examples.click(apply_example, [session, examples, settings["pair"]], filled, **QUIET)
        measured = stage.apply(
            measure_on_stage,
            [session, *everything],
            stage,
            show_progress="hidden",
            trigger_mode="multiple",
            concurrency_limit=None,
            api_visibility="private",
        )
        taken_over = [settings["draft_with"], settings["gamma"]]
        stage.select(choose_gamma, settings["draft_with"], taken_over, **QUIET)
        gr.on([end.click, stage.stop], stop, session, stage, cancels=[started, linked, measured], **QUIET)
        # The page asks for the whole state after it has missed a message.
        stage.submit(lambda session: json.dumps(whole(session)), session, stage, **QUIET)
        keep.click(save_trace, session, stage, **QUIET)
        opening = open_.upload(open_trace, [session, open_, *everything], [stage, *everything], **QUIET)
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
