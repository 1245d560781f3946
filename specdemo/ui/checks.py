"""What a request's body must hold before Gradio sees it. Without Gradio.

Gradio answers many wrong bodies with a traceback. Here each gets a sentence that says what is wrong.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

import httpx

SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what a page or a client calls itself, and Gradio an event
DEPTH = 32  # of lists and objects within each other; a page sends 5


class NotLetIn(Exception):
    """A request that is not let in: the status of its answer, the sentence that says why, and for a busy
    server the seconds until it is worth another try."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after


Kind = Literal["text", "number", "switch", "choice", "index", "anything"]
ALLOWED = {
    "text": "text",
    "number": "a number",
    "switch": "true or false",
}


@dataclass(frozen=True)
class Field:
    """One value that a function takes. choices: of a choice. length: of the list that an index points into.
    required: the caller must give it."""

    label: str
    kind: Kind = "anything"
    choices: tuple[str, ...] = ()
    length: int = 0
    required: bool = True


@dataclass(frozen=True)
class Function:
    """What Gradio calls for an event. direct: it has no place in Gradio's queue. private: for the page."""

    number: int
    name: str
    fields: tuple[Field, ...]
    direct: bool
    private: bool


HOST = re.compile(r"([\w.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
LONGEST_PATH = 1000  # characters
LONGEST_NAME = 255  # of one part of a path, as file systems have it


def check_address(path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Where a request goes, which Gradio makes addresses and file names of. Each line of a repeated header is
    checked, since Gradio reads the first one at some places and the last one at others."""
    if len(path) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in path.split("/")):
        raise NotLetIn(404, "There is nothing here.")
    for name, value in headers:
        if name == b"host":
            given = value.decode("latin-1").strip()
        elif name == b"x-forwarded-host":  # each proxy may add one
            given = value.decode("latin-1").split(",")[0].strip()
        else:
            continue
        if given and not _is_host(given):
            raise NotLetIn(400, f"The header {name.decode()} must be the name of a host.")


def _is_host(text: str) -> bool:
    if not HOST.fullmatch(text):
        return False
    try:
        httpx.URL(f"http://{text}")  # as Gradio does
    except httpx.InvalidURL:
        return False
    return True


def session_asked_for(query: bytes) -> str:
    """The session in a request's query, which is read as Gradio reads it."""
    asked = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    sessions = [value for name, value in asked if name == "session_hash"]
    if len(sessions) != 1:
        raise NotLetIn(400, "session_hash must be given once.")
    return sessions[0]


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise NotLetIn(400, "The body must be JSON in UTF-8.") from None
    except RecursionError:
        raise NotLetIn(400, f"The body must be nested at most {DEPTH} deep.") from None
    except ValueError as error:
        raise NotLetIn(400, f"The body must be JSON: {error}.") from None
    if not isinstance(value, dict):
        raise NotLetIn(400, "The body must be a JSON object.")
    if _deeper_than(value, DEPTH):
        raise NotLetIn(400, f"The body must be nested at most {DEPTH} deep.")
    return value


def check_text(value: Any) -> None:
    """That UTF-8 can hold all texts in it: what the tools answer repeats some."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        sentence = "The body must be Unicode text: there is half of a surrogate pair in it."
        raise NotLetIn(400, sentence) from None


def check_values(values: Any, fields: Sequence[Field]) -> None:
    """The values that are given for a function's fields, in their order."""
    if not isinstance(values, list):
        raise NotLetIn(400, "data must be a list.")
    if len(values) != len(fields):
        raise NotLetIn(400, f"data must hold {len(fields)} values, not {len(values)}.")
    for value, field in zip(values, fields, strict=True):
        if wrong := _what_is_wrong(value, field):
            raise NotLetIn(400, f"{field.label} {wrong}.")


def check_named(values: Mapping[str, Any], fields: Sequence[Field]) -> None:
    """The values that are given by name."""
    labels = [field.label for field in fields]
    if unknown := [name for name in values if name not in labels]:
        known = f"it takes {', '.join(labels)}" if labels else "it takes none"
        raise NotLetIn(400, f"There is no argument {_short(unknown[0])}; {known}.")
    for field in fields:
        if field.required and field.label not in values:
            raise NotLetIn(400, f"The argument {field.label} is missing.")
        if wrong := _what_is_wrong(values.get(field.label), field):
            raise NotLetIn(400, f"{field.label} {wrong}.")


def session_in(body: Mapping[str, Any]) -> str | None:
    session = body.get("session_hash")
    if session is None or (isinstance(session, str) and SESSION.fullmatch(session)):
        return session
    raise NotLetIn(400, "session_hash must be 1 to 64 letters, digits, - or _.")


def event_in(body: Mapping[str, Any]) -> str:
    event = body.get("event_id")
    if isinstance(event, str) and SESSION.fullmatch(event):
        return event
    raise NotLetIn(400, "event_id must be 1 to 64 letters, digits, - or _.")


def number_in(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is int and abs(value) < 2**31:
        return value
    raise NotLetIn(400, f"{name} must be a whole number.")


def check_rest(body: Mapping[str, Any], triggers: Collection[int]) -> None:
    """What a page's event carries beside its values. triggers: the numbers of the page and its components."""
    if body.get("trigger_id") is not None and number_in(body, "trigger_id") not in triggers:
        raise NotLetIn(400, "trigger_id must be one of the page's components.")
    for name in ("simple_format", "batched", "oauth_token"):
        if body.get(name):
            raise NotLetIn(400, f"{name} cannot be set.")
    if body.get("event_id") is not None:
        event_in(body)


def _what_is_wrong(value: Any, field: Field) -> str | None:
    if value is None and field.kind in ("anything", "number", "switch"):
        return None  # what is left empty is for Params to judge
    match field.kind:
        case "anything":  # but what Gradio would take for a file
            inner = value if isinstance(value, list) else [value]
            plain = not any(isinstance(each, (list, dict)) for each in inner)
            return (
                None
                if plain
                else f"must be a text, a number, true, false or a list of these, not {_short(value)}"
            )
        case "choice":
            right = isinstance(value, str) and value in field.choices
            return None if right else f"must be one of {', '.join(field.choices)}, not {_short(value)}"
        case "index":
            right = type(value) is int and 0 <= value < field.length
            last = field.length - 1
            return None if right else f"must be a whole number from 0 to {last}, not {_short(value)}"
        case "text":
            right = isinstance(value, str)
        case "number":
            right = type(value) in (int, float) and abs(value) < 1e300
        case _:
            right = isinstance(value, bool)
    return None if right else f"must be {ALLOWED[field.kind]}, not {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _deeper_than(value: Any, depth: int) -> bool:
    """Level by level, since what is nested too deep could not be walked through by recursion."""
    level = [value]
    for _ in range(depth + 1):
        inner = [part for part in level if isinstance(part, (list, dict))]
        if not inner:
            return False
        level = [one for part in inner for one in (part.values() if isinstance(part, dict) else part)]
    return True
