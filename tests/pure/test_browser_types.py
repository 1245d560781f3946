"""What the server sends has exactly the parts that its description for the browser's scripts names."""

import re
from typing import Any

from specdemo.ui.page.frame import STATIC
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.kept import RECORDINGS, recorded_trace

MESSAGES = (STATIC / "view" / "messages.d.ts").read_text(encoding="utf-8")
# By interface: its parts, each with its type; the name of one that can be missing ends with "?".
INTERFACES = {
    name: dict(re.findall(r"^  (\w+\??): (.*);$", body, re.MULTILINE))
    for name, body in re.findall(r"^export interface (\w+) \{\n(.*?)^\}", MESSAGES, re.MULTILINE | re.DOTALL)
}


def check_message(value: Any, kind: str) -> None:
    """Checks that each object in the value has the parts of one of the interfaces that its type names."""
    if isinstance(value, list):
        for part in value:
            check_message(part, kind)
    elif isinstance(value, dict) and (names := INTERFACES.keys() & re.findall(r"\w+", kind)):
        if kind.startswith("Record<"):
            return check_message([*value.values()], kind.partition(", ")[2])
        parts = next((INTERFACES[name] for name in names if _fits(value, INTERFACES[name])), None)
        assert parts, f"{kind} has other parts than {', '.join(value)}"
        for name, part in value.items():
            check_message(part, parts.get(name) or parts[f"{name}?"])


def _fits(value: dict[str, Any], parts: dict[str, str]) -> bool:
    known = {name.removesuffix("?") for name in parts}
    return parts.keys() & known <= value.keys() <= known


def test_a_run_is_told_as_the_scripts_know_it():
    for name in RECORDINGS:
        check_message({"update": RunFeed(recorded_trace(name), recorded=True).snapshot()}, "PageMessage")
