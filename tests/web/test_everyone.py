"""For everyone: both themes, narrow screens, fingers, and readers who ask for no motion."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from specdemo.ui.page.frame import scripts_path
from specdemo.ui.view.words import say
from tests.web.screen import (
    NOT_IN_TEXT,
    close_settings,
    inspector,
    open_examples,
    open_trace,
    run,
    set_field,
    tokens,
    unfold,
    wait_for_state,
)

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
FATES = ("prompt", "accepted", "rejected", "discarded", "resampled", "bonus", "sampled")

# Every text that is seen, with its colour's contrast to what it stands on.
CONTRASTS = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: colour.startsWith("color(srgb") ? [r, g, b].map((x) => 255 * x) : [r, g, b], a };
  };
  const over = (top, below) => top.rgb.map((x, i) => top.a * x + (1 - top.a) * below[i]);
  const ground = (e) => {
    if (!e) return [255, 255, 255];
    const top = parse(getComputedStyle(e).backgroundColor);
    return top.a === 1 ? top.rgb : over(top, ground(e.parentElement));
  };
  const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => rgb.map((x) => linear(x / 255))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const opacity = (e) => (e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1);
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const { data, parentElement: e } = texts.currentNode;
    if (!data.trim() || !e.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (e.closest("math, option, :disabled")) continue;
    const below = ground(e), ink = parse(getComputedStyle(e).color);
    const seen = over({ rgb: ink.rgb, a: ink.a * opacity(e) }, below);
    const lights = [light(seen), light(below)].sort((a, b) => a - b);
    const [name, fate] = [`${e.tagName}.${e.className}`, e.closest("[data-fate]")?.dataset.fate];
    found.push([(lights[1] + 0.05) / (lights[0] + 0.05), data.trim().slice(0, 40), name, fate]);
  }
  return found;
}"""
COLOURS = "e => ['color', 'backgroundColor', 'borderBottomColor'].map(name => getComputedStyle(e)[name])"
# What of a token's looks is not colour.
CUES = """e => {
  const style = getComputedStyle(e);
  return ["fontWeight", "textDecorationLine", "borderBottomStyle", "borderBottomWidth", "outlineStyle"]
    .map((name) => style[name]);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_fate_is_told_by_more_than_its_colour_and_every_text_can_be_read(visit, bare, every_fate, theme):
    page = visit(f"{bare}/?__theme={theme}", still=True)
    assert page.evaluate("Boolean(document.querySelector('.dark'))") == (theme == "dark")
    open_trace(page, every_fate[0])
    page.get_by_role("button", name="discarded").click()
    assert {token["fate"] for token in tokens(page)} == {*FATES}
    words = {
        fate: page.locator(f'.stage [data-fate="{fate}"] > b:not(.space):not(.none)').first for fate in FATES
    }
    cues = {fate: tuple(word.evaluate(CUES)) for fate, word in words.items()}
    assert len(set(cues.values())) == len(FATES), cues
    colours = [tuple(word.evaluate(COLOURS)) for word in words.values()]
    assert len(set(colours)) == len(FATES), colours
    assert all("line-through" in cues[fate] for fate in NOT_IN_TEXT), "what is not in the text is struck out"
    samples = page.get_by_test_id("legend").locator(".token")
    assert {sample.text_content(): tuple(sample.evaluate(CUES)) for sample in samples.all()} == {
        fate: looks for fate, looks in cues.items() if fate != "prompt"
    }

    unfold(page, "Chat", "Ending", "Weights")
    page.locator('.stage [data-fate="resampled"] > b').first.click()
    read = page.evaluate(CONTRASTS)
    assert {fate for *_, fate in read if fate} == {*FATES} and len(read) > 150
    inspector(page).locator("summary").click()
    read += page.evaluate(CONTRASTS)
    assert [text for text in read if text[0] < 4.5] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width, height", [(1280, 800), (390, 844)])
def test_axe_finds_nothing_wrong(visit, url, theme, width, height):
    """At first sight, with each thing open that opens, after a run, in each view, and in a hall."""
    page = visit(f"{url}/?__theme={theme}", still=True, first=True)
    page.set_viewport_size({"width": width, "height": height})
    wait_for_state(page, "recorded")

    def check(what: str) -> None:
        page.wait_for_function("document.getAnimations().every(({ playState }) => playState !== 'running')")
        found = Axe().run(page)
        assert not found.violations_count, f"{what}: {found.generate_report()}"

    check("first sight")
    open_examples(page)
    check("examples")
    page.keyboard.press("Escape")
    set_field(page, "Max new tokens", 24)
    close_settings(page)
    run(page)
    check("after a run")
    unfold(page, "Chat", "Ending", "Weights")
    page.get_by_role("combobox", name="Pair").click()
    check("settings with an open drop-down")
    page.keyboard.press("Escape")
    close_settings(page)
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    check("a pinned token")
    page.keyboard.press("Escape")
    page.locator(".all-numbers summary").click()
    check("all numbers")
    page.keyboard.press("Escape")
    for tab in page.get_by_role("tab").all():
        tab.click()
        check(tab.text_content())
    page.get_by_role("tab", name="Text").click()
    page.get_by_role("button", name="Lecture").click()
    check("a lecture")


def test_without_motion_the_recorded_run_is_there_at_once(visit, bare):
    page = visit(bare, still=True)
    states = page.evaluate(
        "[document.querySelector('.run').dataset.state,"
        " document.querySelectorAll('.stage [data-round]').length]"
    )
    assert states[0] == "recorded" and states[1] > 100
    moving = page.locator(".run").evaluate(
        "run => [...run.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e);"
        " return s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0; }).length"
    )
    assert moving == 0


def test_with_motion_the_recorded_run_plays_by_itself(visit, bare):
    page = visit(bare)
    wait_for_state(page, "running")
    for _ in range(2):
        count = page.locator(".stage [data-round]").count()
        page.wait_for_function(
            "count => document.querySelectorAll('.stage [data-round]').length > count", arg=count
        )
        wait_for_state(page, "running")
    page.get_by_role("button", name="Skip").click()
    wait_for_state(page, "recorded")


def test_a_phone_shows_a_tapped_token_and_its_reason_together(visit, browser, bare):
    page = visit(bare, still=True, context=browser.new_context(**PHONE))
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
        assert (
            min(seen["x"], seen["y"]) >= 0
            and seen["x"] + seen["width"] <= 390
            and seen["y"] + seen["height"] <= 844
        )
    sheet = inspector(page).bounding_box()
    assert token.bounding_box()["y"] + token.bounding_box()["height"] <= sheet["y"], (
        "the sheet does not lie over the token"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    pinned.tap()
    pinned.wait_for(state="hidden")


def test_nothing_is_wider_than_the_screen(visit, url):
    page = visit(url, still=True)
    run(page, "W" * 300, max_new_tokens=10)
    unfold(page, "Chat", "Ending", "Weights")
    page.locator(".stage [data-round]").first.click()
    for width in (1280, 800, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.locator("main").evaluate(
            "(main, width) => [...main.querySelectorAll('*')]"
            ".filter((e) => e.checkVisibility() && !e.closest('.rail, .tabs, math'))"
            ".filter((e) => e.getBoundingClientRect().right > width + 1)"
            ".map((e) => e.outerHTML.slice(0, 80))",
            width,
        )
        assert wide == [], width


def test_everything_has_a_name_for_screen_readers(visit, bare):
    page = visit(bare)
    unfold(page, "Chat", "Ending", "Weights")
    nameless = page.locator("main").evaluate(
        "main => [...main.querySelectorAll('button, input, textarea, select, [tabindex]')]"
        ".concat([...main.querySelectorAll('[role=button], [role=region], [role=group]')])"
        ".filter((e) => e.checkVisibility() && !e.getAttribute('aria-label') && !e.labels?.length)"
        ".filter((e) => !e.textContent.trim() && !e.title).map((e) => e.outerHTML.slice(0, 120))"
    )
    assert nameless == []
    assert page.locator("html").get_attribute("lang")
    assert page.get_by_test_id("notice").get_attribute("role") == "status"


def test_each_token_has_a_name_with_its_fate(visit, bare, every_fate):
    page = visit(bare, still=True)
    open_trace(page, every_fate[0])
    page.get_by_role("button", name="discarded").click()
    stage = page.get_by_role("listbox", name="Text, token by token")
    fates = [token["fate"] for token in tokens(page)]
    assert stage.get_by_role("option").count() == len(fates) and {*fates} == {*FATES}
    for fate in FATES:
        where = "" if fate == "prompt" else r" in round \d+"
        assert stage.get_by_role("option", name=re.compile(rf", {fate}{where}$")).count() == fates.count(fate)


def test_a_name_follows_what_becomes_of_its_token(visit, bare):
    """A drafted token waits for its verdict, and the character of incomplete bytes appears later."""
    names = visit(bare, still=True).evaluate(
        """async (scripts) => {
          const { makeText } = await import(new URL(`${scripts}/view/text.js`, document.baseURI));
          const stage = document.createElement("div");
          stage.setAttribute("role", "listbox");
          const text = makeText(stage);
          const round = { index: 2, draft: [], ended_by: null };
          const token = { id: 5, text: "", fate: "accepted", round, top: [[5, "\ufffd", 1, 1, 1, 1]] };
          text.add([token]);
          const names = [];
          const read = () => names.push(stage.querySelector("[role=option]").getAttribute("aria-label"));
          text.setShown(token, "open");
          read();
          text.setShown(token, "judged");
          read();
          token.text = "é";
          text.rewrite(token);
          read();
          return names;
        }""",
        scripts_path(),
    )
    assert names == [
        "part of a character, pending in round 3",
        "part of a character, accepted in round 3",
        "é, accepted in round 3",
    ]


def test_the_system_s_colours_leave_each_fate_its_lines(visit, bare, every_fate):
    page = visit(bare, still=True)
    page.emulate_media(forced_colors="active", reduced_motion="reduce")
    open_trace(page, every_fate[0])
    page.get_by_role("button", name="discarded").click()
    words = {
        fate: page.locator(f'.stage [data-fate="{fate}"] > b:not(.space):not(.none)').first for fate in FATES
    }
    looks = {fate: tuple(word.evaluate(CUES)) for fate, word in words.items()}
    assert len(set(looks.values())) == len(FATES), looks
    lines = "e => ['borderTopStyle', 'outlineStyle'].map((side) => getComputedStyle(e)[side])"
    words["accepted"].click()
    page.mouse.move(5, 5)
    assert words["accepted"].evaluate(lines) == ["solid", "solid"], "lit and pinned"
    page.keyboard.press("Escape")
    page.get_by_test_id("legend").get_by_text("bonus", exact=True).hover()
    assert words["bonus"].evaluate(lines)[1] == "dashed"


def test_what_a_finger_presses_is_high_enough(visit, browser, bare):
    page = visit(bare, still=True, context=browser.new_context(**PHONE))
    page.locator('.stage [data-fate="rejected"]:visible > b').first.tap()
    heights = page.locator("main").evaluate(
        "main => [...main.querySelectorAll('button, select, summary, .legend .entry')]"
        ".filter((e) => e.checkVisibility()).map((e) => [e.getBoundingClientRect().height, e.textContent])"
    )
    assert len(heights) > 20 and [one for one in heights if one[0] < 44] == []
    words = page.locator(".stage [data-token]:visible").evaluate_all(
        "all => all.map((e) => Math.max(...[...e.getClientRects()].map((box) => box.height)))"
    )
    assert min(words) >= 24


def test_a_tap_on_the_legend_tells_what_a_fate_means(visit, browser, bare):
    page = visit(bare, still=True, context=browser.new_context(**PHONE))
    page.get_by_test_id("legend").get_by_text("bonus", exact=True).tap()
    meaning = page.get_by_test_id("legend").locator(".definition:visible")
    assert meaning.text_content() == say("run.fates.bonus.definition")
    box = meaning.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
