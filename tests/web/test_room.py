"""The room that the page gives its parts, and that nothing moves in it. Prints what it measures."""

import pytest

from specdemo.ui.page.frame import scripts_path
from tests.web.conftest import PATIENCE
from tests.web.screen import inspector, wait_for_state

pytestmark = pytest.mark.slow
WATCH = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts += shift.value;
}).observe({ type: "layout-shift", buffered: true });"""

TIMELINE = """async ([scripts, counts]) => {
  const { makeTimeline } = await import(new URL(`${scripts}/view/timeline.js`, document.baseURI));
  const strip = document.createElement("div");
  strip.className = "timeline";
  document.querySelector(".run").append(strip);
  strip.style.width = "640px";
  const jumps = [];
  const timeline = makeTimeline(strip, { jump: (index) => jumps.push(index), point() {} });
  const rail = strip.querySelector(".rail");
  const seen = counts.map((count) => {
    timeline.clear();
    const scales = new Set();
    for (let index = 0; index < count; index++) {
      timeline.add([{ index, draft: [], next: null, draft_ms: 1, verify_ms: index === 3 ? 90 : 10 }]);
      scales.add(rail.style.getPropertyValue("--longest"));
    }
    const width = rail.firstElementChild.getBoundingClientRect().width;
    return { width, scrolls: rail.scrollWidth > rail.clientWidth, scales: scales.size };
  });
  timeline.clear();
  timeline.add(Array.from({ length: 5 }, (_, index) =>
    ({ index, draft: [], next: null, draft_ms: 1, verify_ms: 10 })));
  const { right, top } = rail.getBoundingClientRect();
  rail.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: right - 5, clientY: top + 20 }));
  const rounds = Array.from({ length: 20 }, (_, index) =>
    ({ index, draft: [], next: null, draft_ms: 1, verify_ms: index < 5 ? 10 : 100 }));
  const scale = () => rail.style.getPropertyValue("--longest");
  timeline.clear();
  for (const round of rounds) timeline.add([round]);
  const before = scale();
  timeline.cut(3);
  const walked = rounds.slice(3).map((round) => { timeline.add([round]); return scale(); });
  strip.remove();
  return { seen, jumps, isKept: walked.every((each) => each === before) };
}"""


@pytest.mark.parametrize("width, height, least", [(1280, 800, 380), (1920, 1080, 600)])
def test_the_stage_is_high_and_nothing_moves_when_the_page_comes(browser, bare, capsys, width, height, least):
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.add_init_script(WATCH)
    page.goto(bare)
    wait_for_state(page, "running")
    page.locator("#examples").get_by_text("second model").wait_for(state="attached")
    page.wait_for_timeout(2_000)
    shifted = page.evaluate("window.shifts")
    stage, timeline = (page.get_by_test_id(name).bounding_box() for name in ("stage", "timeline"))
    with capsys.disabled():
        print(f"\n{width} x {height}: layout shift {shifted:.3f}, stage {stage['height']:.0f} px")
    assert shifted < 0.02
    assert stage["height"] >= least and stage["y"] >= 0
    assert timeline["y"] + timeline["height"] <= height, "both are seen without scrolling"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_the_numbers_and_the_formulas_open_where_they_are_seen(visit, bare):
    page = visit(bare, still=True)
    before = page.get_by_test_id("stage").bounding_box()
    page.get_by_text("All numbers").click()
    assert page.locator('[data-number="rounds"]').is_visible()
    assert page.get_by_test_id("stage").bounding_box() == before
    page.get_by_text("All numbers").click()
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    inspector(page).get_by_text("Formulas", exact=True).click()
    page.wait_for_timeout(200)
    panel, first = (
        inspector(page).bounding_box(),
        inspector(page).locator(".formulas math").first.bounding_box(),
    )
    assert panel["y"] <= first["y"] and first["y"] + first["height"] <= panel["y"] + panel["height"]
    assert page.get_by_test_id("stage").bounding_box() == before, "the page does not scroll"


def test_the_timeline_fits_its_width_and_keeps_its_scale(visit, bare):
    page = visit(bare, still=True)
    few, some, many = (found := page.evaluate(TIMELINE, [scripts_path(), [5, 60, 1000]]))["seen"]
    assert few["width"] > 15 and not few["scrolls"]
    assert 10 <= some["width"] < 11 and not some["scrolls"]
    assert many["width"] == pytest.approx(3, abs=0.1) and many["scrolls"]
    assert [one["scales"] for one in (few, some, many)] == [1, 1, 1]
    assert found["isKept"], "walking back and on again changes it as little"
    assert found["jumps"] == [4], "a tap beside the columns goes to the nearest one"


@pytest.mark.parametrize("width, height", [(820, 1180), (1024, 768), (1280, 800)])
def test_wider_than_a_phone_the_inspector_is_beside_the_text(visit, bare, width, height):
    page = visit(bare, still=True)
    wait_for_state(page, "recorded")
    page.set_viewport_size({"width": width, "height": height})
    page.locator(".stage [data-round]").first.click()
    inspector(page).get_by_role("button", name="pinned").wait_for()
    stage, reason = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
    assert stage["x"] + stage["width"] <= reason["x"] and reason["x"] + reason["width"] <= width
    assert abs(stage["y"] - reason["y"]) < 2 and stage["width"] > 300
