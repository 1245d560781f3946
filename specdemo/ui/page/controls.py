"""The page's controls as Gradio components. settings.py has their names and choices, hints.py their
warnings; Params alone checks what they hold."""

from abc import ABCMeta
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from specdemo.errors import PairError
from specdemo.events import LIMITS, METHODS, RULES
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.view.choices import words_of_row
from specdemo.ui.view.settings import (
    AS_STARTED,
    FIRST,
    SAMPLERS,
    WEIGHT_CHOICES,
    choice_in_words,
    choice_of,
    label_of,
    names_of,
    usual_text,
    values_held,
    visible,
)
from specdemo.ui.view.words import say

# Takes a number beyond its ends, which Params rejects with a sentence; Gradio's own answers with a traceback.
# It is a class, because Gradio makes a new slider of the same class whenever a slider is updated. Gradio's
# metaclass is passed over, since it writes a .pyi file next to the source of each class that it makes. The
# name is that by which the browser finds what draws it.
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

    def slider(name: str, step: float) -> gr.Slider:
        _, low, high = LIMITS[name]
        high = models.limits.largest(name) or high
        return _Slider(low, high, first[name], step=step, visible=shown.get(name, True), **_words(name))

    def dropdown(name: str, choices: Sequence, value: str) -> gr.Dropdown:
        return gr.Dropdown(choices, value=value, visible=shown.get(name, True), **_words(name))

    boxes = {}
    boxes["pair"] = dropdown("pair", models.names, models.default)
    if not models.limits.hosted:
        boxes["vllm"] = gr.Textbox(first["vllm"], max_lines=1, **_words("vllm"))
    methods = [(words_of_row("methods", name, "menu"), name) for name in METHODS]
    boxes["draft_with"] = dropdown("draft_with", methods, first["draft_with"])
    boxes["gamma"] = slider("gamma", 1)
    boxes["gamma_auto"] = gr.Checkbox(
        first["gamma_auto"], visible=shown["gamma_auto"], **_words("gamma_auto")
    )
    boxes["exit_layer"] = slider("exit_layer", 1)
    boxes["ngram"] = slider("ngram", 1)
    boxes["sampler"] = dropdown(
        "sampler", [(say(f"settings.samplers.{name}"), name) for name in SAMPLERS], first["sampler"]
    )
    boxes["temperature"] = slider("temperature", 0.05)
    boxes["top_k"] = gr.Number(first["top_k"], visible=shown["top_k"], **_words("top_k"))
    boxes["top_p"] = slider("top_p", 0.01)
    boxes["min_p"] = slider("min_p", 0.01)
    boxes["max_new_tokens"] = gr.Number(first["max_new_tokens"], **_words("max_new_tokens"))
    # Not gr.Number, which cannot be empty.
    hint = say("settings.new_seed")
    boxes["seed"] = gr.Textbox(first["seed"], placeholder=hint, max_lines=1, **_words("seed"))
    with gr.Accordion(say("settings.penalties"), open=False):
        penalty = {"placeholder": say("settings.models_own"), "max_lines": 1}
        boxes["repetition_penalty"] = gr.Textbox(
            first["repetition_penalty"], **penalty, **_words("repetition_penalty")
        )
        boxes["presence_penalty"] = slider("presence_penalty", 0.1)
        boxes["frequency_penalty"] = slider("frequency_penalty", 0.1)
    with gr.Accordion(say("settings.chat"), open=False):
        boxes["chat"] = gr.Checkbox(first["chat"], **_words("chat"))
        boxes["system"] = gr.Textbox(
            first["system"], lines=2, max_lines=6, visible=shown["system"], **_words("system")
        )
    with gr.Accordion(say("settings.ending"), open=False):
        boxes["stop"] = gr.Textbox(first["stop"], lines=2, max_lines=4, **_words("stop"))
        boxes["ignore_eos"] = gr.Checkbox(first["ignore_eos"], **_words("ignore_eos"))
        boxes["confidence"] = slider("confidence", 0.05)
        rules = [(words_of_row("rules", name, "label"), name) for name in RULES]
        boxes["rule"] = dropdown("rule", rules, first["rule"])
        boxes["lenience"] = slider("lenience", 0.05)
        boxes["alternatives"] = slider("alternatives", 1)
    if not models.limits.hosted:
        with gr.Accordion(say("settings.weights"), open=False):
            for name, choices in WEIGHT_CHOICES.items():
                named = [(choice_in_words(choice), choice) for choice in choices]
                boxes[name] = dropdown(name, named, AS_STARTED)
    return {name: boxes[name] for name in names_of(models.limits.hosted)}


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
            choice = replace(choice, vllm=None)
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
