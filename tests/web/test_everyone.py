"""For everyone: both themes, wide and narrow screens, fingers, and readers who ask for no motion; and nothing
moves by itself."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.web.screen import (
    NOT_IN_TEXT,
    PHONE,
    close_settings,
    inspector,
    open_examples,
    open_settings,
    open_trace,
    run,
    set_field,
    tokens,
    unfold,
    wait_for_state,
)

FATES = ("prompt", "accepted", "rejected", "discarded", "resampled", "bonus", "sampled")
# What of a token's looks is not colour.
CUES = """e => {
  const style = getComputedStyle(e);
  return ["fontWeight", "textDecorationLine", "borderBottomStyle", "borderBottomWidth", "outlineStyle"]
    .map((name) => style[name]);
}"""

DRAWN = """count => count ===
  new Set([...document.querySelectorAll(".stage [data-fate]")].map(({ dataset }) => dataset.fate)).size"""

WIDER = """(main, width) => [...main.querySelectorAll("*")]
  .filter((e) => e.checkVisibility() && !e.closest(".rail, .tabs, math"))
  .filter((e) => e.getBoundingClientRect().right > width + 1)
  .map((e) => e.outerHTML.slice(0, 80))"""

# Of each token that is shown: its text, and how wide and high the part of it is that a finger can hit.
REACH = """tokens => tokens.filter((token) => token.checkVisibility()).map((token) => {
  token.scrollIntoView({ block: "center" });
  const boxes = [...token.querySelector("b").getClientRects()].sort((a, b) => b.width - a.width);
  const [x, y] = [boxes[0].left + boxes[0].width / 2, boxes[0].top + boxes[0].height / 2];
  const isHit = (dx, dy) => document.elementFromPoint(x + dx, y + dy)?.closest("[data-token]") === token;
  const reach = (dx, dy) => { let at = 0; while (at < 40 && isHit(at * dx, at * dy)) at++; return at; };
  return [token.textContent, reach(1, 0) + reach(-1, 0), reach(0, 1) + reach(0, -1)];
})"""
WATCH = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts += shift.value;
}).observe({ type: "layout-shift", buffered: true });"""


@pytest.fixture(scope="module")
def opened(visit_for_all, bare, every_fate):
    """A page with tokens of every fate on its stage, all of them shown."""
    page = visit_for_all(bare, still=True)
    open_trace(page, every_fate[0])
    page.get_by_role("button", name="discarded").click()
    page.wait_for_function(DRAWN, arg=len(FATES))  # a long text is drawn in parts
    assert {token["fate"] for token in tokens(page)} == {*FATES}
    return page


@pytest.fixture(scope="module")
def phone(visit_for_all, browser, bare):
    return visit_for_all(bare, still=True, context=browser.new_context(**PHONE))


def words_by_fate(page) -> dict:
    """The first word of each fate on the stage."""
    first = '.stage [data-fate="{}"] > b:not(.space):not(.none)'
    return {fate: page.locator(first.format(fate)).first for fate in FATES}


def cues_of(words: dict) -> dict:
    cues = {fate: tuple(word.evaluate(CUES)) for fate, word in words.items()}
    assert len(set(cues.values())) == len(FATES), cues
    return cues


def axe_finds_nothing(page, what: str, where: str = "html", left_out: str = ".stage") -> None:
    """where: the part that is new on the screen. left_out: what of it takes long and was looked at before."""
    page.wait_for_function("document.getAnimations().every(({ playState }) => playState !== 'running')")
    assert page.locator(where).filter(visible=True).count(), where
    found = Axe().run(page, {"include": [where], "exclude": [left_out]})
    assert not found.violations_count, f"{what}: {found.generate_report()}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_fate_is_told_by_more_than_its_colour_and_every_text_can_be_read(opened, theme):
    page = opened
    page.evaluate("theme => document.body.classList.toggle('dark', theme === 'dark')", theme)
    words = words_by_fate(page)
    cues = cues_of(words)
    assert all("line-through" in cues[fate] for fate in NOT_IN_TEXT), "what is not in the text is struck out"
    samples = page.get_by_test_id("legend").locator(".token")
    assert {sample.text_content(): tuple(sample.evaluate(CUES)) for sample in samples.all()} == {
        fate: looks for fate, looks in cues.items() if fate != "prompt"
    }
    words["resampled"].click()
    axe_finds_nothing(page, "tokens of every fate", left_out="footer")
    page.evaluate("document.body.classList.remove('dark')")


def test_each_token_has_a_name_with_its_fate(opened):
    stage = opened.get_by_role("listbox", name="Text, token by token")
    fates = [token["fate"] for token in tokens(opened)]
    assert stage.get_by_role("option").count() == len(fates)
    for fate in FATES:
        where = "" if fate == "prompt" else r" in round \d+"
        assert stage.get_by_role("option", name=re.compile(rf", {fate}{where}$")).count() == fates.count(fate)


def test_the_system_s_colours_leave_each_fate_its_lines(opened):
    page = opened
    page.emulate_media(forced_colors="active", reduced_motion="reduce")
    words = words_by_fate(page)
    cues_of(words)
    words["accepted"].click()
    page.mouse.move(5, 5)
    assert words["accepted"].evaluate("e => getComputedStyle(e).outlineStyle") == "solid", "pinned"
    page.keyboard.press("Escape")
    page.emulate_media(forced_colors="none", reduced_motion="reduce")


@pytest.mark.parametrize(
    ("theme", "width", "height"),
    [("light", 1280, 800), pytest.param("dark", 390, 844, marks=pytest.mark.long)],  # half a minute each
)
def test_axe_finds_nothing_wrong(visit, url, theme, width, height):
    """At first sight, with each thing open that opens, after a run, in each view, and in a hall; and nothing
    is wider than the screen."""
    page = visit(f"{url}/?__theme={theme}", still=True, first=True)
    page.set_viewport_size({"width": width, "height": height})
    wait_for_state(page, "recorded")
    assert page.evaluate("Boolean(document.querySelector('.dark'))") == (theme == "dark")
    axe_finds_nothing(page, "first sight")
    open_examples(page)
    axe_finds_nothing(page, "examples", "#examples")
    page.keyboard.press("Escape")
    set_field(page, "Max new tokens", 24)
    close_settings(page)  # which lie over the page, where it is narrow
    run(page, f"{'W' * 300} once upon a time")
    unfold(page, "Chat", "Ending", "Weights")
    for wide in (1280, 800, 390):
        page.set_viewport_size({"width": wide, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        assert page.locator("main").evaluate(WIDER, wide) == [], wide
    page.set_viewport_size({"width": width, "height": height})
    page.get_by_role("combobox", name="Pair").click()
    axe_finds_nothing(page, "settings with an open drop-down", "#settings")
    page.keyboard.press("Escape")
    close_settings(page)
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    axe_finds_nothing(page, "a pinned token", ".inspector")
    page.keyboard.press("Escape")
    for tab in page.get_by_role("tab").all():
        tab.click()
        axe_finds_nothing(page, tab.text_content(), "[role=tabpanel]")
    page.get_by_role("tab", name="Text").click()
    page.get_by_role("button", name="Lecture").click()
    axe_finds_nothing(page, "a lecture")


def test_without_motion_the_recorded_run_is_there_at_once(phone):
    page = phone
    wait_for_state(page, "recorded")
    assert page.locator(".stage [data-round]").count() > 100
    moving = page.locator(".run").evaluate(
        "run => [...run.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e);"
        " return s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0; }).length"
    )
    assert moving == 0
    assert page.evaluate("scrollY") == 0, "the page does not scroll by itself"


def test_a_phone_shows_a_tapped_token_and_its_reason_together(phone):
    page = phone
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    token = page.locator('.stage [data-fate="rejected"]:visible > b').nth(3)
    token.scroll_into_view_if_needed()
    token.tap()
    pinned = inspector(page).get_by_role("button", name="pinned")
    pinned.wait_for()
    verdict = inspector(page).locator(".verdict")
    assert verdict.text_content().startswith("Rejected: ")
    for part in (token, verdict):
        seen = part.bounding_box()
        assert seen["x"] >= 0 and seen["x"] + seen["width"] <= 390
        assert seen["y"] >= 0 and seen["y"] + seen["height"] <= 844
    sheet, box = inspector(page).bounding_box(), token.bounding_box()
    assert box["y"] + box["height"] <= sheet["y"], "the sheet does not lie over the token"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    heights = page.locator("main").evaluate(
        "main => [...main.querySelectorAll('button, select, summary, .legend .entry')]"
        ".filter((e) => e.checkVisibility()).map((e) => [e.getBoundingClientRect().height, e.textContent])"
    )
    assert len(heights) > 20 and [one for one in heights if one[0] < 44] == [], "too low for a finger"
    pinned.tap()
    pinned.wait_for(state="hidden")


def test_a_finger_can_hit_every_token(phone):
    discarded = phone.get_by_role("button", name="discarded")
    discarded.tap()
    phone.locator("h1").tap()  # or what it means lies over the text
    reach = phone.locator(".stage [data-token]").evaluate_all(REACH)
    assert "," in {text.strip() for text, *_ in reach}
    assert [one for one in reach if min(one[1:]) < 23] == []
    discarded.tap()


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
    wait_for_state(page, "recorded")
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


def test_nothing_moves_when_the_page_comes_on_a_phone(browser, visit, bare):
    context = browser.new_context(**PHONE)
    context.add_init_script(WATCH)
    page = visit(bare, still=True, context=context, first=True)
    wait_for_state(page, "recorded")
    assert page.evaluate("window.shifts") < 0.02


def test_wider_than_a_phone_the_inspector_is_beside_the_text(opened):
    page = opened
    page.locator(".stage [data-round]").first.click()
    inspector(page).get_by_role("button", name="pinned").wait_for()
    for width, height in ((820, 1180), (1024, 768), (1280, 800)):
        page.set_viewport_size({"width": width, "height": height})
        stage, reason = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
        assert stage["x"] + stage["width"] <= reason["x"] and reason["x"] + reason["width"] <= width
        assert abs(stage["y"] - reason["y"]) < 2 and stage["width"] > 300


def test_what_something_means_lies_beside_what_is_pressed_and_open_settings_cut_no_tab(visit, bare):
    page = visit(bare, still=True, first=True)
    page.set_viewport_size({"width": 1280, "height": 800})
    wait_for_state(page, "recorded")
    page.get_by_test_id("legend").get_by_text("rejected", exact=True).hover()
    meaning = page.get_by_test_id("legend").locator(".definition:visible").bounding_box()
    stage = page.get_by_test_id("stage").bounding_box()
    assert meaning["y"] >= 0 and meaning["y"] + meaning["height"] <= stage["y"], "its tokens are in view"
    page.get_by_role("button", name="Instruments").click()
    open_settings(page)
    page.set_viewport_size({"width": 1100, "height": 800})
    end = page.locator("#settings").bounding_box()["x"]
    tabs = page.get_by_role("tab").evaluate_all("all => all.map((e) => e.getBoundingClientRect().right)")
    assert len(tabs) == 12 and max(tabs) < end
