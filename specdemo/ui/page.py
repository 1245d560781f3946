"""The page and its API, on Gradio.

A visitor's run happens in the server. At most every 100 ms, what is new is sent to the page as one JSON text,
which the page's scripts draw. Closing the generator (Stop, a closed tab, a cancelled API job) closes the run.
"""

import json
import os
from html import escape
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

import gradio as gr

from specdemo.events.trace import Trace
from specdemo.loading.catalog import POOR
from specdemo.ui.api import add_api
from specdemo.ui.controls import QUIET, controls, keep_hints_current
from specdemo.ui.desk import Desk
from specdemo.ui.feed import RunFeed, notice
from specdemo.ui.frame import frame, loader
from specdemo.ui.handlers import Handlers
from specdemo.ui.limits import LOCAL, Limits
from specdemo.ui.line import RunQueue
from specdemo.ui.models import Models
from specdemo.ui.page_session import PageSession
from specdemo.ui.settings import FIRST
from specdemo.ui.texts import describe_recorded

HERE = Path(__file__).parent
RECORDED = HERE.parents[1] / "assets" / "traces" / "first.json"
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

# The last three as they are at first.
SET_BY_EXAMPLES = ("draft_with", "gamma", "sampler", "gamma_auto", "confidence", "rule")


# Gradio calls it with what an event's inputs hold; the second one becomes the address's query.
ADDRESS = "(session, address) => [session, location.search]"


class Page(gr.Blocks):
    """desk: where the page sends the traces that are opened."""

    desk: Desk


def build(models: Models, queue: RunQueue, limits: Limits = LOCAL) -> Page:
    recorded = RunFeed(1, Trace.load(RECORDED), recorded=True)  # what every stage shows at first
    desk = Desk(models, limits)
    on = Handlers(models, queue, recorded, desk, limits)

    def apply_example(session: PageSession, index: int, chosen: str) -> tuple:
        """The values of the controls that an example sets. If it needs another pair than the chosen one, the
        next example that needs none restores the visitor's choice."""
        prompt, pair, *how = list(EXAMPLES.values())[index]
        before = session.pair if chosen == POOR else None
        session.pair = pair and (before if chosen == pair else chosen)
        return prompt, pair or before or chosen, *how, False, 0.0, FIRST["rule"]

    with Page(title=TITLE, delete_cache=(600, 3600)) as demo:
        demo.desk = desk
        session = gr.State(PageSession(), delete_callback=on.forget)
        gr.HTML(f"<h1>{escape(TITLE)}</h1><p>{escape(INTRODUCTION)}</p>", elem_id="head")
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(next(iter(EXAMPLES.values()))[0], label="Prompt", lines=3, max_lines=12)
                with gr.Row(elem_id="start"):
                    go = gr.Button("Generate", variant="primary", min_width=100, elem_id="go")
                    end = gr.Button("Stop", min_width=100, elem_id="end")
                with gr.Row(elem_id="keep"):
                    keep = gr.Button("Save trace", size="sm", min_width=60)
                    gr.Button("Open trace", size="sm", min_width=60, elem_id="open")
                    gr.Button("Copy link", size="sm", min_width=60, elem_id="copy")
                # Below the buttons, which then do not move when it appears.
                prompt_hint = gr.Markdown(visible=False, elem_id="hint")
            with gr.Column(elem_id="show"):
                first = recorded.snapshot() | notice(1, "recorded", describe_recorded(recorded.trace))
                stage = _stage(json.dumps(first), limits.trace_bytes)
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
        filled = [prompt, *(settings[name] for name in ("pair", *SET_BY_EXAMPLES))]
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
        taken_over = [settings[name] for name in ("draft_with", "gamma", "gamma_auto")]
        stage.select(on.choose_gamma, settings["draft_with"], taken_over, **QUIET)
        gr.on([end.click, stage.stop], on.stop, session, stage, cancels=[started, linked, measured], **QUIET)
        # The page asks for the whole state after it has missed a message.
        stage.submit(on.whole_text, session, stage, **QUIET)
        keep.click(on.save_trace, session, stage, **QUIET)
        opening = stage.upload(on.open_trace, session, [stage, *everything], **QUIET)
        opening.then(**hints_event)
        add_api(models, queue, limits)
    # Direct calls would bypass Gradio's queue.
    return demo.queue(api_open=False)


def _stage(first: str, largest: int) -> gr.HTML:
    """Numbers, legend, stage, inspector and timeline. Its value is the latest message, which main.js draws;
    its frame never contains data.

    Not a subclass: Gradio writes a .pyi file next to the source of each.
    """
    stage = gr.HTML(html_template=frame(largest), js_on_load=loader(), apply_default_css=False)
    # Gradio would warn about <script> in the value, which is data here and never markup.
    stage.postprocess = lambda value: value
    stage.value = first
    return stage
