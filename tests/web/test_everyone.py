"""For everyone: both themes, narrow screens, fingers, and readers who ask for no motion."""

import pytest

from tests.web.screen import NOT_IN_TEXT, inspector, open_trace, run, tokens, unfold, wait_for_state

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
    inspector(page).locator("summary").click()
    page.locator('.stage [data-fate="resampled"] > b').first.click()
    read = page.evaluate(CONTRASTS)
    assert {fate for *_, fate in read if fate} == {*FATES} and len(read) > 150
    assert [text for text in read if text[0] < 4.5] == []


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
            ".filter((e) => e.checkVisibility() && !e.closest('.rail, math'))"
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
