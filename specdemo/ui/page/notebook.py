"""A run in a notebook cell: the page's stage with the page's own scripts, and no server. Without Gradio.

The cell holds a frame with a document of its own, so several cells do not disturb each other. All scripts
are in one inline script: a frame without an origin can fetch none, and some notebooks run no others.
"""

import json
import posixpath
import re
from dataclasses import dataclass
from html import escape

from specdemo.events.trace import Trace
from specdemo.ui.page.frame import STATIC, frame
from specdemo.ui.view.feed import RunFeed
from specdemo.words.catalogue import LANGUAGES, catalogue, speaking

ENTRY = "page/alone.js"
CELL_STYLES = (
    "view/stage",
    "page/layout",
    "view/panels",
    "page/touch",
    "keep/saving",
    "page/alone",
    "page/reduced",
)
CELL_HEIGHT = 640  # pixels
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";$', re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """What a notebook shows in place of a value. html: a frame, with all that the frame needs in it."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "<the run's text, token by token: shown by a notebook>"


def show(trace: Trace, language: str = "en") -> Cell:
    """Draws the run in a notebook cell, as the page draws a recorded one: text, inspector, timeline and
    player. Nothing is loaded from anywhere. Raises ValueError for a language that there is not, TypeError for
    what is no trace."""
    if not isinstance(trace, Trace):
        raise TypeError(f"trace must be a Trace, as generate returns it, not {type(trace).__name__}")
    if not isinstance(language, str) or language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    with speaking(language):
        update = RunFeed(trace, recorded=True).snapshot()
        body = frame(0)
    told = {"language": language, "words": catalogue(language), "update": update}
    styles = "\n".join((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in CELL_STYLES)
    document = (
        f'<!DOCTYPE html><html lang="{language}" class="reduced"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><style>{styles}</style>{body}'
        f'<script type="application/json" id="told">{_harmless(json.dumps(told))}</script>'
        f'<script type="module">{joined_scripts(ENTRY)}\n'
        f'modules["{ENTRY}"].start(JSON.parse(document.getElementById("told").textContent));</script></html>'
    )
    quoted = escape(document).replace(
        "&quot;", '"'
    )  # most quotes are JSON's, and the attribute has single ones
    return Cell(
        f"<iframe srcdoc='{quoted}' sandbox='allow-scripts allow-downloads' title='SpecDemo' "
        f"style='width: 100%; height: {CELL_HEIGHT}px; border: 0'></iframe>"
    )


def _harmless(json_text: str) -> str:
    """The JSON text, escaped for a script element: a model's text may contain the element's end tag."""
    return json_text.replace("<", "\\u003c")


def joined_scripts(entry: str) -> str:
    """The module and all that it imports as one script, in which `modules` has what each module exports. A
    module becomes a block, which keeps its names to itself."""
    blocks: dict[str, str] = {}

    def add(path: str) -> None:
        text = COMMENT.sub("", (STATIC / path).read_text(encoding="utf-8"))

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
