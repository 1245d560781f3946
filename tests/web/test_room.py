"""The room that the page gives its parts, and that nothing moves in it."""

import pytest

from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED, with_rounds
from tests.web.screen import close_settings, inspector, open_settings, open_trace, wait_for_state

WATCH = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts += shift.value;
}).observe({ type: "layout-shift", buffered: true });"""


def test_the_stage_is_high_nothing_moves_when_the_page_comes_and_instruments_come_when_asked_for(
    browser, visit, bare
):
    """The title and the stage come after the prompt, as on a busy machine."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(WATCH)
    late = []

    def after_the_prompt(route) -> None:
        route.request.frame.locator("#prompt textarea").wait_for()
        late.append(route.continue_())

    context.route("**/assets/HTML-*.js", after_the_prompt)
    page = visit(bare, context=context, first=True)
    assert late
    page.locator("#examples").get_by_text("second model").wait_for(state="attached")
    page.locator('.stage [data-round="3"]').first.wait_for()  # it plays slowly
    page.wait_for_function("document.querySelector('.slow-motion').getAnimations({ subtree: true }).length")
    wait_for_state(page, "recorded")  # the round in slow motion begins when the text is there
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


def test_a_new_token_restyles_little(page):
    """However much there is on the page, or it could not be read during a fast run."""
    browser, told, ended = page.context.browser.new_browser_cdp_session(), [], []
    browser.on("Tracing.dataCollected", lambda part: told.extend(part["value"]))
    browser.on("Tracing.tracingComplete", lambda part: ended.append(part))
    browser.send("Tracing.start", {"categories": "devtools.timeline", "transferMode": "ReportEvents"})
    page.evaluate(
        """async () => {
          const all = document.querySelectorAll(".stage [data-token]");
          all[0].parentElement.append(all[all.length - 1].cloneNode(true));
          await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
        }"""
    )
    browser.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    page.evaluate("document.querySelector('.stage [data-token]').parentElement.lastElementChild.remove()")
    restyled = [event["args"]["elementCount"] for event in told if event["name"] == "UpdateLayoutTree"]
    assert max(restyled) > 0 and max(restyled) < 60 < page.locator(".stage [data-token]").count(), restyled


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
    bar = inspector(page).locator(".judgement .sides").bounding_box()
    assert panel["y"] <= bar["y"] < bar["y"] + bar["height"] <= first["y"], "below the bar that it explains"
    assert first["y"] + first["height"] <= panel["y"] + panel["height"]
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
    for count, least, scrolls in ((5, 15, False), (60, 10, False), (600, 2.9, True)):
        rounds = [run.rounds[index % 9] for index in range(count)]
        with_rounds(run, rounds).save(tmp_path / "long.json")
        open_trace(page, tmp_path / "long.json")
        rail.locator(".mark").nth(count - 1).wait_for(state="attached")
        assert rail.locator(".mark").first.bounding_box()["width"] >= least
        assert rail.evaluate("e => e.scrollWidth > e.clientWidth") == scrolls


def test_what_something_means_lies_beside_what_is_pressed_and_open_settings_cut_no_tab(visit, bare):
    page = visit(bare, still=True, first=True)
    page.set_viewport_size({"width": 1280, "height": 800})
    wait_for_state(page, "recorded")
    page.locator(".metrics > .numbers > div").first.hover()
    meaning = page.locator(".metrics > .numbers .definition:visible").bounding_box()
    button = page.get_by_role("button", name="Instruments").bounding_box()
    assert button["x"] + button["width"] <= meaning["x"] or button["y"] >= meaning["y"] + meaning["height"]
    page.get_by_test_id("legend").get_by_text("rejected", exact=True).hover()
    meaning = page.get_by_test_id("legend").locator(".definition:visible").bounding_box()
    stage = page.get_by_test_id("stage").bounding_box()
    assert meaning["y"] >= 0 and meaning["y"] + meaning["height"] <= stage["y"], "its tokens are in view"
    page.get_by_role("button", name="Instruments").click()
    open_settings(page)
    for width in (1100, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        end = page.locator("#settings").bounding_box()["x"]
        tabs = page.get_by_role("tab").evaluate_all("all => all.map((e) => e.getBoundingClientRect().right)")
        assert len(tabs) == 11 and max(tabs) < end, width
    close_settings(page)
