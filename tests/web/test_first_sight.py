"""What a newcomer sees at first, and what the page says when its server has gone."""

import pytest

from tests.web.conftest import PATIENCE, address_of, start
from tests.web.screen import generate, notice, run, tokens, wait_for_state

pytestmark = pytest.mark.slow

# What is seen without scrolling: words outside of the text, the sizes of all type, and controls. Of things
# that arrow keys move in, as in the timeline, the one that Tab comes to counts.
SEEN = """() => {
  const inView = ({ width, height, top, bottom, left, right }) =>
    width > 1 && height > 1 && bottom > 0 && top < innerHeight && right > 0 && left < innerWidth;
  const shown = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && inView(e.getBoundingClientRect());
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let words = 0;
  const sizes = new Set();
  while (texts.nextNode()) {
    const { data, parentElement: e } = texts.currentNode;
    const counted = data.trim().split(/\\s+/).filter((word) => /[\\p{L}\\p{N}]/u.test(word)).length;
    if (!counted || e.closest("script, style, .sr-only") || !shown(e)) continue;
    sizes.add(getComputedStyle(e).fontSize);
    if (!e.closest(".stage")) words += counted;
  }
  words += document.querySelector("#prompt textarea").value.split(/\\s+/).length;
  const controls = [...document.querySelectorAll("button, input, textarea, select, summary, [tabindex='0']")]
    .filter((e) => shown(e) && e.tabIndex >= 0 && !e.closest(".stage"));
  const stage = document.querySelector(".stage").getBoundingClientRect();
  return { words, sizes: [...sizes], controls: controls.map((e) => e.textContent.trim().slice(0, 20)),
    top: stage.top, tokens: [...document.querySelectorAll(".stage [data-round]")].filter(shown).length };
}"""


@pytest.mark.parametrize("width, height", [(1920, 1080), (1280, 800), (390, 844)])
def test_the_first_sight_is_the_text_and_little_else(visit, bare, width, height, capsys):
    page = visit(bare, still=True, first=True)
    page.set_viewport_size({"width": width, "height": height})
    wait_for_state(page, "recorded")
    page.wait_for_function("getComputedStyle(document.querySelector('#end')).opacity === '0'")  # it fades
    seen = page.evaluate(SEEN)
    with capsys.disabled():
        print(
            f"\n{width} x {height}: {seen['words']} words, {len(seen['controls'])} controls, {seen['sizes']}"
        )
    assert seen["words"] <= 120 and len(seen["controls"]) <= 12 and len(seen["sizes"]) <= 5, seen
    assert seen["tokens"] > 20 and page.locator('[data-number="speedup"]').is_visible()
    assert seen["top"] < height / (3 if width > 800 else 2)


def test_the_instruments_come_when_they_are_asked_for(visit, bare):
    page = visit(bare, still=True, first=True)
    wait_for_state(page, "recorded")
    assert not page.get_by_role("tab").first.is_visible()
    page.get_by_role("button", name="Instruments").focus()
    page.keyboard.press("Enter")
    tab = page.get_by_role("tab", name="Text")
    assert tab.is_visible() and tab.evaluate("e => e === document.activeElement")
    assert page.get_by_role("button", name="Lecture").is_visible()


def test_when_the_server_has_gone_the_page_says_so_and_keeps_the_run(browser):
    app = start()
    page = browser.new_page()
    try:
        page.set_default_timeout(PATIENCE)
        page.emulate_media(reduced_motion="reduce")
        page.goto(address_of(app))
        page.locator('.run:not([data-state="empty"])').wait_for()
        run(page, "Once", max_new_tokens=12, seed=1)
        before = tokens(page)
        app.kill()
        app.wait()
        generate(page)
        assert notice(page, "error") == "The server has gone. Your run is kept."
        assert tokens(page) == before and page.get_by_role("button", name="Stop").is_disabled()
        page.get_by_role("button", name="One round back").click()
        assert 0 < len(tokens(page)) < len(before)
    finally:
        page.close()
        app.kill()
