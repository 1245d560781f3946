"""The frame of the page, which Gradio reads as a template, and the scripts and styles that rely on it."""

import re
from html.parser import HTMLParser
from pathlib import Path

from specdemo.ui.feed import FATES, HIDEABLE, NUMBERS
from specdemo.ui.frame import SPEEDS, frame

UI = Path(__file__).resolve().parents[2] / "specdemo" / "ui"


class Elements(HTMLParser):
    """All elements with their attributes, and whether each that is opened is closed."""

    def __init__(self):
        super().__init__()
        self.elements, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append({"tag": tag, **dict(attributes)})
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def elements() -> list[dict]:
    parser = Elements()
    parser.feed(frame())
    assert parser.open == []
    return parser.elements


def values(attribute: str) -> list[str]:
    return [element[attribute] for element in elements() if attribute in element]


def test_nothing_in_it_is_a_template():
    assert not re.search(r"\$\{|\{\{|`|\\", frame())


def test_it_has_every_number_and_every_hook():
    assert values("data-number") == list(NUMBERS)
    assert {"stage", "inspector", "timeline", "metrics", "notice", "legend", "replay"} == set(
        values("data-testid")
    )


def test_the_legend_has_every_fate_and_switches_for_what_can_be_hidden():
    assert [name.split()[1] for name in values("class") if name.startswith("token ")] == [
        fate for fate in FATES if fate != "prompt"
    ]
    switches = {
        element["data-hides"]: element["aria-pressed"] for element in elements() if "data-hides" in element
    }
    assert switches == {"rejected": "true", "discarded": "false"} and set(switches) == set(HIDEABLE)
    stage = next(element for element in elements() if element.get("data-testid") == "stage")
    assert "hide-discarded" in stage["class"] and "hide-rejected" not in stage["class"], (
        "the switches tell how it begins"
    )


def test_the_speeds_that_the_script_sets_can_be_chosen():
    assert set(re.findall(r'"(\d[\d.]*)"', (UI / "static" / "stage.js").read_text(encoding="utf-8"))) <= set(
        SPEEDS
    )


def test_scripts_write_no_data_as_markup():
    for script in (UI / "static").glob("*.js"):
        for _, written in re.findall(
            r"(innerHTML|outerHTML|insertAdjacentHTML)\W+(.*)", script.read_text(encoding="utf-8")
        ):
            assert re.fullmatch(r"[A-Z]+;", written), (
                f"{script.name}: only constants may be markup, not {written}"
            )
