"""The tab "Why it is exact" in a real browser: by mouse, by keyboard and by touch. tests/js/lesson.test.js
tests what it computes, and tests/toy/test_lesson_rules.py holds that against the engine."""

import re

import pytest

from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED
from tests.web.screen import PHONE, fates, wait_for_state

P = [0.42, 0.22, 0.14, 0.1, 0.08, 0.04]
Q = [0.2, 0.38, 0.08, 0.22, 0.04, 0.08]
WRONG = ["replace from p", "tell another q", "judge greedy drafts by soft probabilities", "accept when p > q"]
HEIGHTS = """columns => columns.map((column) => {
  const share = (part) => part.getBoundingClientRect().height / column.getBoundingClientRect().height;
  return Object.fromEntries([...column.querySelectorAll("i")].map((part) => [part.className, share(part)]));
})"""


@pytest.fixture(scope="module")
def panel(visit_for_all, bare):
    """The panel over the recorded run; nothing in it asks a server."""
    return shown(visit_for_all(bare, still=True))


@pytest.fixture
def figure(panel):
    press(panel, "Start again")
    return panel


def shown(page):
    wait_for_state(page, "recorded")
    page.get_by_role("tab", name="Why it is exact").click()
    panel = page.get_by_test_id("figure")
    panel.wait_for()
    return panel


def bars(panel, which: str) -> list:
    return panel.get_by_role("slider", name=re.compile(f"^{which} of ")).all()


def values(panel, which: str) -> list[float]:
    """The bars' own, before the sampler."""
    return [float(bar.get_attribute("aria-valuenow")) for bar in bars(panel, which)]


def numbers(panel, table: str) -> dict[str, list[float]]:
    """The rows that are shown under a chart, by their heads."""
    rows = panel.get_by_role("table", name=table).locator("tbody tr:not([hidden])").all()
    cells = {row.locator("th").text_content(): row.locator("td").all_text_contents() for row in rows}
    return {head: [float(cell.replace("−", "-")) for cell in row] for head, row in cells.items()}


def near(expected, within: float = 0.002):
    return pytest.approx(expected, abs=within)


def pulled(before: list[float], at: int, value: float) -> list[float]:
    rest = (1 - value) / (1 - before[at])
    return [value if index == at else one * rest for index, one in enumerate(before)]


def centre(element) -> tuple[float, float]:
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drawn(panel) -> str:
    """Draws 10,000, and what is said of them."""
    press(panel, "Draw 10,000")
    said = panel.locator(".found").filter(has_text="drafts (seed")
    said.wait_for()
    return said.text_content()


def press(panel, name: str) -> None:
    panel.get_by_role("button", name=name, exact=True).click()


def test_the_two_parts_make_p_in_numbers_and_on_the_screen(figure):
    assert values(figure, "p") == near(P) and values(figure, "q") == near(Q)
    kept = [min(pair) for pair in zip(P, Q, strict=True)]
    missing = [one - least for one, least in zip(P, kept, strict=True)]
    written = numbers(figure, "What p is made of")
    assert [near(one) for one in (kept, missing, P)] == list(written.values())
    heights = figure.locator(".parts .column").evaluate_all(HEIGHTS)
    assert [one["kept"] for one in heights] == near([2 * one for one in kept], 0.01)
    assert [one["added"] for one in heights] == near([2 * one for one in missing], 0.01)


def test_a_bar_is_dragged_by_the_mouse(figure):
    bar = bars(figure, "q")[0]
    bar.scroll_into_view_if_needed()
    x, y = centre(bar)
    plot = figure.locator(".pull .plot").bounding_box()["height"]
    mouse = figure.page.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x, y - 2 * plot, steps=4)  # and too far up
    assert values(figure, "q")[0] == 1
    mouse.move(x + 30, y - 0.4 * plot, steps=4)  # by 0.2, as the scale ends at 0.5
    mouse.up()
    assert values(figure, "q") == near(pulled(Q, 0, 0.4), 0.01), "the others come back from 0"
    assert values(figure, "p") == near(P)
    rate = sum(min(pair) for pair in zip(P, values(figure, "q"), strict=True))
    assert figure.locator(".rate").text_content().endswith(f"{rate:.3f}")


def test_a_bar_is_moved_by_keys(figure):
    bar = bars(figure, "p")[1]
    assert bar.get_attribute("aria-label") == 'p of "a"'
    for key, value in (("ArrowUp", 0.23), ("ArrowLeft", 0.22), ("PageUp", 0.32), ("Home", 0), ("End", 1)):
        bar.press(key)
        assert values(figure, "p")[1] == near(value) and sum(values(figure, "p")) == near(1, 0.004)
    other = bars(figure, "q")[5]
    other.press("Home")
    button = figure.get_by_role("button", name="all", exact=True)
    handle, below = other.bounding_box(), button.bounding_box()
    assert handle["y"] + handle["height"] <= below["y"] + 1, "a bar at 0 leaves its token to be pressed"
    button.click()
    assert not figure.get_by_role("slider", name="u, which decides").is_visible(), "it is never proposed"
    press(figure, "Start again")
    assert values(figure, "p") == near(P)


def test_bars_and_u_are_dragged_by_a_finger(browser, visit, bare):
    context = browser.new_context(**PHONE)
    page = visit(bare, still=True, context=context)
    panel = shown(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    bar = bars(panel, "p")[2]
    bar.scroll_into_view_if_needed()
    plot = panel.locator(".pull .plot").bounding_box()["height"]
    before = page.evaluate("scrollY")
    swipe(page, *centre(bar), 0, -0.4 * plot)
    assert values(panel, "p") == near(pulled(P, 2, 0.34), 0.02)
    assert page.evaluate("scrollY") == before
    handle = panel.get_by_role("slider", name="u, which decides")
    handle.scroll_into_view_if_needed()
    strip = panel.locator(".verdicts").bounding_box()["width"]
    swipe(page, *centre(handle), -0.6 * strip, 0)
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(0.2, abs=0.02)
    context.close()


def swipe(page, x: float, y: float, dx: float, dy: float) -> None:
    session = page.context.new_cdp_session(page)
    for part in (0, 0.25, 0.5, 0.75, 1):
        point = {"x": x + part * dx, "y": y + part * dy}
        touch = {"type": "touchMove" if part else "touchStart", "touchPoints": [point]}
        session.send("Input.dispatchTouchEvent", touch)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()


def test_each_mistake_is_explained_and_found_and_a_greedy_one_goes_with_greedy(figure):
    answer = figure.locator(".answer")
    for name in WRONG:
        switch = figure.get_by_role("button", name=name, exact=True)
        switch.click()
        assert switch.get_attribute("aria-pressed") == "true" and figure.locator(".whys").text_content()
        assert "wrong tokens" in answer.text_content() and "this is not p" in drawn(figure)
        if name == WRONG[2]:
            assert figure.get_by_label("temperature").input_value() == "0"
            figure.get_by_label("temperature").fill("0.8")
            assert switch.get_attribute("aria-pressed") == "false", "it is a mistake of greedy decoding"
            figure.get_by_label("temperature").fill("1")
        else:
            switch.click()
        assert "exactly the target's p" in answer.text_content()
    assert "show no difference from p beyond chance" in drawn(figure)


def take_pinned(panel, trace: Trace, *wanted: str):
    """Takes p and q from the trace's first token of such a fate; gives the token."""
    page = panel.page
    tokens = [found for one in trace.rounds for found in fates(one)]
    at, token = next((at, token) for at, (fate, token) in enumerate(tokens) if fate in wanted)
    page.get_by_role("tab", name="Text").click()
    page.keyboard.press("Escape")
    page.locator(".stage [data-round]").nth(at).locator("b").click()
    shown(page)
    press(panel, "Take them from the pinned token")
    return token


def test_p_and_q_are_taken_from_the_pinned_token(figure):
    trace = Trace.load(RECORDED)
    token = take_pinned(figure, trace, "rejected")
    written = numbers(figure, "p and q of each token")
    _, _, p, q, *_ = max(token.top, key=lambda row: row[2])
    assert written["p"][0] == near(p) and written["q"][0] == near(q)
    u = figure.get_by_role("slider", name="u, which decides")
    assert float(u.get_attribute("aria-valuenow")) == near(token.u)
    replaced = next(one.next for one in trace.rounds if token in one.draft)
    said = figure.locator(".outcome-of-one b").text_content()
    assert token.text in said and "is rejected" in said and replaced.text in said
