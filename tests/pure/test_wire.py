"""The wire objects have the same fields with the same types in Python and in the scripts' JSDoc."""

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from specdemo.ui import wire
from specdemo.ui.wire import Alternative

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "specdemo" / "ui" / "static" / "messages.js").read_text(encoding="utf-8")
OBJECTS = {name: value for name, value in vars(wire).items() if is_typeddict(value)}
PRIMITIVES = {int: "number", float: "number", str: "string", bool: "boolean", NoneType: "null"}


def in_javascript(annotation) -> str:
    """A Python annotation as JSDoc writes the same type."""
    arguments = get_args(annotation)
    if annotation in PRIMITIVES:
        return PRIMITIVES[annotation]
    if annotation == Alternative:
        return "Alternative"
    if is_typeddict(annotation):
        return annotation.__name__
    if get_origin(annotation) is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if get_origin(annotation) is list:
        return f"{in_javascript(arguments[0])}[]"
    if get_origin(annotation) is dict:
        return f"Record<{', '.join(map(in_javascript, arguments))}>"
    assert isinstance(annotation, UnionType), annotation
    return " | ".join(map(in_javascript, arguments))


def fields(name: str) -> dict[str, str]:
    """The properties of a JSDoc typedef with their types; the names of optional ones are in brackets."""
    block = re.search(rf"@typedef {{object}} {name}\n(.*?)\*/", SCRIPT, re.S)[1]
    return {field: kind for kind, field in re.findall(r"@property {(.*)} (\S+)", block)}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_the_same_fields_on_both_sides(name):
    hints = get_type_hints(OBJECTS[name], include_extras=True)
    optional = {field for field, annotation in hints.items() if get_origin(annotation) is NotRequired}
    annotations = get_type_hints(OBJECTS[name])
    assert fields(name) == {
        f"[{field}]" if field in optional else field: in_javascript(annotation)
        for field, annotation in annotations.items()
    }


def test_the_script_has_no_other_objects():
    assert set(re.findall(r"@typedef {object} (\w+)", SCRIPT)) == set(OBJECTS)


def test_an_alternative_has_the_same_places_on_both_sides():
    places = re.search(r"@typedef {\[(.*?)\]\s\* } Alternative", SCRIPT.replace("\n", ""))[1]
    kinds = [place.split(": ")[1] for place in places.split(", ")]
    assert kinds == [in_javascript(place) for place in get_args(Alternative)]
