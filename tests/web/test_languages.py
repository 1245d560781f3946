"""The page's words in another language: German, and one in which every message of the scripts is marked."""

import json
import re

import pytest

from specdemo.ui.view.words import catalogue
from tests.web.screen import generate, wait_for_state

pytestmark = pytest.mark.slow

TABS = ("text", "positions", "gamma", "race", "compare", "exactness", "figure", "trials", "guess")
# What has words that are not in the scripts' messages. Each element is left out with all in it.
NOT_OURS = {
    "what a model or a visitor wrote": (
        *(".stage [data-token]", "code", ".turns", "textarea"),
        *("[data-testid=guess-stage] [data-token]", ".suggested button", "[data-testid=trials] tbody th"),
    ),
    "formulas": ("math", ".identity h2", ".identity thead"),
    "what the server writes, in the language of the request": (
        *(".intro", ".notice", ".metrics", ".verdict-line", ".tabs", ".unfold", ".legend", ".keep", ".whose"),
        *(".playing .of", ".counted .of", ".drafting", ".about", ".language option", ".replay .keys"),
    ),
}
# Elements around what is the scripts' own, with symbols or words of the server: only their own are left out.
FRAME = (
    *(".inspector .values dt", ".likely thead th"),
    *(
        ".stage",
        ".inspector",
        ".timeline",
        ".replay",
        ".replay .moves button",
        ".replay label",
        ".replay .lecture",
    ),
    *(".scrubber", ".legend", "progress"),
)
# Every visible text and every name in .run that has a run of letters and is not in marks, as [where, text].
UNMARKED = """([notOurs, frame]) => {
  const found = [];
  const check = (element, kind, text) => {
    let rest = text;
    for (let before = ""; before !== rest;) [before, rest] = [rest, rest.replace(/⟦[^⟦⟧]*⟧/g, " ")];
    if (/\\p{L}{3}/u.test(rest)) found.push([`${element.tagName}.${element.className} ${kind}`, text.trim()]);
  };
  const run = document.querySelector(".run");
  const nodes = document.createTreeWalker(run, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    if (element.closest(notOurs) || element.matches(frame) || !element.checkVisibility()) continue;
    check(element, "text", nodes.currentNode.data);
  }
  for (const element of run.querySelectorAll("[aria-label], [title], [placeholder]")) {
    if (element.closest(notOurs) || element.matches(frame) || !element.checkVisibility()) continue;
    for (const name of ["aria-label", "title", "placeholder"]) {
      if (element.hasAttribute(name)) check(element, name, element.getAttribute(name));
    }
  }
  return found;
}"""


def marked(part):
    return {key: marked(one) for key, one in part.items()} if isinstance(part, dict) else f"⟦{part}⟧"


def unmarked(page) -> list[list[str]]:
    return page.evaluate(
        UNMARKED, [", ".join(one for group in NOT_OURS.values() for one in group), ", ".join(FRAME)]
    )


def without_marks(text: str) -> str:
    """What is left of a text in marks, of which some can stand in others."""
    before = None
    while before != text:
        before, text = text, re.sub("⟦[^⟦⟧]*⟧", " ", text)
    return " ".join(re.findall(r"[^\W\d_]{3,}", text))


def is_gradios(error: str) -> bool:
    """Whether it is what Gradio says as its page is left: its connection ends."""
    return "AbortError" in error or "Connection errored out" in error


@pytest.fixture
def pseudo(desk, visit, url):
    """The page, every message of the scripts in marks."""
    words = json.dumps(marked(catalogue("en")))
    pattern = "**/words/en.json"
    desk.route(pattern, lambda route: route.fulfill(body=words, content_type="application/json"))
    yield visit(url, still=True)
    desk.unroute(pattern)


def test_all_words_of_the_scripts_stand_in_the_catalogue(pseudo):
    page = pseudo
    page.locator('.run:not([data-state="running"])').wait_for()
    assert unmarked(page) == []
    for tab in TABS:
        page.locator(f'[role=tab][data-tab="{tab}"]').click()
        assert unmarked(page) == [], tab
    page.locator('[role=tab][data-tab="text"]').click()
    for fate in ("accepted", "resampled", "prompt"):
        page.locator(f'.stage [data-fate="{fate}"]').first.click()
        page.locator("[data-testid=inspector] .formulas").evaluate("details => details.open = true")
        assert page.locator("[data-testid=inspector] .verdict").inner_text().startswith("⟦")
        assert unmarked(page) == [], fate
        page.keyboard.press("Escape")
    generate(page, "Once upon a time", max_new_tokens=12)
    wait_for_state(page, "ended")
    for move in ("round-back", "token-back", "token-back", "token-on"):
        page.locator(f'[data-move="{move}"]').click()
        assert page.locator(".said").inner_text().startswith("⟦")
        assert unmarked(page) == [], move
    for tab in TABS:
        page.locator(f'[role=tab][data-tab="{tab}"]').click()
        assert unmarked(page) == [], tab


def test_what_can_be_opened_has_its_words_in_the_catalogue(pseudo):
    page = pseudo
    page.locator('.run:not([data-state="running"])').wait_for()
    menu = page.locator(".save-as")
    menu.locator("summary").click()
    assert menu.locator("button").count() == 3 and without_marks(menu.inner_text()) == ""
    page.keyboard.press("Escape")
    page.locator(".show-how").click()
    for step in range(1, 9):
        card = page.locator(".tour:not([hidden])")
        card.get_by_text(f"⟦{step} of 8⟧").wait_for()
        said = card.inner_text()
        for tab in catalogue("en")["page"]["tabs"].values():  # which the server writes
            said = said.replace(f"\n{tab}", "")
        assert without_marks(said) == "", step
        if step < 8:
            card.get_by_role("button", name="⟦Next⟧").click()
    page.keyboard.press("Escape")


def test_trials_and_the_game_have_their_words_in_the_catalogue(pseudo):
    page = pseudo
    page.locator('[role=tab][data-tab="trials"]').click()
    trials = page.get_by_test_id("trials")
    trials.locator(".mistakes button").first.click()
    trials.get_by_role("button", name="⟦Run the tiny pair⟧").click()
    trials.locator(".counted .result").get_by_text("⟦").wait_for(timeout=120_000)
    assert unmarked(page) == []
    trials.get_by_role("button", name="⟦Stop⟧").click()
    page.locator('[data-testid=trials][data-state="stopped"]').wait_for(timeout=60_000)
    page.locator('[role=tab][data-tab="guess"]').click()
    game = page.get_by_test_id("guess")
    game.get_by_role("button", name="⟦Begin a game⟧").click()
    game.locator(".suggested button").first.click()
    game.get_by_role("button", name="⟦Send⟧").click()
    game.get_by_test_id("guess-verdict").get_by_text("⟦").wait_for(timeout=60_000)
    assert unmarked(page) == []


def test_the_page_is_german_where_the_address_asks_for_it(visit, url):
    page = visit(f"{url}?lang=de", still=True)
    words = catalogue("de")
    assert page.evaluate("document.documentElement.lang") == "de"
    page.locator('.stage [data-fate="accepted"]').first.click()
    assert page.locator("[data-testid=inspector] .verdict").inner_text().startswith("Angenommen: u = ")
    assert (
        page.locator("[data-testid=inspector] .what .token").inner_text()
        == words["view"]["fates"]["accepted"]
    )
    page.locator('[role=tab][data-tab="exactness"]').click()
    assert page.locator("#panel-exactness h2").first.inner_text() == words["exactness"]["heading"]
    assert "lang=de" in page.evaluate("location.search"), "pinning a token keeps the language"
    assert page.get_by_test_id("notice").get_attribute("data-kind") != "error"


def test_a_chosen_language_is_kept(browser, url, visit):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = visit(url, still=True, context=context)
    control = page.get_by_role("combobox", name="Language")
    assert control.input_value() == "en"
    assert control.locator("option").all_inner_texts() == ["English", "Deutsch"]
    page.locator('.stage [data-fate="accepted"]').first.click()
    pinned = page.evaluate("new URLSearchParams(location.search).get('token')")
    with page.expect_navigation(url="**lang=de**"):
        control.select_option("Deutsch")
    page.locator('html[lang="de"] .run[data-pinned]').wait_for()
    assert page.evaluate("new URLSearchParams(location.search).get('token')") == pinned
    assert page.get_by_role("combobox", name="Sprache").input_value() == "de"
    page.goto(url)  # another visit, whose address does not say it
    page.locator('html[lang="de"] .run:not([data-state="empty"])').wait_for()
    assert "lang=de" in page.evaluate("location.search")
    page.broken[:] = [one for one in page.broken if not is_gradios(one)]
    context.close()
