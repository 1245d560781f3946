"""The frame that the scripts fill: numbers, legend, stage, inspector, timeline.

Gradio reads it as a template, so nothing from outside may ever be written here.
"""

from html import escape

from specdemo.ui.feed import FATES, HIDEABLE, NUMBERS

SPEEDS = {"1": "engine speed", "0.2": "1/5 of it", "0.1": "1/10 of it", "0.04": "1/25 of it"}


def frame() -> str:
    numbers = "".join(
        _number(key, name, says, key == next(iter(NUMBERS))) for key, (name, says) in NUMBERS.items()
    )
    legend = "".join(
        _legend_entry(fate, word, says) for fate, (word, says) in FATES.items() if fate != "prompt"
    )
    speeds = "".join(f'<option value="{value}">{words}</option>' for value, words in SPEEDS.items())
    return (
        '<div class="run" data-state="empty">'
        f'<dl class="numbers" data-testid="metrics">{numbers}</dl>'
        '<div class="saying"><p class="notice" data-testid="notice" role="status"></p>'
        '<progress max="1" aria-label="Loaded" hidden></progress></div>'
        f'<div class="bar"><div class="legend" data-testid="legend" role="group" aria-label="Fates of tokens">{legend}</div>'
        '<div class="replay" data-testid="replay"><button type="button" disabled>Replay</button>'
        f"<label>at <select>{speeds}</select></label></div></div>"
        '<div class="desk">'
        '<div class="stage hide-discarded" data-testid="stage" tabindex="0" role="group" '
        'aria-label="Text, token by token. Arrow keys walk through it, Enter pins a token, Escape lets go."></div>'
        '<div class="inspector" data-testid="inspector" role="region" aria-label="Inspector"></div>'
        '<div class="timeline" data-testid="timeline" role="region" aria-label="Timeline"></div>'
        "</div></div>"
    )


def _number(key: str, name: str, says: str, first: bool) -> str:
    """Tab comes to the first of them, and arrow keys to the others."""
    return (
        f'<div tabindex="{0 if first else -1}"><dt>{escape(name)}</dt><dd data-number="{key}">–</dd>'
        f'<dd class="says">{escape(says)}</dd></div>'
    )


def _legend_entry(fate: str, word: str, says: str) -> str:
    sample = f'<span class="token {fate}">{word}</span>'
    if fate not in HIDEABLE:
        return f'<span title="{escape(says)}">{sample}</span>'
    pressed = "false" if fate == "discarded" else "true"
    return f'<button type="button" data-hides="{fate}" aria-pressed="{pressed}" title="{escape(says)}">{sample}</button>'
