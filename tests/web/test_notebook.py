"""A run without a server: what `show` gives, as a file and in a notebook's cells, opened in Chromium from the
disk and without a network; and a notebook that is run."""

import re
from dataclasses import replace

import pytest

from specdemo import Trace, show
from specdemo.ui.page.alone import ENTRY, joined_scripts
from specdemo.words.catalogue import LANGUAGES
from tests.web.conftest import HOSTILE, PATIENCE, RECORDED, ROOT
from tests.web.screen import IN_TEXT, inspector, joined, on_stage, recorded, tokens

SHOWN = '.run[data-state="recorded"]'  # all of it
TRACE = Trace.load(RECORDED)


@pytest.fixture(scope="module")
def cells(browser, tmp_path_factory):
    """cells(html): opens the document from a file, without a network; gives the page and its cells' frames.
    No script may fail and nothing may be loaded."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    file = tmp_path_factory.mktemp("cells") / "cells.html"
    requested, broken = [], []

    def open_cells(html: str):
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
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
    context.close()


def html_of(trace: Trace, **how) -> str:
    return show(trace, **how)._repr_html_()


@pytest.fixture(scope="module")
def two(cells, every_fate):
    """A page with two cells: with the recorded run, and with tokens of every fate."""
    return cells(html_of(TRACE) + html_of(every_fate[1]))


def test_it_shows_every_token_with_its_fate(two, every_fate):
    _, [_, frame] = two
    trace = every_fate[1]
    assert on_stage(frame) == recorded(trace)
    assert joined(tokens(frame), *IN_TEXT) == trace.text and joined(tokens(frame), "prompt") == trace.prompt
    assert frame.locator(".timeline .mark").count() == len(trace.rounds)
    for hidden in ("Generate", "Lecture", "Copy link", "Instruments"):
        assert not frame.get_by_role("button", name=hidden).is_visible(), hidden
    assert frame.get_by_role("tab").all_text_contents() == ["Text", "Why it is exact"]
    for seen in ("metrics", "verdict", "legend", "stage", "inspector", "timeline", "replay", "whose"):
        assert frame.get_by_test_id(seen).is_visible(), seen


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
    assert frame.locator(".replay .place").text_content() == f"{rounds - 1} of {rounds} rounds"
    assert {token["round"] for token in tokens(frame)} - {None} == {str(at) for at in range(rounds - 1)}
    assert tokens(other) == before and other.locator(".now").count() == 0
    frame.get_by_role("button", name="Skip").click()
    frame.locator(SHOWN).wait_for()
    assert on_stage(frame) == recorded(TRACE)


def test_it_is_saved_as_a_picture_and_as_a_table(two):
    page, [frame, _] = two
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("Rounds as CSV", b"round,place,fate,")):
        frame.locator(".save-as summary").click()
        with page.expect_download() as download:
            frame.get_by_role("button", name=kind, exact=True).click()
        assert download.value.path().read_bytes().startswith(begins), kind


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


def test_hostile_texts_are_shown_to_the_letter(cells, hostile):
    named = replace(hostile.pair, name=HOSTILE[3])
    evil = replace(hostile, pair=named, prompt="".join(HOSTILE) + "\u2028'\"&")
    page, [frame] = cells(html_of(evil))
    assert on_stage(frame) == recorded(evil) and joined(tokens(frame), "prompt") == evil.prompt
    assert HOSTILE[3] in frame.get_by_test_id("whose").text_content()
    for at in range(len(HOSTILE)):
        frame.locator(".stage [data-round]:visible").nth(at).click()
    for document in (page, frame):
        assert document.evaluate("window.hit") is None
        assert document.locator("img, svg, object, embed, a, form, textarea").count() == 0
    assert frame.locator("script").count() == 3 and page.locator("script").count() == 0


def test_a_language_is_one_of_the_pages_and_a_file_is_as_small_as_the_readme_says():
    """At most 350 kB for 150 tokens."""
    for language in LANGUAGES:
        cell = show(TRACE, language)
        run = len(re.search(r'id="kept-run">(.*?)<', cell.file)[1])
        of_150 = len(cell.file.encode()) + run * (150 / TRACE.stats.tokens - 1)
        assert f'lang="{language}"' in cell.file and of_150 < 350_000, f"{of_150:,.0f} bytes"
        assert len(html_of(TRACE)) < 1.05 * len(cell.file)  # and a cell needs little more
    for wrong in ("xx", ["de"]):
        with pytest.raises(ValueError, match="language must be one of en, de, not "):
            show(TRACE, language=wrong)
    with pytest.raises(TypeError, match="trace must be a Trace, as generate returns it, not str"):
        show("run.json")


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """opened(trace, **context): the trace's file, opened from the disk without a network."""
    contexts, broken = [], []

    def open_file(trace: Trace, **how):
        file = tmp_path_factory.mktemp("saved") / "<img src=x onerror=hit=1>.html"
        show(trace).save(file)
        contexts.append(browser.new_context(offline=True, **how))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.on("request", lambda request: request.url.startswith("http") and broken.append(request.url))
        page.goto(file.as_uri())
        page.locator(SHOWN).wait_for()
        return page

    yield open_file
    assert broken == []
    for context in contexts:
        context.close()


def test_a_file_has_all_of_the_run_and_the_figure_takes_a_tokens_p_and_q(opened):
    page = opened(TRACE)
    assert on_stage(page) == recorded(TRACE) and joined(tokens(page), *IN_TEXT) == TRACE.text
    assert page.title() == f"SpecDemo: {TRACE.prompt[:60]}"
    rejected = next(token for one in TRACE.rounds for token in one.draft if token.fate == "rejected")
    page.locator('.stage [data-fate="rejected"]').first.click()
    assert f"Rejected: u = {rejected.u:.4f}" in inspector(page).text_content()
    page.get_by_role("tab", name="Why it is exact").click()
    figure = page.get_by_test_id("figure")
    figure.get_by_role("button", name="Take them from the pinned token").click()
    for which in "pq":
        name = f'{which} of "{rejected.text}"'
        value = figure.get_by_role("slider", name=name, exact=True).get_attribute("aria-valuenow")
        assert float(value) == pytest.approx(getattr(rejected, which), abs=0.001)
    page.get_by_role("tab", name="Text").click()
    page.set_viewport_size({"width": 1920, "height": 1080})
    legend, stage = page.get_by_test_id("legend").bounding_box(), page.get_by_test_id("stage").bounding_box()
    assert legend["y"] + legend["height"] <= stage["y"]
    page.locator(".replay select").select_option("0.04")
    page.get_by_role("button", name="Replay").click()
    page.locator('.run:not([data-state="recorded"])').wait_for()


def test_a_file_with_hostile_texts_on_a_phone(opened, hostile):
    evil = replace(hostile, prompt="</title></script><!--<script>hit=1</script>" + "".join(HOSTILE))
    page = opened(evil, viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert on_stage(page) == recorded(evil) and joined(tokens(page), "prompt") == evil.prompt
    assert page.title().startswith("SpecDemo: </title></script><!--<script>hit=1</script>")
    page.locator('.stage [data-fate="accepted"]').first.click()
    page.get_by_role("tab", name="Why it is exact").click()
    page.get_by_test_id("figure").get_by_role("button", name="Take").click()
    assert page.evaluate("window.hit") is None and page.locator("img, svg, a, form").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("html.dark").count() == 1 and page.locator("script").count() == 3


def test_the_joined_scripts_can_stand_in_a_script_element(tmp_path, monkeypatch):
    script = joined_scripts(ENTRY)
    assert "</script" not in script.lower() and "<!--" not in script
    (tmp_path / "one.js").write_text('import * as all from "./two.js";\n')
    monkeypatch.setattr("specdemo.ui.page.alone.STATIC", tmp_path)
    with pytest.raises(ValueError, match="one.js has a form of import or export that cannot be joined"):
        joined_scripts("one.js")


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
