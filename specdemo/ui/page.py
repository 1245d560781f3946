"""The page and its API, on Gradio. The only module besides app.py that knows Gradio.

A visitor's run is pulled round by round in a Gradio worker thread; every 50 ms or more what is new goes to the page as
one JSON text, which stage.js draws. Closing the generator (Stop, a closed tab, a cancelled API job) closes the run.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, fields
from html import escape
from inspect import Parameter, Signature
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import: no requests to the outside

import gradio as gr

from specdemo.events import ABOVE_SMALLEST, BELOW_LARGEST, LIMITS, Params
from specdemo.pair import PairError
from specdemo.pairs import CATALOGUE
from specdemo.ui.runs import Models, Seat, running, sentence
from specdemo.ui.view import DRAFTERS, FATES, HIDEABLE, NUMBERS, OFF, SAMPLERS, about, message, notice, sampling, whole_number

HERE = Path(__file__).parent
TITLE = "Speculative decoding, token by token"
INTRODUCTION = (
    "A small drafter guesses a few tokens ahead, and the target checks all of them in one forward. Guesses that it accepts cost "
    "next to nothing; the first one that it rejects is replaced by a token of its own, so the text is distributed exactly as if "
    "the target had written it alone."
)
EXAMPLES = (
    "Once upon a time, there was a little girl named Lily who",
    "Tom and his dog went to the park. They saw a big red",
    "The old bear was very sad because",
    '"Can you help me find my ball?" asked the',
)


def build(models: Models) -> gr.Blocks:
    def show(
        seat: Seat,
        name,
        prompt,
        draft_with,
        sampler,
        temperature,
        top_k,
        top_p,
        min_p,
        gamma,
        ngram,
        max_new_tokens,
        seed,
        stop,
        ignore_eos,
    ):
        """The page's own event: JSON texts for the stage. Errors go there, too, as text."""
        seat.run, seat.number = None, time.time_ns() // 1_000_000
        since, note = 0, {}
        try:
            params = Params(
                draft_with=draft_with,
                gamma=gamma,
                ngram=ngram,
                max_new_tokens=max_new_tokens,
                seed=whole_number(seed),
                stop=tuple(line for line in stop.split("\n") if line),
                ignore_eos=ignore_eos,
                **sampling(sampler, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
            )
            with closing(running(models, name, prompt, params)) as steps:
                for step in steps:
                    if isinstance(step, str):
                        yield json.dumps(notice(seat.number, "wait", step))
                        continue
                    pair, run = step
                    if seat.run is None or run.trace.finish:  # the last message is whole, so that no page misses anything
                        note = notice(seat.number, "note", *about(pair, params))
                    seat.run, seat.tokenizer = run, pair.tokenizer
                    yield json.dumps(message(seat.number, run.trace, pair.tokenizer, since) | note)
                    since, note = len(run.trace.rounds), {}
        except Exception as error:
            so_far = message(seat.number, seat.run.trace, seat.tokenizer) if seat.run else {}
            yield json.dumps(so_far | notice(seat.number, "error", sentence(error)))

    def halt(seat: Seat):
        """Stop: ends the run and shows what it has come to. (Gradio cancels the event that waits or runs beside this.)"""
        if seat.run is None:
            return json.dumps(notice(time.time_ns() // 1_000_000, "note", "Stopped before it began."))
        seat.run.close()
        return json.dumps(message(seat.number, seat.run.trace, seat.tokenizer))

    def generate(prompt, pair, *values) -> Iterator[dict]:
        """Continues a prompt, streaming {"text": so far, "rounds": the new ones}; the last one has the "trace", too."""
        since = 0
        try:
            params = Params(**dict(zip(PARAMS, values, strict=True)))
            with closing(running(models, pair, prompt, params)) as steps:
                for step in steps:
                    if isinstance(step, str):
                        yield {"text": "", "rounds": []}
                        continue
                    trace = step[1].trace
                    news = {"text": trace.text, "rounds": [asdict(round) for round in trace.rounds[since:]]}
                    yield news | ({"trace": json.loads(trace.to_json())} if trace.finish else {})
                    since = len(trace.rounds)
                    # Gradio sends the difference to the message before, which it gets wrong when lists within lists shrink
                    # (6.31). From and to an empty list it is right.
                    if not trace.finish:
                        yield news | {"rounds": []}
        except Exception as error:
            raise gr.Error(sentence(error), print_exception=not isinstance(error, (PairError, ValueError))) from None

    def pairs() -> list[dict]:
        """The pairs that `generate` takes, the first of them unless told otherwise."""
        return models.listed()

    PARAMS = [field.name for field in fields(Params)]
    _sign(generate, models.default)

    with gr.Blocks(title=TITLE) as demo:
        seat = gr.State(Seat())
        gr.HTML(f"<h1>{escape(TITLE)}</h1><p>{escape(INTRODUCTION)}</p>", elem_id="head")
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(EXAMPLES[0], label="Prompt", lines=3, max_lines=12)
                with gr.Row():
                    go = gr.Button("Generate", variant="primary", min_width=100)
                    end = gr.Button("Stop", min_width=100)
                gr.Examples([[example] for example in EXAMPLES], prompt, label="Beginnings", api_visibility="private")
            with gr.Column(elem_id="show"):
                stage = _stage()
            with gr.Column(elem_id="settings"):
                settings = _settings(models)

        started = gr.on(
            [go.click, prompt.submit],
            show,
            [seat, settings["pair"], prompt, *(settings[name] for name in SETTINGS)],
            stage,
            show_progress="minimal",
            trigger_mode="once",
            concurrency_limit=1,
            concurrency_id="engine",
            api_visibility="private",
        )
        end.click(halt, seat, stage, cancels=[started], queue=False, show_progress="hidden", api_visibility="private")
        gr.api(generate, api_name="generate", concurrency_limit=1, concurrency_id="engine")
        gr.api(pairs, api_name="pairs")
    # Direct calls would pass by the queue, and with it the rule of one run at a time.
    return demo.queue(api_open=False)


def _sign(generate, default: str) -> None:
    """Gives the API's function the arguments that it documents: prompt, pair, and the fields of Params with their defaults."""
    parameters = [("prompt", str, Parameter.empty), ("pair", str, default)]
    parameters += [(field.name, field.type, field.default) for field in fields(Params)]
    parameters = [(name, list[str] if name == "stop" else kind, [] if name == "stop" else default) for name, kind, default in parameters]
    generate.__annotations__ |= {name: kind for name, kind, _ in parameters}
    generate.__signature__ = Signature(
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind) for name, kind, default in parameters],
        return_annotation=dict,
    )


SETTINGS = (
    "draft_with", "sampler", "temperature", "top_k", "top_p", "min_p", "gamma", "ngram", "max_new_tokens", "seed", "stop", "ignore_eos",
)  # fmt: skip


def _settings(models: Models) -> dict[str, gr.components.Component]:
    """The controls. What they offer comes from the vocabulary; what they may hold is checked by Params alone."""
    defaults = Params()
    entries = [(f"{name}: {CATALOGUE[name].about}" if name in CATALOGUE else name, name) for name in models.requests]
    settings = {}
    settings["pair"] = gr.Dropdown(entries, value=models.default, label="Pair", info="target and drafter")
    settings["draft_with"] = gr.Dropdown(
        [(words, name) for name, (words, _) in DRAFTERS.items()], value=defaults.draft_with, label="Who drafts"
    )
    settings["gamma"] = _slider("gamma", 1, "Draft length γ", "tokens drafted in a round, at most")
    settings["ngram"] = _slider("ngram", 1, "N-gram length", "longest run of tokens matched or stored", visible=False)
    settings["sampler"] = gr.Dropdown(list(SAMPLERS), value="top-p", label="Sampler", info="shapes p and q alike")
    settings["temperature"] = _slider("temperature", 0.05, "Temperature")
    settings["top_k"] = gr.Number(40, label="Top-k", info="keep the k likeliest tokens", visible=False)
    settings["top_p"] = _slider("top_p", 0.01, "Top-p", "keep the likeliest tokens of this mass")
    settings["min_p"] = _slider("min_p", 0.01, "Min-p", "keep what has this share of the likeliest token's p", value=0.05, visible=False)
    settings["max_new_tokens"] = gr.Number(defaults.max_new_tokens, label="Max new tokens")
    settings["seed"] = gr.Textbox("", label="Seed", placeholder="a new one for each run", max_lines=1)  # gr.Number cannot be empty
    settings["stop"] = gr.Textbox("", label="Stop strings", info="one a line; the text ends before the first", lines=1, max_lines=4)
    settings["ignore_eos"] = gr.Checkbox(defaults.ignore_eos, label="Go on behind the end of the text")

    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    settings["sampler"].change(
        lambda sampler: [gr.update(visible=field in SAMPLERS[sampler]) for field in OFF],
        settings["sampler"],
        [settings[field] for field in OFF],
        **quiet,
    )
    settings["draft_with"].change(
        lambda name: [gr.update(visible=field in DRAFTERS[name][1]) for field in ("gamma", "ngram")],
        settings["draft_with"],
        [settings["gamma"], settings["ngram"]],
        **quiet,
    )
    return settings


def _slider(field: str, step: float, label: str, info: str | None = None, value=None, visible: bool = True) -> gr.Slider:
    _, low, high = LIMITS[field]
    return gr.Slider(
        low + step if field in ABOVE_SMALLEST else low,
        high - step if field in BELOW_LARGEST else high,
        getattr(Params(), field) if value is None else value,
        step=step,
        label=label,
        info=info,
        visible=visible,
    )


def _stage() -> gr.HTML:
    """The numbers, the legend, the stage and the inspector. Its value is the latest message, which stage.js draws.

    Not a subclass: Gradio writes a .pyi file beside the source of each.
    """
    script = (HERE / "stage.js").read_text(encoding="utf-8")
    stage = gr.HTML("", html_template=_markup(), js_on_load=script, apply_default_css=False)
    stage.postprocess = lambda value: value  # else it warns of <script> in what is data here, and never markup
    return stage


def _markup() -> str:
    """The frame that stage.js fills. Gradio reads it as a template, so nothing from outside may ever be written here."""
    numbers = "".join(
        f'<div title="{escape(says)}"><dt>{escape(name)}</dt><dd data-number="{key}">–</dd></div>' for key, (name, says) in NUMBERS.items()
    )
    legend = "".join(_legend_entry(fate, word, says) for fate, (word, says) in FATES.items() if fate != "prompt")
    return (
        '<div class="run">'
        f'<dl class="numbers" data-testid="metrics">{numbers}</dl>'
        '<p class="notice" data-testid="notice" role="status"></p>'
        f'<div class="legend" data-testid="legend">{legend}</div>'
        '<div class="stage hide-discarded" data-testid="stage" tabindex="0" role="region" aria-label="Generated text"></div>'
        '<div class="inspector" data-testid="inspector"></div>'
        "</div>"
    )


def _legend_entry(fate: str, word: str, says: str) -> str:
    sample = f'<span class="token {fate}">{word}</span>'
    if fate not in HIDEABLE:
        return f'<span title="{escape(says)}">{sample}</span>'
    pressed = "false" if fate == "discarded" else "true"
    return f'<button type="button" data-hides="{fate}" aria-pressed="{pressed}" title="{escape(says)}">{sample}</button>'


def launch(demo: gr.Blocks, host: str, port: int) -> str:
    """Serves the page from other threads; returns its address. OSError when it cannot listen there."""
    fonts = {"font": ("system-ui", "sans-serif"), "font_mono": ("ui-monospace", "monospace")}  # of the visitor's own machine
    colours = {
        "body_background_fill": "var(--page)",
        "body_text_color": "var(--ink)",
        "block_background_fill": "var(--paper)",
        "block_border_color": "var(--rule)",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--muted)",
        "input_background_fill": "var(--page)",
        "button_primary_background_fill": "var(--accent)",
        "button_primary_background_fill_hover": "var(--accent)",
        "button_primary_text_color": "var(--accent-ink)",
        "slider_color": "var(--accent)",
    }  # of stage.css, which has them for both themes
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="zinc", **fonts)
    theme.set(**colours, **{f"{name}_dark": colour for name, colour in colours.items()})
    css = (HERE / "stage.css").read_text(encoding="utf-8")
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
    )
    return f"http://{host}:{port}"
