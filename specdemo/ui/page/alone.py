"""A run as one HTML file, with the page's own scripts and no server: "Save as" offers it, and a notebook cell
shows it. Without Gradio.

All scripts are in one inline script, since a file can fetch none. The run and the words are compressed, and
so no text of a model is in the markup. A cell holds a frame with the file in it, so several cells do not
disturb each other.
"""

import gzip
import json
import posixpath
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from html import escape
from os import PathLike
from pathlib import Path

from specdemo.events.trace import Trace
from specdemo.ui.page.frame import STATIC, frame
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.kept import RECORDINGS, packed, recorded_trace, with_update
from specdemo.words.catalogue import LANGUAGES, catalogue, say, speaking

ENTRY = "page/alone.js"
TABS = ("text", "figure", "exercises")
STYLES = (
    *("view/stage", "page/layout", "view/panels", "page/touch", "page/lecture", "page/reduced"),
    *("runs/guess", "lesson/figure", "keep/saving", "page/alone"),
)
CELL_HEIGHT = 640  # pixels
INDEX = """<!DOCTYPE html>
<html lang="{}"><meta charset="utf-8"><title>SpecDemo</title>
<style>:root {{ color-scheme: light dark; font: 18px sans-serif }}</style><h1>SpecDemo</h1><dl>{}</dl></html>
"""
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";$', re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/)\n", re.MULTILINE | re.DOTALL)
BLANK = re.compile(r"^[ \t]+|\n(?=\n)|/\*\* @type [^*]*\*/ (?=\()", re.MULTILINE)  # and casts
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """What a notebook shows in place of a value. html: a frame with the file in it. file: the run as one HTML
    file."""

    html: str
    file: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "<the run's text, token by token: shown by a notebook>"

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the run as one HTML file, which any browser opens without a server."""
        Path(path).write_text(self.file, encoding="utf-8")


def show(trace: Trace, language: str = "en") -> Cell:
    """Draws the run in a notebook cell, as the page draws a recorded one: text, inspector, timeline, player
    and the figure "Why it is exact". Nothing is loaded from anywhere. `show(trace).save("run.html")` writes
    the same as a file. Raises ValueError for a language that there is not, TypeError for what is no trace."""
    if not isinstance(trace, Trace):
        raise TypeError(f"trace must be a Trace, as generate returns it, not {type(trace).__name__}")
    if not isinstance(language, str) or language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    with speaking(language):
        update = RunFeed(trace, recorded=True).snapshot()
    file = one_file(with_update({}, update), language)
    quoted = escape(file).replace("&quot;", '"')  # the attribute has single ones
    return Cell(
        f"<iframe srcdoc='{quoted}' sandbox='allow-scripts allow-downloads' title='SpecDemo' "
        f"style='width: 100%; height: {CELL_HEIGHT}px; border: 0'></iframe>",
        file,
    )


def export(folder: Path, language: str = "en") -> None:
    """Writes each recorded run as a file, with the lesson and exercises about it, and a page that lists them.
    Any static host serves the folder, and a browser opens it from the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with speaking(language):
        runs = {"first": (say("page.title"), say("page.introduction"))}
        runs |= {name: (say(f"recorded.{name}.name"), say(f"recorded.{name}.about")) for name in RECORDINGS}
    listed = ""
    for name, words in runs.items():
        show(recorded_trace(name), language).save(folder / f"{name}.html")
        listed += '<dt><a href="{}.html">{}</a></dt><dd>{}</dd>'.format(name, *map(escape, words))
    (folder / "index.html").write_text(INDEX.format(language, listed), encoding="utf-8")


def one_file(message: str, language: str) -> str:
    """The run as one HTML file. message: the JSON of the one that shows all of the run, in this language."""
    before, after = _around(language)
    run = gzip.compress(message.encode(), mtime=0)  # smaller than in haste
    return f"{before}{b64encode(run).decode()}{after}"


@cache
def _around(language: str) -> tuple[str, str]:
    """The file before the run, and after it."""
    with speaking(language):
        body, broken = frame(0, TABS), say("keep.not_started")
    script = joined_scripts(ENTRY)
    asked = set(re.findall(r"[\"'`](\w+)\.", script))  # sections of the words
    words = json.dumps({name: said for name, said in catalogue(language).items() if name in asked})
    sheets = ((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    styles = "\n".join(BLANK.sub("", COMMENT.sub("", sheet)) for sheet in sheets)
    before = (
        f'<!DOCTYPE html>\n<html lang="{language}" class="reduced alone"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>SpecDemo</title>'
        f"<style>{styles}</style><h1>SpecDemo</h1>{body}"
        f'<script type="application/gzip" id="kept-words">{b64encode(packed(words)).decode()}</script>'
        '<script type="application/gzip" id="kept-run">'
    )
    start = f'modules["{ENTRY}"].start({json.dumps(broken)});'
    after = f'</script><script type="module">{script}\n{start}</script></html>\n'
    return before, after


def joined_scripts(entry: str) -> str:
    """The module and all that it imports as one script, in which `modules` has what each module exports. A
    module becomes a block, which keeps its names to itself."""
    blocks: dict[str, str] = {}

    def add(path: str) -> None:
        text = BLANK.sub("", COMMENT.sub("", (STATIC / path).read_text(encoding="utf-8")))

        def bind(found: re.Match[str]) -> str:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
            if other not in blocks:
                add(other)
            return f'const {{{found[1].replace(" as ", ": ")}}} = modules["{other}"];'

        body = EXPORT.sub("", IMPORT.sub(bind, text))
        names = ", ".join(found[1] for found in EXPORT.finditer(text))
        if left := re.search(r"^(import|export)\b.*", body, re.MULTILINE):
            raise ValueError(f"{path} has a form of import or export that cannot be joined: {left[0]}")
        blocks[path] = f'{{\n{body}modules["{path}"] = {{ {names} }};\n}}'

    add(entry)
    return "const modules = {};\n" + "\n".join(blocks.values())
