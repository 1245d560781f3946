"""The page in German, and in a language in which every message of the scripts is marked."""

import json
import re

import pytest

from specdemo.words.catalogue import catalogue
from tests.web.screen import first_token, generate, notice, run, tokens, wait_for_end, wait_for_state

TABS = ("text", "positions", "gamma", "race", "compare", "advise", "exactness", "figure", "trials", "guess")
# What has words that are not in the scripts' messages. Each element is left out with all in it.
NOT_OURS = ", ".join(
    (
        # what a model or a visitor wrote, and formulas
        ".stage [data-token], code, .turns, textarea, [data-testid=guess-stage] [data-token]",
        ".suggested button, .walk .parts, [data-testid=worlds] .greedy",
        ".measured tbody th, math, .identity h2, .identity thead",
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


# Every text in an element and what it shows of its attributes, without formulas and a model's text.
WRITTEN = """(places) => places.flatMap((place) => [place, ...place.querySelectorAll("*")])
  .filter((e) => !e.closest("code, math, [data-token]"))
  .flatMap((e) => [
    ...[...e.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data),
    e.dataset.top ?? "", e.title ?? "", e.getAttribute("aria-valuetext") ?? "",
  ])"""


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


def test_what_can_be_opened_has_its_words_in_the_catalogue(pseudo):
    select(pseudo, "text")
    menu = pseudo.locator(".save-as")
    menu.locator("summary").click()
    assert menu.get_by_role("button").count() == 4 and without_marks(menu.inner_text()) == ""
    pseudo.keyboard.press("Escape")
    pseudo.locator(".show-how").click()
    card = pseudo.locator(".tour:not([hidden])")
    for step in range(1, 10):
        card.get_by_text(f"⟦{step} of 9⟧").wait_for()
        said = card.inner_text()
        for tab in catalogue("en")["page"]["tabs"].values():  # which the server writes
            said = said.replace(f"\n{tab}", "")
        assert without_marks(said) == "", step
        if step < 9:
            card.get_by_role("button", name="⟦Next⟧").click()
    pseudo.keyboard.press("Escape")


def test_trials_and_the_game_have_their_words_in_the_catalogue(pseudo):
    trials = select(pseudo, "trials")
    trials.get_by_role("button", name="⟦Run the tiny pair⟧").click()
    trials.locator(".counted .result").get_by_text("⟦").wait_for()
    assert unmarked(pseudo) == []
    trials.get_by_role("button", name="⟦Stop⟧").click()
    pseudo.locator('[data-testid=trials][data-state="stopped"]').wait_for()
    game = select(pseudo, "guess")
    game.get_by_role("button", name="⟦Begin a game⟧").click()
    game.locator(".suggested button").first.click()
    game.get_by_role("button", name="⟦Send⟧").click()
    game.get_by_test_id("guess-verdict").get_by_text("⟦").wait_for()
    assert unmarked(pseudo) == []


def reader(browser, visit, url: str, locale: str = "en-US"):
    """A page of somebody whose browser asks for this language."""
    return visit(url, still=True, context=browser.new_context(locale=locale))


@pytest.fixture(scope="module")
def german(browser, visit_for_all, url):
    return reader(browser, visit_for_all, url, "de-AT")


def test_german_numbers_have_a_comma_wherever_they_are_written(german):
    page = german
    page.locator('.stage [data-fate="accepted"]').first.click()
    panels = ".inspector, .run > .panel, .workspace > .panel, .timeline"
    written = []
    for tab in TABS:
        select(page, tab)
        written += page.locator(panels).evaluate_all(WRITTEN)
    assert any(re.search(r"\d,\d", text) for text in written)
    written = [text.replace("127.0.0.1", "") for text in written]
    assert [text for text in written if re.search(r"\d\.\d{1,2}(?!\d)|\d\.\d{4}", text)] == []


def test_two_readers_are_each_told_in_their_own_language(german, visit, url):
    page, english = german, visit(url, still=True)
    select(page, "text")
    assert page.title() == "Spekulatives Dekodieren, Token für Token"
    assert page.evaluate("document.documentElement.lang") == "de"
    assert page.get_by_test_id("whose").text_content().startswith("Aufgezeichneter Lauf: ")
    assert "kleines Modell" in page.locator(".intro").text_content()
    page.locator('.stage [data-fate="accepted"]').first.click()
    assert page.locator("[data-testid=inspector] .verdict").inner_text().startswith("Angenommen: u = ")
    heading = select(page, "exactness").locator("h2").first
    assert heading.inner_text() == catalogue("de")["exactness"]["heading"]
    before = first_token(page)
    page.get_by_role("button", name="Einstellungen").click()
    for label, value in (("Höchstzahl neuer Token", "12"), ("Seed", "1")):
        page.get_by_label(label).and_(page.locator("input, textarea")).first.fill(value)
    page.get_by_role("button", name="Erzeugen").click()
    wait_for_end(page, before)
    assert "Durchläufen des Zielmodells" in page.get_by_test_id("verdict").text_content()
    assert "Seed 1" in page.get_by_test_id("whose").text_content()
    assert "Gewichte im Speicher" in page.get_by_test_id("notice").text_content()
    run(english, "Once", max_new_tokens=12, seed=1)
    assert "target forward" in english.get_by_test_id("verdict").text_content()


def test_a_chosen_language_is_kept_and_refusals_name_the_controls_in_it(browser, visit, bare):
    page = reader(browser, visit, bare)
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
    page.goto(bare)  # another visit, whose address does not say it
    page.locator('html[lang="de"] .run:not([data-state="empty"])').wait_for()
    assert "lang=de" in page.evaluate("location.search")
    page.locator('.stage [data-fate="accepted"]').first.click()
    page.wait_for_url("**token=**")
    assert "lang=de" in page.url, "pinning a token keeps the language"
    page.get_by_role("button", name="Einstellungen").click()
    seed = page.locator("#set-seed")
    seed.locator("input, textarea").fill("x")
    seed.locator("input, textarea").blur()
    seed.get_by_text("⚠ erlaubt ist eine ganze Zahl von 0 bis ").wait_for()
    page.get_by_role("button", name="Erzeugen").click()
    refused = "Seed: erlaubt ist eine ganze Zahl von 0 bis 9.007.199.254.740.991, nicht 'x'"
    assert notice(page, "error") == refused
    assert seed.locator("[aria-invalid]").count() == 1
    forgive_leaving(page)


def forgive_leaving(page) -> None:
    """What Gradio says as its page is left: its connection ends."""
    page.broken[:] = [one for one in page.broken if not re.search("AbortError|Connection errored out", one)]


def test_a_language_is_no_run_and_loses_nothing(browser, visit, url):
    page = reader(browser, visit, url)
    followed = []
    page.on("request", lambda request: followed.extend(re.findall(r"specdemo/runs/(\w{32})$", request.url)))
    run(page, "Once upon a time", max_new_tokens=12, seed=1)
    trials = select(page, "trials")
    trials.get_by_role("button", name="Run the tiny pair").click()
    trials.locator(".counted .result:not(:empty)").wait_for()
    trials.get_by_role("button", name="Stop").click()
    page.locator('[data-testid=trials][data-state="stopped"]').wait_for()
    game = select(page, "guess")
    game.get_by_role("button", name="Begin a game").click()
    game.locator(".suggested button").first.click()
    game.get_by_role("button", name="Send").click()
    game.get_by_test_id("guess-score").wait_for()
    select(page, "text")
    page.locator("#prompt textarea").fill("half a sen")
    page.locator('[data-move="round-back"]').click()
    page.get_by_test_id("stage").locator('[data-fate="accepted"]').first.click()
    page.wait_for_url("**token=**")
    shown, link, names = tokens(page), page.url, list(followed)
    assert len(set(names)) == 4

    def counted():
        return [re.sub("[.,]", "", one) for one in page.locator(".counted td").all_inner_texts()]

    counts = counted()
    page.get_by_role("combobox", name="Language").select_option("Deutsch")
    page.locator('html[lang="de"] .run[data-state="paused"]').wait_for()
    assert tokens(page) == shown and page.url.replace("lang=de&", "") == link
    assert page.locator("#prompt textarea").input_value() == "half a sen"
    page.locator('[data-testid=trials][data-state="stopped"]').wait_for(state="attached")
    assert counted() == counts
    assert page.get_by_test_id("guess-score").locator("tbody tr").count() == 2
    assert "Durchläufen des Zielmodells" in page.get_by_test_id("verdict").text_content()
    assert followed == names * 2, "nothing was run or measured anew"
    forgive_leaving(page)
