"""The page and its API, on Gradio.

Gradio has the controls, and asks its server for nothing. What they are to begin, and what stands beside them,
the page's scripts ask for by a route of its own (requests.py); they follow it by others (runs/routes.py), and
draw it. view/settings.py has the controls' names and choices, hints.py their warnings; Params alone checks
what they hold.
"""

import json
import os
from contextlib import nullcontext
from html import escape
from typing import Any
from unittest.mock import patch

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

from starlette.routing import Route

# Gradio writes a .pyi file next to the source of each class, if it finds that: half of its import's time.
with patch("inspect.getfile", side_effect=FileNotFoundError):
    import gradio as gr

from specdemo.events import LISTED, PARAMETERS, RULES, words_of_row
from specdemo.events.trace import Trace
from specdemo.ui.front.calls import Calls, Endpoint
from specdemo.ui.page.alone import one_file
from specdemo.ui.page.api import add_api, in_a_sentence, leave_out_queue, note_visitor
from specdemo.ui.page.frame import frame, loader
from specdemo.ui.page.requests import PageRequests
from specdemo.ui.runs.board import RECORDED_RUN, Board, recorded_run
from specdemo.ui.runs.guess import Halls
from specdemo.ui.runs.limits import LOCAL, Limits
from specdemo.ui.runs.models import Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.routes import following_routes, hall_routes, trace_route
from specdemo.ui.view.kept import RECORDINGS, TRACES_FOLDER, recorded_trace
from specdemo.ui.view.settings import (
    AS_STARTED,
    FIRST,
    SAMPLERS,
    SECTIONS,
    WEIGHT_CHOICES,
    choice_in_words,
    label_of,
    names_of,
    usual_text,
    visible,
)
from specdemo.words.catalogue import LANGUAGES, say, speaking, spoken

QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
RECORDED = TRACES_FOLDER / "first.json"
STORY = "One day, a girl named Mia found a tiny kitten in the rain."
# Tells the page's scripts what the controls hold, by name, and puts into them what a script answers: values,
# or Gradio's updates.
REACH = """async (...held) => {
  const names = %s;
  const detail = { held: Object.fromEntries(names.map((name, at) => [name, held[at]])), put: {} };
  document.dispatchEvent(new CustomEvent("%s", { detail }));
  const put = await detail.put;
  return names.map((name) => put[name]);
}"""


class Page(gr.Blocks):
    """The page as Gradio's Blocks. board, calls, routes: the page's own, besides Gradio's. endpoints: what
    answers the calls of the API. others: by language, the configuration of the same page that was built in
    it."""

    board: Board
    calls: Calls
    halls: Halls
    routes: list[Route]
    endpoints: dict[str, Endpoint]
    others: dict[str, dict[str, Any]] = {}

    @property
    def config(self) -> dict[str, Any]:
        """What a browser builds the page from, in the language that is spoken. Gradio sends it with each
        view, and sets it."""
        if not (other := self.others.get(spoken())):
            return self._config
        parts = zip(self._config["components"], other["components"], strict=True)
        worded = [{**part, "props": theirs["props"]} for part, theirs in parts]
        return {**self._config, "title": other["title"], "components": worded}

    @config.setter
    def config(self, config: dict[str, Any]) -> None:
        self._config = config


def build_page(models: Models, queue: RunQueue, limits: Limits = LOCAL) -> Page:
    first = recorded_run(limits, Trace.load(RECORDED), RECORDED_RUN, models.names)
    others = (recorded_run(limits, recorded_trace(name), name, models.names) for name in RECORDINGS)
    board = Board(limits, first, *others)
    demo = _built(models, queue, limits)
    for tag in [*LANGUAGES][1:]:
        with speaking(tag):
            demo.others = demo.others | {tag: _built(models, queue, limits).config}
    demo.board = board
    names = {number: str(one.api_name) for number, one in demo.fns.items()}
    numbers = {number: demo.endpoints[name] for number, name in names.items() if name in demo.endpoints}
    demo.calls = Calls(limits, demo.endpoints, numbers, note_visitor, in_a_sentence)
    asked = PageRequests(models, queue, board, limits)
    demo.halls = asked.halls
    demo.routes = [
        *demo.calls.routes(),
        asked.route(),
        trace_route(models, board, limits),
        *following_routes(board, queue, one_file),
        *hall_routes(asked.halls),
    ]
    leave_out_queue(demo)
    return demo


def _built(models: Models, queue: RunQueue, limits: Limits) -> Page:
    """Builds the page in the language that is spoken."""
    title = say("page.title")
    with Page(title=title) as demo:
        with gr.Column(elem_id="layout"):
            gr.HTML(f"<h1>{escape(title)}</h1>", elem_id="head")
            with gr.Row(elem_id="ask"):
                prompt = gr.Textbox(
                    STORY,
                    label=say("page.prompt"),
                    show_label=False,
                    lines=2,  # with one, Enter would begin no line; layout.css sets its height
                    max_lines=8,
                    elem_id="prompt",
                )
                gr.Button(say("page.stop"), min_width=0, elem_id="end")
                gr.Button(say("page.generate"), variant="primary", min_width=0, elem_id="go")
                gr.Button(say("page.examples"), min_width=0, elem_id="try")
                gr.Button(say("page.settings"), min_width=0, elem_id="set")
                prompt_hint = gr.Markdown(visible=False, elem_id="hint")
            with gr.Column(elem_id="examples"):
                gr.HTML(_recorded(), elem_id="recorded")
                gr.Button(say("page.open"), size="sm", min_width=0, elem_id="open")
            with gr.Column(elem_id="settings"):
                with gr.Row(elem_id="settings-head"):
                    gr.HTML(f"<h2>{escape(say('page.settings'))}</h2>")
                    gr.Button(say("page.close"), size="sm", min_width=0, elem_id="done")
                settings = controls(models)
            with gr.Column(elem_id="show"):
                # Numbers, legend, stage, inspector and timeline, which the scripts fill.
                markup = frame(limits.trace_bytes)
                stage = gr.HTML(html_template=markup, js_on_load=loader(), apply_default_css=False)

        # The stage's script triggers these. The prompt has its hint beside it, because an `info` would become
        # a part of its accessible name.
        held, names = [prompt, *settings.values()], json.dumps(["prompt", *settings])
        beside = {"outputs": [prompt_hint, *settings.values()], "js": REACH % (names, "hints"), **QUIET}
        reach = {"js": REACH % (names, "controls"), **QUIET}
        stage.copy(None, held, None, **reach)
        stage.edit(None, held, held, **reach).then(None, held, **beside)
        # A text box is read when the visitor leaves it, not at each key.
        typed = [box for box in settings.values() if isinstance(box, gr.Textbox)]
        changed = (box.blur if box in typed else box.change for box in settings.values())
        gr.on([stage.apply, prompt.change, *changed], None, held, **beside)
        demo.endpoints = add_api(models, queue, limits)
    return demo


def _recorded() -> str:
    """The recorded runs, each a button with its question and what to look at; controls.js takes the press."""
    rows = "".join(
        f'<li><button type="button" data-trace="{name}"><b>{escape(say(f"recorded.{name}.name"))}</b>'
        f"<span>{escape(say(f'recorded.{name}.about'))}</span></button></li>"
        for name in (RECORDED_RUN, *RECORDINGS)
    )
    return f"<ul>{rows}</ul>"


def controls(models: Models) -> dict[str, gr.components.Component]:
    """The components by name, placed in the layout where this is called."""
    first = FIRST | {"pair": models.default}
    shown = visible(first)

    methods = [(words_of_row("methods", name, "menu"), name) for name in LISTED]
    samplers = [(say(f"settings.samplers.{name}"), name) for name in SAMPLERS]
    rules = [(words_of_row("rules", name, "label"), name) for name in RULES]
    choices = {"pair": models.names, "draft_with": methods, "sampler": samplers, "rule": rules}
    choices |= {name: [(choice_in_words(one), one) for one in ways] for name, ways in WEIGHT_CHOICES.items()}
    # Of a box: the least and the most.
    lines = {"system": (2, 6), "chat_template_kwargs": (2, 8), "stop": (2, 4)}
    lines |= {"json_schema": (3, 12), "regex": (1, 4), "grammar": (3, 12)}

    def box(name: str) -> gr.components.Component:
        words = {"label": label_of(name), "info": usual_text(name) or None, "elem_id": f"set-{name}"}
        row, about = PARAMETERS.get(name), {"visible": shown.get(name, True), **words}
        if name in choices:
            chosen = AS_STARTED if name in WEIGHT_CHOICES else first[name]
            return gr.Dropdown(choices[name], value=chosen, **about)
        if isinstance(first[name], bool):
            return gr.Checkbox(first[name], **about)
        if row is None or row.kind is None:
            least, most = lines.get(name, (1, 1))
            return gr.Textbox(first[name], lines=least, max_lines=most, **about)
        if row.none_is:  # not gr.Number, which cannot be empty
            hint = say(f"settings.controls.{name}.empty")
            return gr.Textbox(first[name], placeholder=hint, max_lines=1, **about)
        if row.step is None:
            return gr.Number(first[name], **about)
        most = models.limits.largest(name) or row.largest
        return gr.Slider(row.smallest, most, first[name], step=row.step, **about)

    boxes, placed = {}, names_of(models.limits.hosted)
    for section, names in SECTIONS.items():
        if not (here := [name for name in names if name in placed]):
            continue
        with gr.Accordion(say(f"settings.{section}"), open=False) if section else nullcontext():
            boxes |= {name: box(name) for name in here}
    return boxes
