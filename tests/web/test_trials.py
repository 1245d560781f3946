"""Trials in a real browser: the tiny pair with and without a mistake, and a pair with drafting on and off.
tests/models/test_trials_of_page.py has what they count and find, tests/js/trials.test.js the sentences."""

import re

import pytest

from tests.web.screen import set_field

TINY, PAIR = "Run the tiny pair", "This prompt, drafting on and off"
SWITCHES = (
    "replace from p",
    "tell another q",
    "judge greedy drafts by soft probabilities",
    "accept when p > q",
)
# Ends the trials once they have found that. A disabled button is not pressed: they may have ended.
ENOUGH = """([trial, found]) => {
  const panel = document.querySelector("[data-testid=trials]");
  if (panel.dataset.trial !== trial || panel.dataset.found !== found) return false;
  panel.querySelector(".end").click();
  return ["stopped", "ended"].includes(panel.dataset.state);
}"""
BEGUN = """() => {
  const { trial, state } = document.querySelector("[data-testid=trials]").dataset;
  return trial === undefined || state === "running";
}"""


def opened(page):
    page.get_by_role("tab", name="Trials").click()
    panel = page.get_by_test_id("trials")
    panel.get_by_role("button", name=TINY).wait_for()
    return panel


def tried(page, button: str, trial: str, found: str) -> str:
    """What is said of trials that have found that."""
    panel = page.get_by_test_id("trials")
    panel.get_by_role("button", name=button).click()
    page.wait_for_function(BEGUN)
    page.wait_for_function(ENOUGH, arg=[trial, found])
    return panel.get_by_test_id("trials-verdict").inner_text()


def turn(panel, name: str) -> None:
    panel.get_by_role("button", name=name).click()


@pytest.fixture(scope="module")
def page(visit_for_all, url):
    page = visit_for_all(url, still=True)
    set_field(page, "Seed", 7)
    opened(page)
    return page


def test_the_engine_as_it_is_fits_and_each_switch_is_told_from_it(page):
    panel = opened(page)
    assert tried(page, TINY, "none", "fits").startswith("So far nothing but chance")
    rows = panel.locator("tbody tr")
    shares = [
        [float(text) for text in rows.nth(at).locator("td").all_text_contents()[1:]]
        for at in range(rows.count())
    ]
    assert [round(sum(column), 1) for column in zip(*shares, strict=True)] == [1.0, 1.0]
    assert panel.locator(".of").inner_text().startswith("Tiny pair after “the fox”")
    for name in SWITCHES:
        turn(panel, name)
        assert panel.locator(".mistakes [aria-pressed=true]").all_inner_texts() == [name], "one at a time"
        assert panel.get_by_role("button", name=PAIR).is_disabled(), "it has no mistake in it"
    assert "drafting on and off” cannot be run" in panel.locator(".why").inner_text()
    assert "before this switch was moved" in panel.get_by_test_id("trials-verdict").inner_text()
    assert panel.get_attribute("data-found") is None
    assert tried(page, TINY, "likelier", "differs").startswith("Found: ")
    chance = panel.locator("[data-count=chance]").inner_text()
    assert chance == "0" or re.search("10⁻([⁶⁷⁸⁹]|.{2,})$", chance)
    assert panel.locator("dt").all_inner_texts()[1] == "p-value (a difference counts below 10⁻⁶)"
    assert "trials_mistake=likelier" in page.url
    turn(panel, SWITCHES[-1])  # off again
    assert panel.locator(".mistakes [aria-pressed=true]").count() == 0 and "trials_" not in page.url
    assert panel.get_by_role("button", name=PAIR).is_enabled()


def test_a_link_brings_the_mistake_and_the_guesses_back(visit, bare):
    page = visit(f"{bare}/?tab=trials&trials_mistake=told&trials_guesses=2", still=True)
    panel = page.get_by_test_id("trials")
    panel.get_by_role("button", name=SWITCHES[1], pressed=True).wait_for()
    panel.get_by_role("button", name="two guesses at each place", pressed=True).wait_for()
    assert panel.get_by_role("button", name=PAIR).is_disabled()
    turn(panel, SWITCHES[2])
    page.wait_for_url(lambda url: "tab=trials&trials_mistake=soft&trials_guesses=2" in url)


def test_this_prompt_with_drafting_on_and_off(page):
    set_field(page, "Prompt", "Tom and")
    panel = opened(page)
    tried(page, PAIR, "pair", "fits")
    assert panel.locator("thead th").all_inner_texts() == ["first tokens", "drafting on", "drafting off"]
    assert "“Tom and”" in panel.locator(".of").inner_text()
    assert panel.locator("tbody tr").count() > 2
    tested = panel.locator("[data-count=statistic]").locator("xpath=..").locator("dt").inner_text()
    assert int(re.search(r"\d+", tested)[0]) > 0, "there is something to be tested"
    assert panel.locator("[data-count=chance]").inner_text() != "–"
    counts = panel.locator(".counted")
    turn(panel, SWITCHES[0])
    assert not counts.is_visible(), "what has no mistake in it stands below none"
    turn(panel, SWITCHES[0])
    assert counts.is_visible() and "So far" in panel.get_by_test_id("trials-verdict").inner_text()


def test_stop_ends_them_where_they_are(visit, endless):
    page = visit(endless, still=True)
    panel = opened(page)
    count, end = panel.locator("[data-count=runs]"), panel.get_by_role("button", name="Stop")
    panel.get_by_role("button", name=PAIR).click()
    count.get_by_text(re.compile("^[1-9]")).wait_for()
    end.click()
    page.locator("[data-testid=trials][data-state=stopped]").wait_for()
    assert int(count.inner_text().split(" ")[0]) < 2_000 and end.is_disabled()
    set_field(page, "Max new tokens", 40_000)
    panel.get_by_role("button", name=PAIR).click()
    panel.get_by_text("Max new tokens must be a whole number from 1 to 32,768, not 40000").wait_for()
