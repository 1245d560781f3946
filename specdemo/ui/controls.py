"""The controls on the left of the page, as Gradio components. What they offer comes from the vocabulary (settings.py, pairs.py);
what they may hold is checked by Params alone; what their choice means stands beside each of them at once."""

import gradio as gr

from specdemo.events import LIMITS
from specdemo.ui.models import Choice, Models
from specdemo.ui.settings import (
    AS_STARTED,
    CONTROLS,
    DEFAULTS,
    DRAFTERS,
    DTYPES,
    NAMES,
    QUANTIZE,
    RULE_WORDS,
    SAMPLERS,
    request,
    says,
    values_of,
    visible,
)  # fmt: skip

# What is typed beyond a slider's ends is refused by Params, in a sentence; Gradio would answer with a traceback. (On the class, because
# Gradio makes a new slider whenever what stands beside it changes.)
gr.Slider.preprocess = lambda self, payload: payload

QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def controls(models: Models) -> dict[str, gr.components.Component]:
    """The components by name, laid out where this is called."""
    first = values_of(DEFAULTS)
    shown = visible(first | {"chat": False})

    def slider(name: str, step: float) -> gr.Slider:
        _, low, high = LIMITS[name]
        return gr.Slider(low, high, first[name], step=step, visible=shown.get(name, True), **_words(name))

    def dropdown(name: str, choices, value) -> gr.Dropdown:
        return gr.Dropdown(choices, value=value, **_words(name))

    box = {}
    box["pair"] = dropdown("pair", list(models.requests), models.default)
    box["draft_with"] = dropdown(
        "draft_with", [(words, name) for name, (words, _) in DRAFTERS.items()], first["draft_with"]
    )
    box["gamma"] = slider("gamma", 1)
    box["ngram"] = slider("ngram", 1)
    box["sampler"] = dropdown("sampler", list(SAMPLERS), first["sampler"])
    box["temperature"] = slider("temperature", 0.05)
    box["top_k"] = gr.Number(first["top_k"], visible=shown["top_k"], **_words("top_k"))
    box["top_p"] = slider("top_p", 0.01)
    box["min_p"] = slider("min_p", 0.01)
    box["max_new_tokens"] = gr.Number(first["max_new_tokens"], **_words("max_new_tokens"))
    # A text box, because gr.Number cannot be empty.
    box["seed"] = gr.Textbox(
        first["seed"], placeholder="a new one for each run", max_lines=1, **_words("seed")
    )
    with gr.Accordion("Chat", open=False):
        box["chat"] = gr.Checkbox(first["chat"], **_words("chat"))
        box["system"] = gr.Textbox(
            first["system"], lines=2, max_lines=6, visible=shown["system"], **_words("system")
        )
    with gr.Accordion("Ending, rule, alternatives", open=False):
        box["stop"] = gr.Textbox(first["stop"], lines=2, max_lines=4, **_words("stop"))
        box["ignore_eos"] = gr.Checkbox(first["ignore_eos"], **_words("ignore_eos"))
        box["rule"] = dropdown("rule", [(words, rule) for rule, words in RULE_WORDS.items()], first["rule"])
        box["alternatives"] = slider("alternatives", 1)
    with gr.Accordion("Weights", open=False):
        box["dtype"] = dropdown("dtype", DTYPES, AS_STARTED)
        box["quantize"] = dropdown("quantize", QUANTIZE, AS_STARTED)
        box["quantize_drafter"] = dropdown("quantize_drafter", QUANTIZE, AS_STARTED)
    return {name: box[name] for name in NAMES}


def _words(name: str) -> dict:
    label, info = CONTROLS[name]
    return {"label": label, "info": info or None}


def advise(demo: gr.Blocks, models: Models, prompt: gr.Textbox, hint: gr.Markdown, settings: dict) -> dict:
    """Keeps what stands beside the controls true. Returns the arguments of an event that does it once more.

    hint: beside the prompt, whose own words would become a part of its name.
    """

    def beside(prompt: str, *held):
        values = dict(zip(NAMES, held, strict=True))
        choice = Choice(**request(values))
        words, seen = says(values, prompt, models.needs(choice), models.resident(choice)), visible(values)
        updates = [
            gr.update(info=words[name] or None, **({"visible": seen[name]} if name in seen else {}))
            for name in NAMES
        ]
        return [gr.update(value=words["prompt"], visible=bool(words["prompt"])), *updates]

    event = {
        "fn": beside,
        "inputs": [prompt, *settings.values()],
        "outputs": [hint, *settings.values()],
    } | QUIET
    typed = [
        box for box in settings.values() if isinstance(box, gr.Textbox)
    ]  # these say what they hold when they are left
    chosen = [prompt, *(box for box in settings.values() if box not in typed)]
    gr.on(
        [demo.load, *(box.change for box in chosen), *(box.blur for box in typed)],
        trigger_mode="always_last",
        **event,
    )
    return event
