"""The browser's scripts know the types of what the server sends."""

from tests.browser_types import SCRIPT, script


def test_the_scripts_have_the_types_of_the_server():
    written = SCRIPT.read_text(encoding="utf-8")
    assert written == script(), "python -m tests.browser_types writes the file anew"
