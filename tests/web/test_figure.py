"""The tab "Why it is exact" in a real browser: by mouse, by keyboard and by touch. tests/js/lesson.test.js
tests what it computes, and tests/toy/test_lesson_rules.py holds that against the engine."""

import re
from dataclasses import replace

import pytest

from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED
from tests.web.screen import fates, open_trace, wait_for_state

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
P = [0.42, 0.22, 0.14, 0.1, 0.08, 0.04]
Q = [0.2, 0.38, 0.08, 0.22, 0.04, 0.08]
WRONG = ["replace from p", "tell another q", "judge greedy drafts by soft probabilities", "accept when p > q"]
CHANCE = "p-value (a difference counts below 10⁻⁶)"
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


def draw(panel) -> tuple[float | None, str]:
    """Draws 10,000; the p-value, if there is a test, and what is said."""
    panel.get_by_role("button", name="Draw 10,000").click()
    said = panel.locator(".found").filter(has_text="drafts (seed")
    said.wait_for()
    written = panel.locator(".chance").text_content()
    digits = written.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    if digits == "–":
        return None, said.text_content()
    return float(digits.removeprefix("< ").replace(" × 10", "e").replace("10-", "1e-")), said.text_content()


def press(panel, name: str) -> None:
    panel.get_by_role("button", name=name, exact=True).click()


def test_the_two_parts_make_p_in_numbers_and_on_the_screen(figure):
    assert values(figure, "p") == near(P) and values(figure, "q") == near(Q)
    kept = [min(pair) for pair in zip(P, Q, strict=True)]
    missing = [one - least for one, least in zip(P, kept, strict=True)]
    written = numbers(figure, "What p is made of")
    assert list(written) == ["min(p, q)", "+ (p − q)₊", "= p"]
    assert [near(one) for one in (kept, missing, P)] == list(written.values())
    heights = figure.locator(".parts .column").evaluate_all(HEIGHTS)
    assert [one["kept"] for one in heights] == near([2 * one for one in kept], 0.01)
    assert [one["added"] for one in heights] == near([2 * one for one in missing], 0.01)
    assert figure.get_by_role("img", name="acceptance rate 0.680, rejected 0.320").is_visible()
    assert "exactly the target's p" in figure.locator(".answer").text_content()


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
    mouse.move(x, y - 0.1 * plot)
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
    assert bar.get_attribute("aria-valuetext") == "1.000"
    bar.press("PageDown")
    assert values(figure, "p") == near([0.02, 0.9, 0.02, 0.02, 0.02, 0.02])
    other = bars(figure, "q")[5]
    other.press("Home")
    button = figure.get_by_role("button", name="all", exact=True)
    handle, below = other.bounding_box(), button.bounding_box()
    assert handle["y"] + handle["height"] <= below["y"] + 1, "a bar at 0 leaves its token to be pressed"
    button.click()
    assert "q = 0: the drafter never proposes" in figure.locator(".outcome-of-one").text_content()
    assert not figure.get_by_role("slider", name="u, which decides").is_visible()
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


def test_u_decides_and_a_second_number_draws_the_replacement(figure):
    said = figure.locator(".outcome-of-one")
    assert 'u ≥ 0.579: "a" is rejected, and "there" comes in its place.' in said.text_content()
    other = figure.get_by_role("slider", name="the number for the draw")
    other.press("End")
    assert '"was" comes in its place' in said.text_content()
    u = figure.get_by_role("slider", name="u, which decides")
    for _ in range(3):
        u.press("PageDown")
    assert 'u < 0.579: "a" is accepted.' in said.text_content() and not other.is_visible()
    press(figure, "the")
    assert 'u < 1.000: "the" is accepted.' in said.text_content()
    assert "replacements bring the missing 0.060" in said.text_content()
    before = u.get_attribute("aria-valuenow")
    press(figure, "Draw one")
    assert u.get_attribute("aria-valuenow") != before


def test_the_sampler_acts_at_once(figure):
    figure.get_by_label("top-k").fill("2")
    shaped = numbers(figure, "p and q of each token")
    assert shaped["p"] == near([0.42 / 0.64, 0.22 / 0.64, 0, 0, 0, 0])
    assert shaped["q"] == near([0, 0.38 / 0.6, 0, 0.22 / 0.6, 0, 0])
    assert values(figure, "p") == near(P), "the bars' outlines stay"
    said = bars(figure, "p")[0].get_attribute("aria-valuetext")
    assert said == f"0.420, after the sampler {0.42 / 0.64:.3f}"
    figure.get_by_label("top-k").fill("0")
    figure.get_by_label("temperature").fill("0.5")
    squares = [one**2 for one in P]
    assert numbers(figure, "p and q of each token")["p"] == near([one / sum(squares) for one in squares])
    press(figure, "in")  # p is below q there
    assert "min(1, p/q)" in figure.locator(".threshold").text_content()


def test_greedy_decoding_has_its_own_sentence(figure):
    figure.get_by_label("temperature").fill("0")
    said = figure.locator(".one").inner_text()
    assert "p and q are 1 or 0; u cannot matter" in said
    assert '"a" is rejected: the target\'s likeliest token is "there".' in said
    u = figure.get_by_role("slider", name="u, which decides")
    assert not u.is_visible()
    press(figure, "Draw 10,000")
    figure.locator(".found").get_by_text('Only "there" can come, so there is nothing to test.').wait_for()
    test = figure.locator(".many dl > div").all_text_contents()[1:]
    assert test == ["χ²–", f"{CHANCE}–"], "a test without degrees of freedom is none"
    told = figure.locator(".two.told")
    assert told.locator(".left-q th").text_content() == "its q"
    assert "Nothing is left of q" in told.inner_text() and "u =" not in told.inner_text()
    press(figure, "replace from p")
    assert "With these p and q it changes nothing." in figure.locator(".whys").text_content()
    assert "exactly the target's p" in figure.locator(".answer").text_content()
    figure.get_by_label("temperature").fill("1")
    assert u.is_visible() and "u cannot matter" not in figure.locator(".one").inner_text()


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_explained_and_found(figure, name):
    switch = figure.get_by_role("button", name=name, exact=True)
    switch.click()
    assert switch.get_attribute("aria-pressed") == "true" and figure.locator(".whys").text_content()
    assert "% of the probability ends up at the wrong tokens" in figure.locator(".answer").text_content()
    chance, said = draw(figure)
    assert "this is not p" in said
    greedily = name == WRONG[2]  # another token than the only one is no matter of a test
    assert "came out as tokens whose p is 0" in said if greedily else chance < 1e-6
    switch.click()
    assert "exactly the target's p" in figure.locator(".answer").text_content()
    assert numbers(figure, "p and q of each token")["p"] == near(P), "also after a greedy mistake"
    chance, said = draw(figure)
    assert chance > 0.001 and "show no difference from p beyond chance" in said


def test_a_greedy_mistake_goes_when_decoding_is_no_longer_greedy(figure):
    press(figure, WRONG[2])
    assert figure.get_by_label("temperature").input_value() == "0"
    assert figure.get_by_role("slider", name="u, which decides").is_visible(), "it decides now"
    figure.get_by_label("temperature").fill("0.8")
    switch = figure.get_by_role("button", name=WRONG[2])
    assert switch.get_attribute("aria-pressed") == "false"


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
    assert figure.locator(".threshold").text_content() == f"min(1, p/q) = {token.accept_prob:.3f}"
    assert figure.get_by_label("temperature").input_value() == str(trace.params.temperature)
    replaced = next(one.next for one in trace.rounds if token in one.draft)
    assert float(figure.locator(".mass").text_content().split()[-1]) == near(replaced.residual_mass)
    said = figure.locator(".outcome-of-one b").text_content()
    assert token.text in said and "is rejected" in said and replaced.text in said
    number = figure.get_by_role("slider", name="the number for the draw")
    assert float(number.get_attribute("aria-valuenow")) == near(replaced.u)
    assert f"{replaced.u:.3f}" in figure.locator(".from").text_content(), "as the inspector has it"

    bound = figure.locator(".bound").get_by_text("the acceptance rate shown is an upper bound")
    assert not bound.is_visible()
    take_pinned(figure, trace, "accepted")  # its residual is not recorded
    assert figure.get_by_role("slider", name="p of all others").count() == 1 and bound.is_visible()
    press(figure, "replace from p")
    assert not bound.is_visible(), "it is about the right rule"


def test_beside_a_lossy_run_it_says_that_its_own_rule_is_another(visit, bare, tmp_path):
    trace = Trace.load(RECORDED)
    replace(trace, params=replace(trace.params, rule="typical")).save(tmp_path / "lossy.json")
    page = visit(bare, still=True)
    wait_for_state(page, "recorded")
    open_trace(page, tmp_path / "lossy.json")
    panel = shown(page)
    answer = panel.locator(".answer")
    assert answer.text_content().startswith("This run's rule, typical, is lossy. Here the speculative rule")
    assert panel.get_attribute("data-tone") == "lossy"
    take_pinned(panel, trace, "rejected")
    assert "not the run's rule, typical" in panel.locator(".place").text_content()
    assert "is lossy" in answer.text_content()
    press(panel, "replace from p")
    assert panel.get_attribute("data-tone") == "differs"


def test_in_a_lecture_the_figure_is_as_large_as_the_screen_and_the_keys_bring_its_cards(figure):
    page = figure.page
    page.get_by_role("button", name="Lecture").click()
    cards = figure.locator(".cards > *")
    in_sight = (
        "card => { const { left, right } = card.getBoundingClientRect(); "
        "return left >= 0 && right <= innerWidth + 1; }"
    )
    first, last = cards.first, cards.last
    assert first.evaluate(in_sight) and not last.evaluate(in_sight)
    sizes = figure.evaluate(
        "panel => [...panel.querySelectorAll('.cards :is(p, td, th, label, button)')]"
        ".filter((one) => one.checkVisibility()).map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert len(sizes) > 20 and min(sizes) >= 20
    for _ in range(cards.count()):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(400)
    assert last.evaluate(in_sight) and not first.evaluate(in_sight)
    page.keyboard.press("l")
    assert first.is_visible() and last.is_visible() and not page.locator(".run[data-lecture]").count()
