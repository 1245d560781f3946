"""The page's controls as Gradio components. settings.py has their names and choices, hints.py their
warnings; Params alone checks what they hold."""

from abc import ABCMeta
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import gradio as gr

from specdemo.errors import PairError
from specdemo.events import METHODS, PARAMETERS, RULES, words_of_row
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.view.settings import (
    AS_STARTED,
    FIRST,
    SAMPLERS,
    SECTIONS,
    TYPED,
    WEIGHT_CHOICES,
    choice_in_words,
    choice_of,
    label_of,
    names_of,
    usual_text,
    values_held,
    visible,
)
from specdemo.words.catalogue import say

# A slider that takes a number beyond its ends, which Params rejects with a sentence; Gradio's own answers
# with a traceback. It is a class, because Gradio makes a new slider of the same class whenever a slider is
# updated. Gradio's metaclass is passed over, since it writes a .pyi file next to the source of each class
# that it makes. The name is that by which the browser finds what draws it.
_Slider = ABCMeta.__new__(
    type(gr.Slider),
    gr.Slider.__name__,
    (gr.Slider,),
    {"preprocess": lambda self, payload: payload, "__module__": gr.Slider.__module__},
)
QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def controls(models: Models) -> dict[str, gr.components.Component]:
    """The components by name, placed in the layout where this is called."""
    first = FIRST | {"pair": models.default}
    shown = visible(first)

    def dropdown(name: str, choices: Sequence, value: str) -> gr.Dropdown:
        return gr.Dropdown(choices, value=value, visible=shown.get(name, True), **_words(name))

    methods = [(words_of_row("methods", name, "menu"), name) for name in METHODS]
    samplers = [(say(f"settings.samplers.{name}"), name) for name in SAMPLERS]
    rules = [(words_of_row("rules", name, "label"), name) for name in RULES]
    choices = {"pair": models.names, "draft_with": methods, "sampler": samplers, "rule": rules}
    choices |= {name: [(choice_in_words(one), one) for one in ways] for name, ways in WEIGHT_CHOICES.items()}
    # Of a box: the least and the most.
    lines = {"system": (2, 6), "chat_template_kwargs": (2, 8), "stop": (2, 4)}
    lines |= {"json_schema": (3, 12), "regex": (1, 4), "grammar": (3, 12)}

    def box(name: str) -> gr.components.Component:
        row, about = PARAMETERS.get(name), {"visible": shown.get(name, True), **_words(name)}
        if name in choices:
            return dropdown(name, choices[name], AS_STARTED if name in WEIGHT_CHOICES else first[name])
        if isinstance(first[name], bool):
            return gr.Checkbox(first[name], **about)
        if name in TYPED:  # not gr.Number, which cannot be empty
            hint = say(f"settings.controls.{name}.empty")
            return gr.Textbox(first[name], placeholder=hint, max_lines=1, **about)
        if row is None or row.kind is None:
            least, most = lines.get(name, (1, 1))
            return gr.Textbox(first[name], lines=least, max_lines=most, **about)
        if row.step is None:
            return gr.Number(first[name], **about)
        most = models.limits.largest(name) or row.largest
        return _Slider(row.smallest, most, first[name], step=row.step, **about)

    boxes, placed = {}, names_of(models.limits.hosted)
    for section, names in SECTIONS.items():
        if not (here := [name for name in names if name in placed]):
            continue
        with gr.Accordion(say(f"settings.{section}"), open=False) if section else nullcontext():
            boxes |= {name: box(name) for name in here}
    return boxes


def _words(name: str) -> dict[str, str | None]:
    return {"label": label_of(name), "info": usual_text(name) or None, "elem_id": f"set-{name}"}


def keep_hints_current(
    demo: gr.Blocks,
    models: Models,
    prompt: gr.Textbox,
    prompt_hint: gr.Markdown,
    settings: dict[str, gr.components.Component],
) -> dict[str, Any]:
    """Updates the texts next to the controls whenever one changes. Returns the arguments of an event that
    updates them.

    prompt_hint: has the prompt's text, because an `info` of the prompt would become a part of its accessible
    name.
    """

    def update(prompt: str, *held: Any) -> list[dict]:
        values = values_held(held, models.limits.hosted)
        choice = Choice(**choice_of(values))
        try:
            needs, pair = models.needs(choice), models.loaded(choice)
        except PairError:  # a wrong address, of which the hints tell
            choice = replace(choice, server=None)
            needs, pair = models.needs(choice), models.loaded(choice)
        texts = hints(values, prompt, needs, pair, models.limits)
        shown = visible(values)
        updates = [
            gr.update(info=texts[name] or None, **({"visible": shown[name]} if name in shown else {}))
            for name in settings
        ]
        return [gr.update(value=texts["prompt"], visible=bool(texts["prompt"])), *updates]

    inputs, outputs = [prompt, *settings.values()], [prompt_hint, *settings.values()]
    event = {"fn": update, "inputs": inputs, "outputs": outputs, **QUIET}
    # A text box is read when the visitor leaves it, not at each key.
    typed = [box for box in settings.values() if isinstance(box, gr.Textbox)]
    chosen = [prompt, *(box for box in settings.values() if box not in typed)]
    gr.on(
        [demo.load, *(box.change for box in chosen), *(box.blur for box in typed)],
        trigger_mode="always_last",
        **event,
    )
    return event
