"""The room that the page gives its parts, and that nothing moves in it."""

from dataclasses import replace

import pytest

from specdemo.events import metrics
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED
from tests.web.screen import inspector, open_trace, wait_for_state

WATCH = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts += shift.value;
}).observe({ type: "layout-shift", buffered: true });"""


def test_the_stage_is_high_nothing_moves_when_the_page_comes_and_instruments_come_when_asked_for(
    browser, visit, bare
):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(WATCH)
    page = visit(bare, context=context, first=True)
    page.locator("#examples").get_by_text("second model").wait_for(state="attached")
    page.locator('.stage [data-round="3"]').first.wait_for()  # it plays slowly
    assert page.evaluate("window.shifts") < 0.02
    for width, height, least in ((1280, 800, 380), (1920, 1080, 600)):
        page.set_viewport_size({"width": width, "height": height})
        stage, timeline = (page.get_by_test_id(name).bounding_box() for name in ("stage", "timeline"))
        assert stage["height"] >= least and stage["y"] >= 0
        assert timeline["y"] + timeline["height"] <= height, "both are seen without scrolling"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    tab = page.get_by_role("tab", name="Text")
    assert not tab.is_visible()
    page.get_by_role("button", name="Instruments").press("Enter")
    assert tab.is_visible() and tab.evaluate("e => e === document.activeElement")


@pytest.fixture(scope="module")
def page(visit_for_all, bare):
    page = visit_for_all(bare, still=True)
    wait_for_state(page, "recorded")
    return page


def test_the_numbers_and_the_formulas_open_where_they_are_seen(page):
    before = page.get_by_test_id("stage").bounding_box()
    page.get_by_text("All numbers").click()
    assert page.locator('[data-number="rounds"]').is_visible()
    assert page.get_by_test_id("stage").bounding_box() == before
    page.get_by_text("All numbers").click()
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    inspector(page).get_by_text("Formulas", exact=True).click()
    formula = inspector(page).locator(".formulas math").first
    formula.wait_for()
    panel, first = inspector(page).bounding_box(), formula.bounding_box()
    assert panel["y"] <= first["y"] and first["y"] + first["height"] <= panel["y"] + panel["height"]
    assert page.get_by_test_id("stage").bounding_box() == before, "the page does not scroll"


def test_wider_than_a_phone_the_inspector_is_beside_the_text(page):
    page.locator(".stage [data-round]").first.click()
    inspector(page).get_by_role("button", name="pinned").wait_for()
    for width, height in ((820, 1180), (1024, 768), (1280, 800)):
        page.set_viewport_size({"width": width, "height": height})
        stage, reason = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
        assert stage["x"] + stage["width"] <= reason["x"] and reason["x"] + reason["width"] <= width
        assert abs(stage["y"] - reason["y"]) < 2 and stage["width"] > 300


def test_the_timeline_fits_its_width(page, tmp_path):
    run = Trace.load(RECORDED)
    rail = page.locator(".timeline .rail")
    for count, least, scrolls in ((5, 15, False), (60, 10, False), (1_000, 2.9, True)):
        trace = replace(run, rounds=[], output_ids=[], text="", stats=metrics.fresh())
        for index in range(count):
            trace.add(replace(run.rounds[index % 9], index=index))
        trace.save(tmp_path / "long.json")
        open_trace(page, tmp_path / "long.json")
        rail.locator(".mark").nth(count - 1).wait_for(state="attached")
        assert rail.locator(".mark").first.bounding_box()["width"] >= least
        assert rail.evaluate("e => e.scrollWidth > e.clientWidth") == scrolls
