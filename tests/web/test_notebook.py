"""A run without a server: what `show` gives, as a file and in a notebook's cells, opened in Chromium from the
disk and without a network; and a notebook that is run."""

import re
from dataclasses import replace

import pytest

from specdemo import Trace, show
from specdemo.ui.page.alone import ENTRY, joined_scripts
from specdemo.words.catalogue import LANGUAGES
from tests.web.conftest import HOSTILE, RECORDED, ROOT, listening
from tests.web.screen import inspector, joined, on_stage, recorded, tokens

SHOWN = '.run[data-state="recorded"]'  # all of it
TRACE = Trace.load(RECORDED)


@pytest.fixture(scope="module")
def cells(browser, tmp_path_factory):
    """cells(html): opens the document from a file, without a network; gives the page and its cells' frames.
    No script may fail and nothing may be loaded."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    file, pages = tmp_path_factory.mktemp("cells") / "cells.html", []

    def open_cells(html: str):
        file.write_text(f'<!DOCTYPE html><meta charset="utf-8">{html}', encoding="utf-8")
        page = listening(context.new_page())
        pages.append(page)
        page.goto(file.as_uri())
        frames = [element.content_frame() for element in page.query_selector_all("iframe")]
        for frame in frames:
            frame.locator(SHOWN).wait_for()
            assert frame.url == "about:srcdoc"
        return page, frames

    yield open_cells
    for page in pages:
        assert page.broken == []
        assert [
            url for url in page.requested if not url.startswith(("file:", "data:", "about:", "blob:"))
        ] == []
    context.close()


def html_of(trace: Trace, **how) -> str:
    return show(trace, **how)._repr_html_()


@pytest.fixture(scope="module")
def two(cells, every_fate):
    """A page with two cells: with the recorded run, and with tokens of every fate."""
    return cells(html_of(TRACE) + html_of(every_fate[1]))


def test_it_shows_every_token_with_its_fate_and_what_needs_no_server(two, every_fate):
    _, [_, frame] = two
    assert on_stage(frame) == recorded(every_fate[1])
    assert joined(tokens(frame), "prompt") == every_fate[1].prompt
    for hidden in ("Generate", "Copy link", "Instruments"):
        assert not frame.get_by_role("button", name=hidden).is_visible(), hidden
    assert frame.get_by_role("tab").all_text_contents() == ["Text", "Why it is exact", "Exercises"]


def test_a_click_pins_a_token_the_player_steps_and_the_other_cell_is_not_disturbed(two):
    page, [frame, other] = two
    before, rounds = tokens(other), len(TRACE.rounds)
    frame.locator('.stage [data-fate="rejected"]').first.click()
    assert "Rejected: u = " in inspector(frame).text_content() and frame.locator(".pinned").count() == 1
    assert other.locator(".pinned").count() == 0
    page.keyboard.press("Escape")
    assert frame.locator(".pinned").count() == 0
    frame.get_by_role("button", name="One round back").click()
    frame.locator('.run[data-state="paused"]').wait_for()
    assert {token["round"] for token in tokens(frame)} - {None} == {str(at) for at in range(rounds - 1)}
    assert tokens(other) == before and other.locator(".now").count() == 0
    frame.get_by_role("button", name="Skip").click()
    frame.locator(SHOWN).wait_for()
    assert on_stage(frame) == recorded(TRACE)


def test_the_frame_cannot_reach_the_notebook_and_follows_the_systems_theme(two):
    page, [frame, _] = two
    assert frame.evaluate("origin") == "null"
    with pytest.raises(Exception, match="SecurityError|Blocked a frame"):
        frame.evaluate("parent.document.body")
    grounds = set()
    for scheme, shown in (("light", "html:not(.dark)"), ("dark", "html.dark")):
        page.emulate_media(color_scheme=scheme)
        frame.locator(shown).wait_for()
        grounds.add(frame.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_a_language_is_one_of_the_pages_and_a_file_is_as_small_as_the_readme_says():
    """At most 350 kB for 150 tokens."""
    for language in LANGUAGES:
        cell = show(TRACE, language)
        run = len(re.search(r'id="kept-run">(.*?)<', cell.file)[1])
        of_150 = len(cell.file.encode()) + run * (150 / TRACE.stats.tokens - 1)
        assert f'lang="{language}"' in cell.file and of_150 < 350_000, f"{of_150:,.0f} bytes"
        assert len(html_of(TRACE)) < 1.05 * len(cell.file)  # and a cell needs little more
    with pytest.raises(ValueError, match="^language must be one of en, de"):
        show(TRACE, language="xx")


def test_a_file_with_hostile_texts_on_a_phone(browser, hostile, tmp_path):
    """Opened from the disk without a network."""
    evil = replace(hostile, prompt="</title></script><!--<script>hit=1</script>" + "".join(HOSTILE))
    file = tmp_path / "<img src=x onerror=hit=1>.html"
    show(evil).save(file)
    narrow = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    page = listening(browser.new_context(offline=True, **narrow).new_page())
    page.goto(file.as_uri())
    page.locator(SHOWN).wait_for()
    assert on_stage(page) == recorded(evil) and joined(tokens(page), "prompt") == evil.prompt
    assert page.title().startswith("SpecDemo: </title></script><!--<script>hit=1</script>")
    for at in range(len(HOSTILE)):
        page.locator(".stage [data-round]:visible").nth(at).click()
    assert page.evaluate("window.hit") is None and page.locator("img, svg, a, form").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("html.dark").count() == 1 and page.locator("script").count() == 3
    assert page.broken == [] and not any(url.startswith("http") for url in page.requested)
    page.context.close()


def test_the_joined_scripts_can_stand_in_a_script_element():
    script = joined_scripts(ENTRY)
    assert "</script" not in script.lower() and "<!--" not in script


def test_a_notebook_that_is_run(cells, monkeypatch):
    """Jupyter runs it in a kernel of its own and makes a page of it."""
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import ExecutePreprocessor
    from nbformat import v4

    code = f"from specdemo import Trace, show\nshow(Trace.load({str(RECORDED)!r}))"
    notebook = v4.new_notebook(cells=[v4.new_code_cell(code)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook, _ = ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(ROOT)}})
    html, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(notebook)
    _, [frame] = cells(html)
    assert on_stage(frame) == recorded(TRACE)
