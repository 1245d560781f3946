"""Save as: the picture and the table of the run on the stage."""

import struct
import xml.etree.ElementTree as ET

import pytest

from specdemo import show
from tests.web.screen import IN_TEXT, joined, open_trace, tokens, wait_for_state


@pytest.fixture(scope="module")
def opened(visit_for_all, bare, every_fate):
    page = visit_for_all(bare, still=True)
    open_trace(page, every_fate[0])
    wait_for_state(page, "recorded")
    return page


def saved_as(page, kind: str) -> tuple[str, bytes]:
    """The name and the content of the file."""
    page.locator(".save-as summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=kind, exact=True).click()
    assert page.locator(".save-as").get_attribute("open") is None
    return download.value.suggested_filename, download.value.path().read_bytes()


def texts(svg: bytes, *wanted: str) -> str:
    elements = ET.fromstring(svg).iter()
    return "".join(one.text or "" for one in elements if one.get("data-fate") in wanted)


def test_the_picture_has_what_the_stage_shows(opened, every_fate):
    name, svg = saved_as(opened, "SVG")
    shown = tokens(opened)
    assert name == f"specdemo-seed-{every_fate[1].params.seed}.svg"
    assert texts(svg, *IN_TEXT) == joined(shown, *IN_TEXT) == every_fate[1].text
    assert texts(svg, "prompt") == every_fate[1].prompt
    assert texts(svg, "rejected") == joined(shown, "rejected") and not texts(svg, "discarded")
    drawn = "".join(ET.fromstring(svg).itertext())
    for part in ("verdict", "whose"):
        assert opened.get_by_test_id(part).text_content() in drawn, part
    assert all(word in drawn for word in ("accepted", "rejected", "resampled", "bonus", "sampled"))


def test_what_is_hidden_is_not_in_it_and_it_has_the_colours_of_the_theme(opened):
    switch = opened.get_by_test_id("legend").get_by_role("button", name="rejected")
    switch.click()
    light = saved_as(opened, "SVG")[1]
    switch.click()
    opened.evaluate("document.body.classList.add('dark')")
    dark = saved_as(opened, "SVG")[1]
    opened.evaluate("document.body.classList.remove('dark')")
    assert texts(dark, "rejected") and not texts(light, "rejected")
    assert [b"#e3f3e7" in light, b"#1b3626" in light] == [True, False]
    assert [b"#e3f3e7" in dark, b"#1b3626" in dark] == [False, True]


def test_the_html_file_is_what_show_writes(opened, every_fate):
    name, file = saved_as(opened, "One HTML file")
    assert name == f"specdemo-seed-{every_fate[1].params.seed}.html"
    assert without_run(file.decode()) == without_run(show(every_fate[1]).file)


def without_run(file: str) -> str:
    before, after = file.split('id="kept-run">')
    return before + after.partition("<")[2]


def test_the_png_is_the_same_picture_twice_as_sharp(opened):
    name, png = saved_as(opened, "PNG")
    svg = ET.fromstring(saved_as(opened, "SVG")[1])
    size = struct.unpack(">II", png[16:24])
    assert name.endswith(".png") and png.startswith(b"\x89PNG") and len(png) > 20_000
    assert size == (2 * int(svg.get("width")), 2 * int(svg.get("height")))


def test_by_keyboard(opened):
    def press(*keys: str) -> str:
        for key in keys:
            opened.keyboard.press(key)
        return opened.evaluate("document.activeElement.textContent")

    opened.locator("#save").focus()
    assert press("Tab", "Enter", *["Tab"] * 4) == "Rounds as CSV"
    assert press("Escape") == "Save as" and press("Enter", "Tab", "Tab") == "SVG"
    with opened.expect_download() as download:
        opened.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".svg")
