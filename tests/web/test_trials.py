"""Trials in a real browser: the tiny pair with and without a mistake, and a pair with drafting on and off."""

import re

import pytest

from tests.web.screen import choose, set_field

pytestmark = pytest.mark.slow
DONE = 180_000  # ms
SWITCHES = {
    "replace from p": "from_p",
    "tell another q": "told",
    "judge greedy drafts by soft probabilities": "soft",
    "accept when p > q": "likelier",
}
FOUND = """([trial, found, runs]) => {
  const panel = document.querySelector("[data-testid=trials]");
  const count = panel.querySelector("[data-count=runs]").textContent.replaceAll(",", "");
  return panel.dataset.trial === trial && panel.dataset.found === found && Number.parseInt(count) >= runs;
}"""
BEGUN = """() => {
  const { trial, state } = document.querySelector("[data-testid=trials]").dataset;
  return trial === undefined || state === "running";
}"""
STOPPED = "() => document.querySelector('[data-testid=trials]').dataset.state === 'stopped'"


def opened(page):
    page.get_by_role("tab", name="Trials").click()
    panel = page.get_by_test_id("trials")
    panel.get_by_role("button", name="Run the tiny pair").wait_for()
    return panel


def start(page, button: str = "Run the tiny pair") -> None:
    page.get_by_test_id("trials").get_by_role("button", name=button).click()
    page.wait_for_function(BEGUN, timeout=DONE)


def stop(page) -> None:
    page.get_by_test_id("trials").get_by_role("button", name="Stop").click()
    page.wait_for_function(STOPPED, timeout=DONE)


def runs(panel) -> int:
    return int(panel.locator("[data-count=runs]").inner_text().split(" ")[0].replace(",", ""))


@pytest.fixture(scope="module")
def page(visit_for_all, url):
    page = visit_for_all(url)
    set_field(page, "Seed", 7)
    opened(page)
    return page


def test_the_counts_grow_and_the_engine_as_it_is_fits(page):
    panel = opened(page)
    start(page)
    page.wait_for_function(FOUND, arg=["none", "fits", 200], timeout=DONE)
    before = runs(panel)
    page.wait_for_function(FOUND, arg=["none", "fits", before + 200], timeout=DONE)
    assert panel.get_by_test_id("trials-verdict").inner_text().startswith("So far nothing but chance")
    stop(page)
    at_stop = runs(panel)
    page.wait_for_timeout(1_000)
    assert runs(panel) == at_stop, "it has stopped"
    rows = panel.locator("tbody tr")
    shares = [
        [float(text) for text in rows.nth(at).locator("td").all_text_contents()[1:]]
        for at in range(rows.count())
    ]
    assert [round(sum(column), 1) for column in zip(*shares, strict=True)] == [1.0, 1.0]
    assert panel.locator(".of").inner_text().startswith("Tiny pair after “the fox”")


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_is_found(page, name):
    panel = opened(page)
    panel.get_by_role("button", name=name).click()
    start(page)
    page.wait_for_function(FOUND, arg=[SWITCHES[name], "differs", 20], timeout=DONE)
    assert panel.get_by_test_id("trials-verdict").inner_text().startswith("Found: ")
    chance = panel.locator("[data-count=chance]").inner_text()
    assert (
        chance == "0" or int(chance.split("10⁻")[1].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"))) > 6
    )
    stop(page)
    panel.get_by_role("button", name=name).click()  # off again
    assert panel.locator(".mistakes [aria-pressed=true]").count() == 0


def test_only_one_mistake_is_switched_on(page):
    panel = opened(page)
    for name in SWITCHES:
        panel.get_by_role("button", name=name).click()
        assert panel.locator(".mistakes [aria-pressed=true]").all_inner_texts() == [name]
    panel.get_by_role("button", name=name).click()


def test_counts_of_other_runs_are_told_from_those_of_the_switch(page):
    panel = opened(page)
    start(page)
    page.wait_for_function(FOUND, arg=["none", "fits", 100], timeout=DONE)
    stop(page)
    panel.get_by_role("button", name="replace from p").click()
    assert "before this switch was moved" in panel.get_by_test_id("trials-verdict").inner_text()
    assert panel.get_attribute("data-found") is None
    panel.get_by_role("button", name="replace from p").click()


def test_greedy_has_a_sentence_of_its_own(page):
    choose(page, "Sampler", "greedy")
    panel = opened(page)
    start(page)
    page.wait_for_function(FOUND, arg=["none", "alike", 100], timeout=DONE)
    stop(page)
    assert "u cannot matter. All runs are alike" in panel.get_by_test_id("trials-verdict").inner_text()
    assert panel.locator("tbody tr").count() == 1
    choose(page, "Sampler", "top-p")


def test_this_prompt_with_drafting_on_and_off(page):
    set_field(page, "Prompt", "Tom and")
    panel = opened(page)
    start(page, "This prompt, drafting on and off")
    page.wait_for_function(FOUND, arg=["pair", "fits", 100], timeout=DONE)
    stop(page)
    assert panel.locator("thead th").all_inner_texts() == ["first tokens", "drafting on", "drafting off"]
    assert "“Tom and”" in panel.locator(".of").inner_text()
    assert panel.locator("tbody tr").count() > 2
    tested = panel.locator("[data-count=statistic]").locator("xpath=..").locator("dt").inner_text()
    assert int(re.search(r"\d+", tested)[0]) > 0, "there is something to be tested"
    assert panel.locator("[data-count=chance]").inner_text() != "–"


def test_a_sampler_that_leaves_one_text_has_nothing_to_be_tested(page):
    set_field(page, "Top-p", 0.1)
    panel = opened(page)
    panel.get_by_role("button", name="tell another q").click()
    for button, trial, sentence in (
        ("Run the tiny pair", "told", "Nothing is left to chance here: with these settings only one text"),
        ("This prompt, drafting on and off", "pair", "So far all runs have the same first tokens."),
    ):
        start(page, button)
        page.wait_for_function(FOUND, arg=[trial, "alike", 100], timeout=DONE)
        stop(page)
        assert panel.get_by_test_id("trials-verdict").inner_text().startswith(sentence)
        assert panel.locator("[data-count=chance]").inner_text() == "–"
    panel.get_by_role("button", name="tell another q").click()  # off again
    set_field(page, "Top-p", 0.9)


def test_a_hosted_page_has_its_limits(visit, hosted):
    page = visit(hosted)
    panel = opened(page)
    set_field(page, "Max new tokens", 1001)
    panel.get_by_role("button", name="This prompt, drafting on and off").click()
    panel.get_by_text("Max new tokens must be a whole number from 1 to 1,000, not 1001").wait_for()
    set_field(page, "Max new tokens", 20)
    start(page)
    page.wait_for_function(FOUND, arg=["none", "fits", 200], timeout=DONE)
    stop(page)
