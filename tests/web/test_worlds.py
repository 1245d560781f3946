"""Two worlds in a real browser: recorded stops, the visitor's own prompt, by keyboard and in a lecture.
tests/toy/test_mixed_drafter.py has what is drawn, tests/js/worlds.test.js the figures."""

from urllib.parse import parse_qs

from specdemo.words.catalogue import say
from tests.web.screen import set_field

STOPS = 9
SHOWN = """panel => ({
  red: panel.querySelector(".red dd").textContent,
  tokens: panel.querySelector(".tokens dd").textContent,
  rejected: panel.querySelectorAll('.stage [data-fate="rejected"]').length,
  text: [...panel.querySelectorAll(".stage [data-fate]")].filter(({ dataset: { fate } }) =>
    !["rejected", "discarded"].includes(fate)).map((token) => token.textContent).join(""),
  greedy: panel.querySelector(".greedy").textContent,
  marks: [...panel.querySelectorAll("tbody .bars")].map((bars) => bars.style.getPropertyValue("--due")),
  bars: [...panel.querySelectorAll("tbody .bars")].map((bars) => bars.style.getPropertyValue("--came")),
  top: panel.querySelector(".greedy").getBoundingClientRect().top,
})"""


def at_each_stop(page):
    """What each stop shows, by the keyboard from noise on."""
    panel, slider = page.get_by_test_id("worlds"), page.get_by_role("slider", name="What drafts")
    slider.focus()
    page.keyboard.press("Home")
    found = []
    for stop in range(STOPS):
        assert parse_qs(page.evaluate("location.search.slice(1)"))["worlds"] == [str(stop)]
        found.append(panel.evaluate(SHOWN))
        page.keyboard.press("ArrowRight")
    return found


def moves_and_stays(found):
    red = [int(one["red"].removesuffix("%")) for one in found]
    assert red[0] > 90 and red[-1] == 0 and red[0] > red[4] > red[-1], red
    assert found[0]["rejected"] > found[4]["rejected"] > found[-1]["rejected"] == 0
    tokens = [float(one["tokens"]) for one in found]
    assert tokens[0] < tokens[4] < tokens[-1]
    assert len({one["text"] for one in found}) > 3 and len({one["greedy"] for one in found}) == 1
    assert found[0]["greedy"].strip() and len({one["top"] for one in found}) == 1, "nothing moves it"


def test_recorded_stops_are_there_at_once_by_link_by_keyboard_and_in_a_lecture(visit, bare):
    page = visit(f"{bare}/?worlds=2")
    panel = page.get_by_test_id("worlds")
    panel.locator("tbody tr").first.wait_for()
    slider = page.get_by_role("slider", name="What drafts")
    assert slider.get_attribute("aria-valuetext") == "50% noise, 50% drafter"
    assert panel.get_by_text("Recorded on").is_visible()
    found = at_each_stop(page)
    moves_and_stays(found)
    assert len({tuple(one["marks"]) for one in found}) == 1 < len({tuple(one["bars"]) for one in found})
    for one in found:
        differ = [abs(float(bar) - float(due)) for bar, due in zip(one["bars"], one["marks"], strict=True)]
        assert max(differ) < 0.15, "bars end near their marks"
    page.get_by_role("button", name="Lecture").click()
    page.keyboard.press("PageUp")
    words = panel.inner_text()
    assert say("worlds.costs") in words and " ×" not in words, "no speed-up is claimed"
    assert slider.get_attribute("aria-valuetext") == "25% drafter, 75% target" and panel.is_visible()
    assert panel.locator(".stage b").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 26
    page.keyboard.press("l")
    page.get_by_role("tab", name="Text", exact=True).click()
    assert "worlds" not in page.url


def test_the_visitors_own_prompt_runs_at_every_stop_first_at_the_one_that_is_shown(visit, url):
    page = visit(f"{url}/?worlds=6", still=True)
    set_field(page, "Prompt", "Tom and Lily")
    set_field(page, "Max new tokens", 30)
    panel = page.get_by_test_id("worlds")
    panel.get_by_role("button", name="Run my prompt").click()
    panel.locator(".same", has_text="at each stop so far").wait_for()
    page.wait_for_function(
        "document.querySelector('[data-testid=worlds] .of-tiny').textContent.includes('50 of')"
    )
    panel.get_by_role("button", name="Stop", exact=True).click()
    panel.get_by_text("“Tom and Lily”").wait_for()
    moves_and_stays(at_each_stop(page))
