"""Be the drafter, in a real browser: by mouse, keyboard and touch, alone and in a hall."""

from urllib.parse import urlencode

import pytest

from tests.web.screen import PHONE, close_settings, set_field

PROMPT = "Once upon a time, there was a little fox"
TOKENS = (
    "stage => [...stage.querySelectorAll('[data-round]')]"
    ".map(({dataset, textContent}) => [dataset.round, dataset.fate, dataset.token, textContent])"
)
ROUNDS = """n => new Set([...document.querySelectorAll('[data-testid=guess-stage] [data-round]')]
    .map(({dataset}) => dataset.round)).size === n"""


def hall(url: str, **more) -> str:
    return f"{url}/?{urlencode({'prompt': PROMPT, 'seed': 7, 'guess': 1, **more})}"


def begun(page):
    panel = page.get_by_test_id("guess")
    panel.locator(".suggested button").first.wait_for()
    return panel


def guess(page, words: str) -> None:
    panel = page.get_by_test_id("guess")
    rounds = len({one[0] for one in tokens(panel)})
    panel.get_by_label("Your draft", exact=True).fill(words)
    page.keyboard.press("Enter")
    page.wait_for_function(ROUNDS, arg=rounds + 1)


def tokens(panel) -> list:
    return panel.get_by_test_id("guess-stage").evaluate(TOKENS)


def score(panel) -> list[list[str]]:
    rows = panel.get_by_test_id("guess-score").locator("tbody tr")
    return [rows.nth(at).locator("td").all_text_contents() for at in range(2)]


@pytest.fixture(scope="module")
def table(visit_for_all, url):
    """A page with a game that the tests of one player share."""
    return visit_for_all(hall(url), still=True)


def anew(page):
    """The panel, where another game has begun."""
    panel = begun(page)
    before = panel.get_by_test_id("guess-stage").evaluate_handle("stage => stage.firstElementChild")
    panel.get_by_role("button", name="New game").click()
    page.wait_for_function("before => !before.isConnected", arg=before)
    return begun(page)


def test_all_who_open_the_hall_s_link_get_the_same_verdicts_for_the_same_words(table, visit):
    page, panel = table, anew(table)
    panel.get_by_role("button", name="Copy link for the hall").click()
    panel.get_by_text("Copied: a link that begins this game.").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "guess=1" in link and "run=1" not in link
    seen = []
    for one in (page, visit(link, still=True)):
        panel = begun(one)
        suggested = panel.locator(".suggested").inner_text()
        for words in ("who lived", "He was"):
            guess(one, words)
        verdict = panel.get_by_test_id("guess-verdict").inner_text()
        seen.append((suggested, tokens(panel), verdict, score(panel)))
    assert seen[0] == seen[1]
    assert seen[0][1][0][3] == " who", "a typed word gets its space"


def test_the_lecturer_sees_how_the_hall_plays_once_it_is_opened(table, visit):
    page, panel = table, anew(table)
    copy, plays = panel.get_by_role("button", name="Copy link for the hall"), panel.locator(".hall-plays")
    copy.click()
    panel.get_by_text("Copied: a link that begins this game.").wait_for()
    assert "hall=" not in page.evaluate("navigator.clipboard.readText()") and not plays.is_visible()
    panel.get_by_label("count how the hall plays").check()
    copy.click()
    plays.get_by_text("No game has been played in the hall yet.").wait_for()
    assert "No other machine can open this link: 127.0.0.1 is" in plays.inner_text()
    guess(page, "who")  # the lecturer's own game, which is not the hall's
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text.includes('hall='))")
    player = visit(page.evaluate("navigator.clipboard.readText()"), still=True)
    table_of_player = begun(player)
    for words in ("who lived", "He was"):
        guess(player, words)
    plays.get_by_text("1 game", exact=True).wait_for()
    (_, mine), (_, its) = score(table_of_player)
    plays.get_by_text(f"the hall {mine}, the drafter {its} at the same places").wait_for()
    page.reload()
    plays.get_by_text("1 game", exact=True).wait_for()


def test_by_keyboard(table):
    page, panel = table, anew(table)
    box = panel.get_by_label("Your draft", exact=True)
    box.focus()
    page.keyboard.press("2")
    assert box.input_value() == panel.locator(".suggested button span").nth(1).inner_text()
    page.keyboard.press("Escape")
    assert box.input_value() == ""
    page.keyboard.type("in 2")
    assert box.input_value() == "in 2", "a digit after other signs is a digit"
    page.keyboard.press("Enter")
    page.wait_for_function(ROUNDS, arg=1)
    assert box.input_value() == "" and box.evaluate("box => box === document.activeElement")


def test_by_touch_on_a_hosted_page_which_refuses_what_is_too_much(browser, visit, hosted):
    context = browser.new_context(**PHONE)
    page = visit(hall(hosted), still=True, context=context)
    panel = begun(page)
    panel.locator(".suggested button").nth(2).tap()
    panel.get_by_role("button", name="Send").tap()
    page.wait_for_function(ROUNDS, arg=1)
    panel.get_by_test_id("guess-stage").locator("[data-round] > b").first.tap()
    panel.get_by_test_id("guess-inspector").get_by_text("round 1", exact=False).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    set_field(page, "Max new tokens", 1001)
    close_settings(page)
    panel.get_by_role("button", name="New game").tap()
    panel.get_by_text("Max new tokens must be a whole number from 1 to 1,000, not 1001").wait_for()
