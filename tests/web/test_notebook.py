"""A run in a notebook cell: what `show` gives, opened in Chromium from a file; and a notebook that is run."""

import re
from dataclasses import replace

import pytest

from specdemo import Params, Trace, show
from specdemo.ui.page.notebook import ENTRY, joined_scripts
from tests.web.conftest import HOSTILE, PATIENCE, RECORDED, ROOT
from tests.web.screen import IN_TEXT, inspector, joined, on_stage, recorded, tokens

SHOWN = '.run[data-state="recorded"]'  # all of it


@pytest.fixture
def cells(browser, tmp_path):
    """cells(html): opens the document from a file, without a network; gives the page and its cells' frames.
    No script may fail and nothing may be loaded."""
    context = browser.new_context(
        offline=True, viewport={"width": 1280, "height": 900}, accept_downloads=True
    )
    requested, broken = [], []

    def open_cells(html: str):
        file = tmp_path / "cells.html"
        file.write_text(f'<!DOCTYPE html><meta charset="utf-8">{html}', encoding="utf-8")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.on("console", lambda said: broken.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: (broken.append(dialog.message), dialog.dismiss()))
        page.goto(file.as_uri())
        frames = [element.content_frame() for element in page.query_selector_all("iframe")]
        for frame in frames:
            frame.locator(SHOWN).wait_for()
            assert frame.url == "about:srcdoc"
        return page, frames

    yield open_cells
    assert broken == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:"))] == []
    context.close()


def html_of(trace: Trace, **how) -> str:
    return show(trace, **how)._repr_html_()


def test_it_shows_every_token_with_its_fate(cells, every_fate):
    _, trace = every_fate
    _, [frame] = cells(html_of(trace))
    assert on_stage(frame) == recorded(trace)
    assert joined(tokens(frame), *IN_TEXT) == trace.text and joined(tokens(frame), "prompt") == trace.prompt
    assert frame.locator(".timeline .mark").count() == len(trace.rounds)
    for hidden in ("Generate", "Lecture", "Copy link", "Instruments"):
        assert not frame.get_by_role("button", name=hidden).is_visible(), hidden
    for seen in ("metrics", "verdict", "legend", "stage", "inspector", "timeline", "replay", "whose"):
        assert frame.get_by_test_id(seen).is_visible(), seen


def test_a_click_pins_a_token_and_the_player_steps(cells):
    trace = Trace.load(RECORDED)
    page, [frame] = cells(html_of(trace))
    token = frame.locator('.stage [data-fate="rejected"]').first
    token.click()
    assert "Rejected: u = " in inspector(frame).text_content()
    page.keyboard.press("Escape")
    assert frame.locator(".pinned").count() == 0
    frame.get_by_role("button", name="One round back").click()
    frame.locator('.run[data-state="paused"]').wait_for()
    rounds = len(trace.rounds)
    assert frame.locator(".replay .place").text_content() == f"{rounds - 1} of {rounds} rounds"
    assert {token["round"] for token in tokens(frame)} - {None} == {str(at) for at in range(rounds - 1)}
    frame.get_by_role("button", name="Skip").click()
    frame.locator('.run[data-state="recorded"]').wait_for()
    assert on_stage(frame) == recorded(trace)


def test_cells_of_one_page_do_not_disturb_each_other(cells):
    trace = Trace.load(RECORDED)
    page, [first, second] = cells(html_of(trace) + html_of(trace))
    first.locator('.stage [data-fate="bonus"]').first.click()
    second.get_by_role("button", name="One token back").click()
    second.locator('.run[data-state="paused"]').wait_for()
    assert first.locator(".pinned").count() == 1 and second.locator(".pinned").count() == 0
    assert len(on_stage(first)) == len(recorded(trace)) and first.locator(".now").count() == 0
    assert page.locator("body").evaluate("body => body.children.length") == 2


def test_hostile_texts_are_shown_to_the_letter(cells, hostile):
    evil = replace(
        hostile, pair=replace(hostile.pair, name=HOSTILE[3]), prompt="".join(HOSTILE) + "\u2028'\"&"
    )
    page, [frame] = cells(html_of(evil))
    assert on_stage(frame) == recorded(evil) and joined(tokens(frame), "prompt") == evil.prompt
    assert HOSTILE[3] in frame.get_by_test_id("whose").text_content()
    for at in range(len(HOSTILE)):
        frame.locator(".stage [data-round]:visible").nth(at).click()
    for document in (page, frame):
        assert document.evaluate("window.hit") is None
        assert document.locator("img, svg, object, embed, a, form, textarea").count() == 0
    assert frame.locator("script").count() == 2 and page.locator("script").count() == 0


def test_the_frame_cannot_reach_the_notebook(cells):
    _, [frame] = cells(html_of(Trace.load(RECORDED)))
    assert frame.evaluate("origin") == "null"
    with pytest.raises(Exception, match="SecurityError|Blocked a frame"):
        frame.evaluate("parent.document.body")


def test_it_follows_the_systems_theme(cells):
    page, [frame] = cells(html_of(Trace.load(RECORDED)))
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    frame.locator("html:not(.dark)").wait_for()
    light = frame.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    frame.locator("html.dark").wait_for()
    assert frame.evaluate(ground) != light


def test_a_language_is_one_of_the_pages():
    trace = Trace.load(RECORDED)
    assert 'lang="de"' in html_of(trace, language="de").replace("&quot;", '"')
    with pytest.raises(ValueError, match="language must be one of en, de, not 'xx'"):
        show(trace, language="xx")
    with pytest.raises(ValueError, match="language must be one of"):
        show(trace, language=["de"])
    with pytest.raises(TypeError, match="trace must be a Trace, as generate returns it, not str"):
        show("run.json")


def test_the_size_that_the_readme_states():
    """Of the run that the page plays first."""
    readme = (ROOT / "specdemo" / "ui" / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"A cell adds less than ([\d.]+) MB", readme)
    size = len(html_of(Trace.load(RECORDED)).encode()) / 1e6
    assert stated and 0.5 * float(stated[1]) < size < float(stated[1])


def test_the_joined_scripts_can_stand_in_a_script_element():
    script = joined_scripts(ENTRY)
    assert "</script" not in script.lower() and "<!--" not in script
    assert not re.search(r"^\s*(?:import|export)\b", script, re.MULTILINE)


def test_an_import_of_another_form_is_refused(tmp_path, monkeypatch):
    (tmp_path / "one.js").write_text('import * as all from "./two.js";\n')
    monkeypatch.setattr("specdemo.ui.page.notebook.STATIC", tmp_path)
    with pytest.raises(ValueError, match="one.js has a form of import or export that cannot be joined"):
        joined_scripts("one.js")


@pytest.mark.slow
def test_a_notebook_that_is_run(cells, monkeypatch):
    """Jupyter runs it in a kernel of its own and makes a page of it."""
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import ExecutePreprocessor
    from nbformat import v4

    make = "from specdemo import Params, generate, load_pair, show\n" + (
        'trace = generate(load_pair(), "Once upon a time", Params(max_new_tokens=24, seed=7), measure=False)'
    )
    notebook = v4.new_notebook(
        cells=[v4.new_code_cell(source) for source in (make, "show(trace)", "print(trace.to_json())")]
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook, _ = ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(ROOT)}})
    trace = Trace.from_json(notebook.cells[2].outputs[0].text)
    assert trace.params == replace(Params(max_new_tokens=24), seed=7) and trace.stats.tokens > 0
    html, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(notebook)
    _, [frame] = cells(html)
    assert on_stage(frame) == recorded(trace) and joined(tokens(frame), *IN_TEXT) == trace.text
