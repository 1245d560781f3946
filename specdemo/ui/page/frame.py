"""The frame that the scripts fill (numbers, legend, stage, inspector, timeline), and what loads the scripts.

Gradio reads the frame as a template, so it must never contain text from outside.
"""

import json
import re
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from html import escape
from pathlib import Path

from specdemo.loading.catalog import WORKS
from specdemo.ui.view import texts
from specdemo.ui.view.feed import MEASUREMENT_KINDS
from specdemo.ui.view.kept import RECORDINGS, WORLDS
from specdemo.words.catalogue import LANGUAGES, WORDS, say

STATIC = Path(__file__).parents[1] / "static"
TABS = (
    *("text", "worlds", "positions", "gamma", "race", "compare", "advise"),
    *("exactness", "figure", "trials", "guess", "exercises"),
)
BESIDE_THE_TEXT = ("text", "positions")
PARTS = ("name", "definition")  # of a number's words
SPEEDS = ("1", "0.2", "0.1", "0.04", "steps")
# A button of the player: (its move, its sign, its key).
MOVES = (
    ("round-back", "«", "←"),
    ("token-back", "‹", "Shift ←"),
    ("token-on", "›", "Shift →"),
    ("round-on", "»", "→"),
)
# {key.of.words} are words, and {name} is a part that is made below. Line ends between tags are left out.
FRAME = """<div class="run" data-state="empty" data-tab="text" data-first data-largest="{largest}"
  data-recorded="{recorded}" data-works="{works}">
  <p class="intro"><span class="words">{page.introduction}</span> <button type="button" class="run-here"
    hidden>{page.run_here}</button> <button type="button" class="show-how" disabled>{tour.button}</button></p>
  <div class="notices"><p class="notice" data-testid="notice" role="status"></p>
    <progress max="1" aria-label="{page.loaded}" hidden></progress></div>
  <div class="outcome">
    <div class="metrics" data-testid="metrics">
      <dl class="numbers">{headline}<div data-unknown>
        <dt>{run.numbers.mean_tokens_per_round.name}</dt><dd data-copy="mean_tokens_per_round">–</dd>
        <dd class="definition">{run.numbers.mean_tokens_per_round.definition}</dd></div></dl>
      <details class="all-numbers later"><summary>{page.all_numbers}</summary>
        <dl class="numbers">{others}</dl></details></div>
    <p class="verdict-line" data-testid="verdict" role="status"></p></div>
  <div class="tabs later" role="tablist" aria-label="{page.views}">{tabs}</div>
  <button type="button" class="unfold" title="{page.instruments_are}">{page.instruments}</button>
  <div class="bar"><div class="legend" data-testid="legend" role="group"
    aria-label="{page.legend}">{legend}</div></div>
  <div class="workspace" id="panel-text" role="tabpanel" aria-labelledby="tab-text">
    <div class="stage hide-discarded" data-testid="stage" tabindex="0" role="listbox"
      aria-label="{page.stage}"></div>
    <button type="button" class="to-end">{page.to_end}</button>
    <div class="inspector" data-testid="inspector" role="region" aria-label="{page.inspector}"></div>
    <section class="panel" data-testid="positions" id="panel-positions" role="tabpanel"
      aria-labelledby="tab-positions"></section>
    <div class="timeline" data-testid="timeline" role="region" aria-label="{page.timeline}"></div></div>
  <div class="replay" data-testid="replay" role="group" aria-label="{page.player.name}">
    <button type="button" data-move="play" disabled>{page.player.replay}</button>
    <div class="moves later">{moves}<button type="button" data-move="end" title="{page.player.to_the_end}"
      disabled>{page.player.skip}</button></div>
    <input type="range" class="scrubber later" min="0" max="0" value="0" aria-label="{page.player.place}"
      disabled><span class="place later"></span>
    <label class="later">{page.player.at} <select>{speeds}</select></label>
    <button type="button" class="lecture later" aria-pressed="false"
      title="{page.player.lecture_is}">{page.player.lecture}</button>
    <label class="scenes">{lecture.scene} <select></select></label>
    <p class="keys of-text">{page.player.keys}</p>
    <p class="keys of-panel">{page.player.keys_of_panel}</p></div>
  {panels}
  <div class="foot"><p class="whose" data-testid="whose"></p><p class="said"></p>
    <div class="keep later">
      <button type="button" id="reply" hidden title="{page.reply_does}">{page.reply}</button>
      <button type="button" id="save">{page.save}</button>
      <button type="button" id="copy">{page.copy}</button></div>
    <select class="language">{languages}</select></div></div>"""
# Gradio runs this as a function body. The base address is the one from which Gradio loads its own scripts, so
# these load wherever the page does: in a frame, behind a path prefix, on any host and port.
LOADER = """
const folder = new URL("%s/", document.baseURI);
const load = (path) => import(new URL(path, folder));
Promise.all([
  load("page/main.js"),
  load("page/language.js").then((language) => language.prepare(folder, %s)),
])
  .then(([main]) => main.start({ element, trigger }))
  .catch((error) => {
    console.error(error);
    const notice = element.querySelector(".notice");
    notice.dataset.kind = "error";
    notice.textContent = %s;
  });
"""


def scripts_path() -> str:
    """The path at which the scripts are served, relative to the page. The path changes whenever a script
    does, so that a browser's cache cannot combine an old script with a new server."""
    digest = sha256(repr(scripts()).encode())
    return f"specdemo/{digest.hexdigest()[:16]}"


def scripts() -> dict[str, bytes]:
    """The files that are served, by their paths within static/, the recorded stops of "Two worlds", and the
    words of each language."""
    paths = sorted(STATIC.glob("*/*.js"))
    found = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths}
    found |= {"runs/worlds.json": WORLDS.read_bytes()}
    return found | {f"words/{tag}.json": (WORDS / f"{tag}.json").read_bytes() for tag in LANGUAGES}


def loader() -> str:
    return LOADER % (scripts_path(), json.dumps(list(LANGUAGES)), json.dumps(say("page.not_loaded")))


def frame(largest: int, names: Collection[str] = TABS) -> str:
    """The frame's HTML. largest: the most bytes of a trace that can be opened. names: of its tabs."""
    tabs = "".join(
        f'<button type="button" role="tab" id="tab-{name}" aria-controls="panel-{name}" data-tab="{name}" '
        f'aria-selected="{"true" if name == "text" else "false"}">{_say(f"page.tabs.{name}")}</button>'
        for name in names
    )
    panels = "".join(
        f'<section class="panel{" measured" if name in MEASUREMENT_KINDS else ""}" data-testid="{name}" '
        f'id="panel-{name}" role="tabpanel" aria-labelledby="tab-{name}"></section>'
        for name in names
        if name not in BESIDE_THE_TEXT
    )
    parts = {
        "largest": str(largest),
        "recorded": " ".join(RECORDINGS),
        "works": " ".join(WORKS),
        "tabs": tabs,
        "panels": panels,
        "headline": _number(texts.HEADLINE),
        "others": "".join(map(_number, texts.OTHER_NUMBERS)),
        "legend": "".join(_legend_entry(fate) for fate in texts.FATES if fate != "prompt"),
        "moves": "".join(_move(*move) for move in MOVES),
        "speeds": "".join(f'<option value="{one}"></option>' for one in SPEEDS),  # player.js names them
        "languages": "".join(
            f'<option value="{tag}" lang="{tag}">{escape(name)}</option>' for tag, name in LANGUAGES.items()
        ),
    }
    markup = re.sub(r"\n *", " ", re.sub(r"(?<=[>}])\n *(?=[<{])", "", FRAME))
    return re.sub(r"\{([\w.]+)\}", lambda at: parts[at[1]] if at[1] in parts else _say(at[1]), markup)


def _move(move: str, sign: str, key: str) -> str:
    name = _say(f"page.player.{move.replace('-', '_')}")
    key = key.replace("Shift", _say("page.player.shift"))
    title = f"{name} ({key})"
    start = f'<button type="button" data-move="{move}" aria-label="{name}" title="{title}" disabled>'
    return f"{start}{sign}</button>"


def _say(key: str) -> str:
    """The words of a key, escaped for markup."""
    return escape(say(key))


def _number(key: str) -> str:
    """One number of the frame. The Tab key comes to the first number, and arrow keys to the others. Some
    numbers are for runs of the engine only, and some have other words for a server's, which the scripts put
    in."""
    tab_index = 0 if key in (texts.HEADLINE, texts.OTHER_NUMBERS[0]) else -1
    only = "engine" if key in texts.ENGINE_ONLY else ""
    name, definition = (_say(f"run.numbers.{key}.{part}") for part in PARTS)
    served_name, served_definition = (_words("served", f"served.numbers.{key}.{part}") for part in PARTS)
    return (
        f'<div tabindex="{tab_index}"{_data("only", only)} data-unknown>'
        f'<dt{served_name}>{name}</dt><dd data-number="{key}">–</dd>'
        f'<dd class="definition"{served_definition}>{definition}</dd></div>'
    )


def _words(of: str, key: str) -> str:
    """The attribute with other words in some runs, if there are any."""
    with suppress(KeyError):
        return _data(f"{of}-words", say(key))
    return ""


def _data(name: str, value: str) -> str:
    return f' data-{name}="{escape(value)}"' if value else ""


def _legend_entry(fate: str) -> str:
    """One entry of the legend. Its definition is shown where the entry is pointed at, focused or tapped. The
    Tab key comes to the first entry and to the switches, and arrow keys to all."""
    word, definition = _say(f"run.fates.{fate}.word"), _say(f"run.fates.{fate}.definition")
    described = f'aria-describedby="means-{fate}"'
    if fate in texts.HIDEABLE:
        pressed = "false" if fate == "discarded" else "true"
        switch = f'<button type="button" data-hides="{fate}" aria-pressed="{pressed}" {described}>'
        entry = f'{switch}<span class="token {fate}">{word}</span></button>'
    else:
        tab_index, greedy = 0 if fate == "accepted" else -1, _words("greedy", f"view.greedyFates.{fate}")
        entry = f'<span class="token {fate}" tabindex="{tab_index}" {described}{greedy}>{word}</span>'
    words = _words("served", f"served.fates.{fate}") + _words("greedy", f"run.greedy_fates.{fate}")
    meaning = f'<span class="definition" role="tooltip" id="means-{fate}"{words}>{definition}</span>'
    return f'<span class="entry" data-explains="{fate}">{entry}{meaning}</span>'
