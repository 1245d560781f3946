"""Writes the types of what the server sends for the browser's scripts: python -m tests.browser_types

specdemo/ui/static/view/messages.d.ts has every type that a `PageMessage` of specdemo/ui/view/wire.py is made
of, with the docstrings as descriptions. The rounds have their types in specdemo/events/__init__.py. No
browser loads the file. tests/pure/test_browser_types.py fails while it has others.
"""

import inspect
import json
import re
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from specdemo import events
from specdemo.ui.view.wire import PageMessage

SCRIPT = Path(__file__).resolve().parents[1] / "specdemo" / "ui" / "static" / "view" / "messages.d.ts"
HEAD = """\
// What the server sends. "python -m tests.browser_types" writes this file from specdemo/ui/view/wire.py
// and specdemo/events/__init__.py.
"""
PRIMITIVES = {int: "number", float: "number", str: "string", bool: "boolean", NoneType: "null"}
CONSTANTS = {"None": "null", "True": "true", "False": "false"}


def script() -> str:
    """What the file has to be."""
    typedefs: dict[str, str] = {}
    in_typescript(PageMessage, typedefs)
    return "\n".join([HEAD, *typedefs.values()])


def in_typescript(annotation: Any, typedefs: dict[str, str]) -> str:
    """A Python annotation as TypeScript writes the same type. The types that it names go into `typedefs`."""
    written = partial(in_typescript, typedefs=typedefs)
    kind, arguments = get_origin(annotation), get_args(annotation)
    if annotation in PRIMITIVES:
        return PRIMITIVES[annotation]
    if annotation == events.Alternative:
        places = f"[{', '.join(map(written, arguments))}]"
        typedefs["Alternative"] = f"{comment(comment_on('Alternative'))}export type Alternative = {places};\n"
        return "Alternative"
    if kind is Annotated:
        return written(arguments[1] if is_dataclass(arguments[1]) else arguments[0])
    if is_typeddict(annotation) or is_dataclass(annotation):
        name = annotation.__name__
        if name not in typedefs:
            fields = "".join(f"  {field};\n" for field in properties(annotation, typedefs))
            typedefs[name] = f"{comment(inspect.getdoc(annotation))}export interface {name} {{\n{fields}}}\n"
        return name
    if kind is Literal:
        return " | ".join(map(json.dumps, arguments))
    if kind is NotRequired:
        return written(arguments[0])
    if kind is list or arguments[1:] == (...,):
        return f"Array<{written(arguments[0])}>"
    if kind is tuple:
        return f"[{', '.join(map(written, arguments))}]"
    if kind is dict:
        return f"Record<{', '.join(map(written, arguments))}>"
    if kind in (Union, UnionType):
        return " | ".join(map(written, arguments))
    raise TypeError(f"no type of the browser's is known for {annotation}")


def properties(kind: type, typedefs: dict[str, str]) -> list[str]:
    return [
        f"{name}{'?' if get_origin(annotation) is NotRequired else ''}: {in_typescript(annotation, typedefs)}"
        for name, annotation in get_type_hints(kind, include_extras=True).items()
    ]


def comment_on(name: str) -> str:
    """The comment above a name in events/__init__.py, where a docstring can't stand."""
    return re.search(rf"((?:# .*\n)+){name} = ", inspect.getsource(events))[1].replace("# ", "")


def comment(description: str) -> str:
    text = re.sub(rf"\b({'|'.join(CONSTANTS)})\b", lambda found: CONSTANTS[found[0]], description)
    paragraphs = [fill(one, 110, break_on_hyphens=False) for one in text.split("\n\n")]
    lines = "\n\n".join(paragraphs).splitlines()
    return "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */\n"])


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
