"""The guided path in a real browser: by mouse, keyboard and touch, by link, on a wide and on a narrow screen.
tests/js/guide.test.js tests which words and tokens its steps have."""

from urllib.parse import parse_qs, urlsplit

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.view.kept import recorded_trace
from specdemo.words.catalogue import say, speaking
from tests.web.conftest import RECORDED
from tests.web.screen import (
    PHONE,
    close_settings,
    generate,
    inspector,
    on_stage,
    recorded,
    run,
    wait_for_state,
)

NAMES = ("slow", "check", "coin", "replacement", "bonus", "pays", "costs", "worlds", "exact")
FATES = {"coin": "accepted", "replacement": "resampled", "bonus": "bonus"}
# Of the light, the card and what is lit: what it is about, whether it shows it, and where the card is.
SEEN = """async selector => {
  for (const _ of "ab") await new Promise(requestAnimationFrame);  // the light follows in the next frame
  const box = (element) => { const { left, top, right, bottom } = element.getBoundingClientRect();
    return [left, top, right, bottom].map(Math.round); };
  const [light, card] = [document.querySelector(".tour-light"), document.querySelector(".tour")];
  const lit = document.querySelector(selector);
  return { light: box(light), card: box(card), lit: box(lit), hidden: light.hidden, width: innerWidth,
    height: innerHeight };
}"""
LIT = {
    "worlds": ".both", "slow": ".stage", "check": ".timeline", "coin": ".inspector",
    "replacement": ".inspector", "bonus": ".inspector", "pays": ".outcome",
    "costs": ".outcome", "exact": ".tabs [data-tab=figure]",
}  # fmt: skip
HELD = """() => [...document.querySelectorAll("#settings input, #settings textarea, #prompt textarea")]
  .map((box) => box.type === "checkbox" || box.type === "radio" ? box.checked : box.value)"""


def card(page):
    return page.get_by_role("dialog", name=say("tour.name"))


def press(page, name: str) -> None:
    card(page).get_by_role("button", name=say(f"tour.{name}"), exact=True).click()


def shows(page, name: str) -> None:
    page.locator(f'.tour:not([hidden])[data-step="{name}"]').wait_for()
    assert card(page).get_by_role("heading").inner_text() == say(f"tour.{name}.title")
    assert parse_qs(urlsplit(page.url).query)["tour"] == [str(NAMES.index(name) + 1)]


def is_lit(page, name: str) -> None:
    """What is lit is on the screen, and the card hides at most what is too high to be seen with it."""
    seen = page.evaluate(SEEN, LIT[name])
    light, lit, over = seen["light"], seen["lit"], seen["card"]
    around = [lit[0] - 8, lit[1] - 8, lit[2] + 8, lit[3] + 8]
    assert not seen["hidden"] and light == pytest.approx(around, abs=1), seen
    assert 0 <= lit[1] < seen["height"] and lit[0] >= 0 and lit[2] <= seen["width"] + 1
    if seen["width"] > 800:
        apart = over[2] <= lit[0] or over[0] >= lit[2] or over[1] >= lit[3] or over[3] <= lit[1]
        assert apart, seen
    else:
        assert over[0] == 0 and over[3] == seen["height"] and lit[1] + 60 < over[1], seen
        assert lit[3] <= over[1] or lit[1] <= 20, (
            seen
        )  # above the card, or as much of it as there is room for


def check(page, name: str) -> None:
    shows(page, name)
    if name == "worlds":
        page.locator("[data-testid=worlds] tbody tr").first.wait_for()  # it grows when its stops have come
    is_lit(page, name)
    if fate := FATES.get(name):
        pinned = page.locator(".stage .pinned")
        assert pinned.count() == 1 and pinned.get_attribute("data-fate") == fate
        assert inspector(page).locator(".what").inner_text().find(say(f"run.fates.{fate}.word")) >= 0
    else:
        assert page.locator(".stage .pinned").count() == 0


def ended(page) -> None:
    page.locator(".tour").wait_for(state="hidden")
    assert not page.locator(".tour-light").is_visible() and "tour" not in page.url
    assert page.evaluate("document.documentElement.classList.contains('touring')") is False


@pytest.fixture(scope="module")
def page(visit_for_all, bare):
    """As a newcomer sees it."""
    page = visit_for_all(bare, still=True, first=True)
    wait_for_state(page, "recorded")
    return page


def test_by_mouse_through_all_steps_and_back_to_what_was_there(page):
    assert not card(page).is_visible() and "tour" not in page.url, "it never starts by itself"
    page.locator(".stage [data-round]").nth(8).locator("b").click()
    before, held = page.locator(".stage .pinned").inner_text(), page.evaluate(HELD)
    url = page.url
    assert "token=" in url
    page.get_by_role("button", name=say("tour.button")).click()
    for name in NAMES:
        check(page, name)
        wanted = recorded_trace("poor") if name == "costs" else Trace.load(RECORDED)
        assert on_stage(page) == recorded(wanted)
        press(page, "done" if name == "exact" else "next")
    ended(page)
    assert page.locator(".stage .pinned").inner_text() == before and page.evaluate(HELD) == held
    assert page.url == url and on_stage(page) == recorded(Trace.load(RECORDED))


def test_by_keyboard_and_for_screen_readers(page):
    button = page.get_by_role("button", name=say("tour.button"))
    button.focus()
    page.keyboard.press("Enter")
    shows(page, "slow")
    assert card(page).evaluate("e => e === document.activeElement")
    assert not card(page).get_attribute("aria-modal")
    page.keyboard.press("ArrowLeft")
    shows(page, "slow")  # there is none before the first
    for _ in range(len(NAMES)):
        page.keyboard.press("ArrowRight")
    check(page, "exact")  # the arrow does not end it
    page.keyboard.press("Escape")
    ended(page)
    assert button.evaluate("e => e === document.activeElement")


def test_a_link_begins_at_its_step_and_a_token_of_the_reader_can_be_read_meanwhile(visit, bare):
    page = visit(f"{bare}/?tour=3&run=1&seed=x", still=True)
    page.get_by_text("Seed must be").first.wait_for()  # the run is refused, the tour begins all the same
    check(page, "coin")
    page.wait_for_load_state("networkidle")  # a reload would cut what is being answered
    page.reload()
    check(page, "coin")
    page.locator(".stage [data-round]").nth(3).locator("b").click()
    first = page.locator(".stage .pinned").inner_text()
    page.keyboard.press("ArrowRight")  # moves along the text, where the focus is
    assert page.locator(".stage .pinned").inner_text() != first
    shows(page, "coin")
    press(page, "end")
    ended(page)


def test_by_link_and_touch_on_a_phone_in_the_language_with_the_longest_words(visit, browser, bare):
    with speaking("de"):
        page = visit(f"{bare}/?lang=de&tour=1", still=True, context=browser.new_context(**PHONE), first=True)
        for name in NAMES:
            check(page, name)
            sizes = [button.bounding_box() for button in card(page).get_by_role("button").all()]
            assert all(box["height"] >= 44 and box["width"] >= 44 for box in sizes)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if name != "exact":
                card(page).get_by_role("button", name=say("tour.next"), exact=True).tap()
        card(page).get_by_role("button", name=say("page.tabs.figure")).tap()
        ended(page)
    assert page.get_by_test_id("figure").is_visible()


def test_a_run_of_the_visitor_comes_back_and_another_one_ends_the_tour(visit, url):
    page = visit(url, still=True)
    run(page, "Once upon a time", seed=3, max_new_tokens=5, draft_length_γ=1)
    close_settings(page)
    before, held, address = on_stage(page), page.evaluate(HELD), page.url
    page.get_by_role("button", name=say("tour.button")).click()
    for _ in NAMES[1:]:
        press(page, "next")
    press(page, "done")
    ended(page)
    assert on_stage(page) == before and page.evaluate(HELD) == held and page.url == address
    page.get_by_role("button", name=say("tour.button")).click()
    generate(page, "Tom", max_new_tokens=6)
    ended(page)
    page.locator(".stage [data-fate=prompt]").get_by_text("Tom").wait_for()
    page.wait_for_url(lambda url: "prompt=Tom" in url and "tour" not in url)
