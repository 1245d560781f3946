"""The page in German, and in a language in which every message of the scripts is marked."""

import json
import re

import pytest

from specdemo.words.catalogue import catalogue
from tests.web.screen import generate, notice, run, tokens, wait_for_state

TABS = ("text", "positions", "gamma", "race", "compare", "advise", "exactness", "figure", "trials", "guess")
# What has words that are not in the scripts' messages. Each element is left out with all in it.
NOT_OURS = ", ".join(
    (
        # what a model or a visitor wrote, and formulas
        ".stage [data-token], code, textarea, [data-testid=guess-stage] [data-token]",
        ".suggested button, [data-testid=worlds] .greedy",
        ".measured tbody th, math",
        # what the server writes, in the language of the request
        ".intro, .notice, .metrics, .verdict-line, .tabs, .unfold, .legend, .keep, .whose, .playing .of",
        ".counted .of, .drafting, .threshold, .about, .language option, .replay .keys",
    )
)
# Elements around what is the scripts' own, with symbols or words of the server: only their own are left out.
FRAME = (
    ".inspector .values dt, .likely thead th, .stage, .inspector, .timeline, .replay, .replay .moves button, "
    ".replay label, .replay .lecture, .scrubber, .legend, progress"
)
# Every visible text and every name in .run, as [where, text].
SAID = """([notOurs, frame]) => {
  const run = document.querySelector(".run");
  const found = [];
  const nodes = document.createTreeWalker(run, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) found.push([nodes.currentNode.parentElement, nodes.currentNode.data]);
  for (const name of ["aria-label", "title", "placeholder"]) {
    for (const named of run.querySelectorAll(`[${name}]`)) found.push([named, named.getAttribute(name)]);
  }
  return found.filter(([e]) => !e.closest(notOurs) && !e.matches(frame) && e.checkVisibility())
    .map(([e, text]) => [`${e.tagName}.${e.className}`, text]);
}"""


def marked(part):
    return {key: marked(one) for key, one in part.items()} if isinstance(part, dict) else f"⟦{part}⟧"


def unmarked(page) -> list[list[str]]:
    """The texts with a word that stands outside of marks."""
    return [found for found in page.evaluate(SAID, [NOT_OURS, FRAME]) if without_marks(found[1])]


def without_marks(text: str) -> str:
    """What is left of a text in marks, of which some can stand in others."""
    before = None
    while before != text:
        before, text = text, re.sub("⟦[^⟦⟧]*⟧", " ", text)
    return " ".join(re.findall(r"[^\W\d_]{3,}", text))


def select(page, tab: str):
    page.locator(f'[role=tab][data-tab="{tab}"]').click()
    return page.locator(f"[role=tabpanel][id=panel-{tab}]")


@pytest.fixture(scope="module")
def pseudo(desk, visit_for_all, url):
    """The page, every message of the scripts in marks."""
    words = json.dumps(marked(catalogue("en")))
    pattern = "**/words/en.json"
    desk.route(pattern, lambda route: route.fulfill(body=words, content_type="application/json"))
    page = visit_for_all(url, still=True)
    desk.unroute(pattern)
    wait_for_state(page, "recorded")
    return page


def test_all_words_of_the_scripts_stand_in_the_catalogue(pseudo):
    page = pseudo
    assert unmarked(page) == []
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
        panel = select(page, tab)
        if tab in ("figure", "trials"):
            panel.locator(".mistakes button").first.click()
        assert unmarked(page) == [], tab


def reader(browser, visit, url: str, locale: str = "en-US"):
    """A page of somebody whose browser asks for this language."""
    return visit(url, still=True, context=browser.new_context(locale=locale))


def test_a_reader_is_told_in_the_browsers_language(browser, visit, bare):
    page = reader(browser, visit, bare, "de-AT")
    assert page.title() == "Spekulatives Dekodieren, Token für Token"
    assert page.evaluate("document.documentElement.lang") == "de"
    page.locator('.stage [data-fate="accepted"]').first.click()
    assert page.locator("[data-testid=inspector] .verdict").inner_text().startswith("Angenommen: u = 0,")
    heading = select(page, "exactness").locator("h2").first
    assert heading.inner_text() == catalogue("de")["exactness"]["heading"]


def test_a_chosen_language_is_kept_and_refusals_name_the_controls_in_it(browser, visit, bare):
    page = reader(browser, visit, bare)
    control = page.get_by_role("combobox", name="Language")
    page.locator('.stage [data-fate="accepted"]').first.click()
    pinned = page.evaluate("new URLSearchParams(location.search).get('token')")
    with page.expect_navigation(url="**lang=de**"):
        control.select_option("Deutsch")
    page.locator('html[lang="de"] .run[data-pinned]').wait_for()
    assert page.evaluate("new URLSearchParams(location.search).get('token')") == pinned
    assert page.get_by_role("combobox", name="Sprache").input_value() == "de"
    page.goto(bare)  # another visit, whose address does not say it
    page.locator('html[lang="de"] .run:not([data-state="empty"])').wait_for()
    assert "lang=de" in page.evaluate("location.search")
    page.get_by_role("button", name="Einstellungen").click()
    seed = page.locator("#set-seed")
    seed.locator("input, textarea").fill("x")
    seed.locator("input, textarea").blur()
    page.get_by_role("button", name="Erzeugen").click()
    assert notice(page, "error").startswith("Seed: erlaubt ist eine ganze Zahl von 0 bis ")
    assert seed.locator("[aria-invalid]").count() == 1
    forgive_leaving(page)


def forgive_leaving(page) -> None:
    """What Gradio says as its page is left: its connection ends."""
    page.broken[:] = [one for one in page.broken if not re.search("AbortError|Connection errored out", one)]


def test_another_language_makes_the_addresss_run_again_and_leaves_the_controls(browser, visit, url):
    page = reader(browser, visit, url)
    run(page, "Once upon a time", max_new_tokens=12, seed=1)
    page.locator("#prompt textarea").fill("half a sen")
    page.get_by_test_id("stage").locator('[data-fate="accepted"]').first.click()
    page.wait_for_url("**token=**")
    shown, link = tokens(page), page.url
    page.get_by_role("combobox", name="Language").select_option("Deutsch")
    page.locator('html[lang="de"] .run[data-state="ended"][data-pinned]').wait_for()
    assert tokens(page) == shown and page.url.replace("lang=de&", "") == link
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'half a sen'")
    assert "Durchläufen des Zielmodells" in page.get_by_test_id("verdict").text_content()
    forgive_leaving(page)
