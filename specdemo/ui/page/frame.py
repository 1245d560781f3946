"""The frame that the scripts fill (numbers, legend, stage, inspector, timeline), and what loads the scripts.

Gradio reads the frame as a template, so it must never contain text from outside.
"""

import json
from hashlib import sha256
from html import escape
from pathlib import Path

from specdemo.ui.view.served import ENGINE_ONLY, FATES_SERVED, NUMBERS_SERVED, SERVER_NUMBERS
from specdemo.ui.view.texts import FATES, HEADLINE, HIDEABLE, MEANWHILE, NUMBERS
from specdemo.ui.view.words import LANGUAGES, WORDS

STATIC = Path(__file__).parents[1] / "static"
TABS = {
    "text": "Text",
    "positions": "Where drafts die",
    "gamma": "Gamma",
    "race": "Race",
    "compare": "Compare",
    "exactness": "Exactness",
    "figure": "Why it is exact",
    "guess": "Be the drafter",
}
BESIDE_THE_TEXT = ("text", "positions")
UNMEASURED = ("exactness", "figure")
SPEEDS = {
    "1": "engine speed",
    "0.2": "1/5 of engine speed",
    "0.1": "1/10 of engine speed",
    "0.04": "1/25 of engine speed",
    "steps": "a step a second",
}
# A button of the player: (its move, its sign, its name, its key).
MOVES = (
    ("round-back", "«", "One round back", "←"),
    ("token-back", "‹", "One token back", "Shift ←"),
    ("token-on", "›", "One token on", "Shift →"),
    ("round-on", "»", "One round on", "→"),
)
LECTURE_KEYS = "Space plays · → next round · ← back · ↓ ↑ by token · B blanks · F full screen · L leaves"
INTRODUCTION = (
    "A small model guesses the next words. The large one checks them all at once, keeps the good ones and "
    "replaces the first bad one. The text is as if the large one had written it alone."
)
# Gradio runs this as a function body. The base address is the one from which Gradio loads its own scripts, so
# these load wherever the page does: in a frame, behind a path prefix, on any host and port.
LOADER = """
const folder = new URL("%s/", document.baseURI);
const load = (path) => import(new URL(path, folder));
Promise.all([
  load("page/main.js"),
  load("page/language.js").then((language) => language.prepare(folder, %s)),
])
  .then(([main]) => main.start({ element, props, watch, trigger }))
  .catch((error) => {
    console.error(error);
    const notice = element.querySelector(".notice");
    notice.dataset.kind = "error";
    notice.textContent = "This page's scripts could not be loaded or started. Reload the page; "
      + "if that does not help, restart the server.";
  });
"""


def scripts_path() -> str:
    """Where the scripts are served, relative to the page. The path changes whenever a script does, so that a
    browser's cache cannot combine an old script with a new server."""
    digest = sha256(repr(scripts()).encode())
    return f"specdemo/{digest.hexdigest()[:16]}"


def scripts() -> dict[str, bytes]:
    """The files that are served, by their paths within static/, and the words of each language."""
    paths = sorted(STATIC.glob("*/*.js"))
    found = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths}
    return found | {f"words/{tag}.json": (WORDS / f"{tag}.json").read_bytes() for tag in LANGUAGES}


def loader() -> str:
    return LOADER % (scripts_path(), json.dumps(list(LANGUAGES)))


def frame(largest: int) -> str:
    """largest: bytes of a trace that can be opened."""
    meanwhile = (
        f'<div data-unknown><dt>{NUMBERS[MEANWHILE][0]}</dt><dd data-copy="{MEANWHILE}">–</dd>'
        f'<dd class="definition">{escape(NUMBERS[MEANWHILE][1])}</dd></div>'
    )
    others = "".join(_number(key) for key in (*NUMBERS, *SERVER_NUMBERS) if key != HEADLINE)
    legend = "".join(
        _legend_entry(fate, word, definition)
        for fate, (word, definition) in FATES.items()
        if fate != "prompt"
    )
    tabs = "".join(
        f'<button type="button" role="tab" id="tab-{name}" aria-controls="panel-{name}" data-tab="{name}" '
        f'aria-selected="{"true" if name == "text" else "false"}">{words}</button>'
        for name, words in TABS.items()
    )
    panels = "".join(
        f'<section class="panel{"" if name in UNMEASURED else " measured"}" data-testid="{name}" '
        f'id="panel-{name}" role="tabpanel" aria-labelledby="tab-{name}"></section>'
        for name in TABS
        if name not in BESIDE_THE_TEXT
    )
    return (
        f'<div class="run" data-state="empty" data-tab="text" data-first data-largest="{largest}">'
        f'<p class="intro">{escape(INTRODUCTION)}</p>'
        '<ol class="turns" data-testid="turns" aria-label="Earlier turns of the conversation" hidden></ol>'
        '<div class="notices"><p class="notice" data-testid="notice" role="status"></p>'
        '<progress max="1" aria-label="Loaded" hidden></progress></div>'
        '<div class="outcome"><div class="metrics" data-testid="metrics">'
        f'<dl class="numbers">{_number(HEADLINE)}{meanwhile}</dl>'
        '<details class="all-numbers later"><summary>All numbers</summary>'
        f'<dl class="numbers">{others}</dl></details></div>'
        '<p class="verdict-line" data-testid="verdict" role="status"></p></div>'
        f'<div class="tabs later" role="tablist" aria-label="Views of the run">{tabs}</div>'
        '<button type="button" class="unfold" title="Where drafts die, gamma, race, compare, exactness">'
        "Instruments</button>"
        '<div class="bar"><div class="legend" data-testid="legend" role="group" aria-label="Fates of tokens">'
        f"{legend}</div></div>"
        '<div class="workspace" id="panel-text" role="tabpanel" aria-labelledby="tab-text">'
        '<div class="stage hide-discarded" data-testid="stage" tabindex="0" role="listbox" '
        'aria-label="Text, token by token. Arrow keys move through it, Enter pins a token, Escape unpins it."'
        "></div>"
        '<div class="inspector" data-testid="inspector" role="region" aria-label="Inspector"></div>'
        '<section class="panel" data-testid="positions" id="panel-positions" role="tabpanel" '
        'aria-labelledby="tab-positions"></section>'
        '<div class="timeline" data-testid="timeline" role="region" aria-label="Timeline"></div>'
        f"</div>{_player()}{panels}"
        '<div class="foot"><p class="whose" data-testid="whose"></p><p class="said"></p>'
        '<div class="keep later"><button type="button" id="reply" hidden '
        'title="Sends the prompt as your next message in this conversation">Reply</button>'
        '<button type="button" id="save">Save trace</button>'
        '<button type="button" id="copy">Copy link</button>'
        "</div></div></div>"
    )


def _player() -> str:
    moves = "".join(
        f'<button type="button" data-move="{move}" aria-label="{name}" title="{name} ({key})" disabled>{sign}'
        "</button>"
        for move, sign, name, key in MOVES
    )
    speeds = "".join(f'<option value="{value}">{words}</option>' for value, words in SPEEDS.items())
    return (
        '<div class="replay" data-testid="replay" role="group" aria-label="Player">'
        '<button type="button" data-move="play" disabled>Replay</button>'
        f'<div class="moves later">{moves}'
        '<button type="button" data-move="end" title="To the end" disabled>Skip</button></div>'
        '<input type="range" class="scrubber later" min="0" max="0" value="0" aria-label="Place in the run" '
        'disabled><span class="place later"></span>'
        f'<label class="later">at <select>{speeds}</select></label>'
        '<button type="button" class="lecture later" aria-pressed="false" '
        'title="Large text and no controls, for a projector">Lecture</button>'
        f'<p class="keys">{LECTURE_KEYS}</p></div>'
    )


def _number(key: str) -> str:
    """Tab comes to the first number, and arrow keys to the others. Some are for runs of the engine or of a
    server only, and some have other words there, which the scripts put in."""
    name, definition = (NUMBERS | SERVER_NUMBERS)[key]
    tab_index = 0 if key in (HEADLINE, next(key for key in NUMBERS if key != HEADLINE)) else -1
    only = "engine" if key in ENGINE_ONLY else "server" if key in SERVER_NUMBERS else ""
    names, definitions = NUMBERS_SERVED.get(key, ("", ""))
    return (
        f'<div tabindex="{tab_index}"{_data("only", only)} data-unknown>'
        f'<dt{_data("served-words", names)}>{escape(name)}</dt><dd data-number="{key}">–</dd>'
        f'<dd class="definition"{_data("served-words", definitions)}>{escape(definition)}</dd></div>'
    )


def _data(name: str, value: str) -> str:
    return f' data-{name}="{escape(value)}"' if value else ""


def _legend_entry(fate: str, word: str, definition: str) -> str:
    """Its definition is shown where it is pointed at, focused or tapped. Tab comes to the first entry and to
    the switches, and arrow keys to all."""
    described = f'aria-describedby="means-{fate}"'
    if fate in HIDEABLE:
        pressed = "false" if fate == "discarded" else "true"
        switch = f'<button type="button" data-hides="{fate}" aria-pressed="{pressed}" {described}>'
        entry = f'{switch}<span class="token {fate}">{word}</span></button>'
    else:
        tab_index = 0 if fate == "accepted" else -1
        entry = f'<span class="token {fate}" tabindex="{tab_index}" {described}>{word}</span>'
    words = _data("served-words", FATES_SERVED.get(fate, ""))
    meaning = f'<span class="definition" role="tooltip" id="means-{fate}"{words}>{escape(definition)}</span>'
    return f'<span class="entry" data-explains="{fate}">{entry}{meaning}</span>'
