"""Race, gamma, comparison, advice, trials and two worlds in a real browser, over the embedded pair.
tests/models has what they count and find, tests/js the sentences and figures."""

import csv
import json
from urllib.parse import parse_qs

import pytest

from specdemo.words.catalogue import say
from tests.web.screen import (
    box,
    choose,
    close_settings,
    first_token,
    open_examples,
    run,
    set_field,
)

PROMPT = "Once upon a time, there was a little fox"
DONE = 180_000  # ms
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


def tab(page, name: str, kind: str):
    page.get_by_role("tab", name=name).click()
    panel = page.get_by_test_id(kind)
    panel.wait_for()
    return panel


def wait_for_state(page, kind: str, state: str) -> None:
    script = "([kind, state]) => document.querySelector(`[data-testid=${kind}]`).dataset.state === state"
    page.wait_for_function(script, arg=[kind, state], timeout=DONE)


@pytest.fixture(scope="module")
def page(visit_for_all, url):
    """A page whose last run was greedy and short."""
    page = visit_for_all(url, still=True)
    choose(page, "Sampler", "greedy")
    run(page, PROMPT, max_new_tokens=12)
    return page


def test_a_greedy_race_ends_with_two_identical_texts(page):
    panel = tab(page, "Race", "race")
    panel.get_by_role("button", name="Race:").click()
    wait_for_state(page, "race", "ended")
    panel.get_by_text("Identical: 12 of 12 tokens, compared.").wait_for()
    assert not page.get_by_test_id("verdict").is_visible(), "the run on the stage is another one"
    texts = [
        panel.locator(f"[data-lane='{lane}'] .stage").evaluate(
            "stage => [...stage.querySelectorAll('[data-fate]')]"
            ".filter(({dataset}) => !['rejected', 'discarded', 'prompt'].includes(dataset.fate))"
            ".map(({textContent}) => textContent).join('')"
        )
        for lane in (0, 1)
    ]
    assert texts[0] == texts[1] != ""
    fates = panel.locator("[data-lane='0'] .stage [data-fate]:not([data-fate=prompt])")
    assert set(fates.evaluate_all("tokens => tokens.map(({dataset}) => dataset.fate)")) == {"sampled"}


def test_a_comparison_that_is_stopped_is_kept_and_saved(page):
    panel = tab(page, "Compare", "compare")
    panel.get_by_role("button", name="on this prompt").click()
    rows = panel.locator("tbody tr")
    rows.first.wait_for(timeout=DONE)
    page.get_by_role("button", name="Stop", exact=True).first.click()
    wait_for_state(page, "compare", "stopped")
    names = rows.evaluate_all("rows => rows.map(({dataset}) => dataset.row)")
    assert names
    lines = list(csv.DictReader(downloaded(page, panel, "Save CSV").splitlines()))
    whole = json.loads(downloaded(page, panel, "Save JSON"))
    assert [line["name"] for line in lines] == [row["name"] for row in whole["rows"]] == names
    page.get_by_role("tab", name="Text").click()
    run(page, PROMPT)  # the engine is free
    tab(page, "Compare", "compare")
    assert rows.count() == len(names), "another run leaves it"


def downloaded(page, panel, name: str) -> str:
    with page.expect_download() as download:
        panel.get_by_role("button", name=name).click()
    return download.value.path().read_text(encoding="utf-8")


def test_measured_draft_lengths_are_laid_over_the_estimate_of_the_same_drafter_only(page):
    page.get_by_role("tab", name="Text").click()
    run(page, PROMPT, max_new_tokens=12)
    close_settings(page)
    panel = tab(page, "Gamma", "gamma")
    panel.get_by_text("estimate", exact=False).first.wait_for()
    panel.get_by_role("button", name="Measure some of these lengths").click()
    wait_for_state(page, "gamma", "ended")
    measured = panel.locator("td[data-column='tokens-measured']").all_text_contents()
    assert [at for at, text in enumerate(measured) if text != "–"] == [0, 1, 2, 3, 4, 6, 8, 12, 16]
    assert measured[0] == "1.00"
    panel.locator("button[data-gamma='6']").first.click()
    page.wait_for_function("box => box.value === '6'", arg=box(page, "Draft length γ").element_handle())

    drawn = panel.locator("svg .measured:not(.best)")
    assert drawn.count() == 9
    before = first_token(page)
    open_examples(page)
    page.get_by_role("button", name=say("recorded.poor.name")).click()
    page.wait_for_function("before => !before.isConnected", arg=before)
    page.get_by_role("tab", name="Gamma").click()
    drawn.first.wait_for(state="detached")
    assert drawn.count() == 0, "it was measured with another drafter"
    assert set(panel.locator("td[data-column$='measured']").all_text_contents()) == {"–"}
    assert "Measured for other settings" in panel.locator(".of").inner_text()


def test_advice_says_what_pays_for_the_chosen_work_and_saves_a_report(page):
    set_field(page, "Max new tokens", 24)
    close_settings(page)
    panel = tab(page, "Advise", "advise")
    works = panel.locator(".works input")
    assert works.count() == 6 and all(works.nth(at).is_checked() for at in range(6))
    for at in range(6):
        works.nth(at).uncheck()
    panel.get_by_role("button", name="Advise").click()
    wait_for_state(page, "advise", "failed")
    panel.get_by_label("Writing (stories)").check()
    panel.get_by_role("button", name="Advise").click()
    panel.locator(".advised dt").first.wait_for(timeout=DONE)
    panel.get_by_role("button", name="Stop").click()
    wait_for_state(page, "advise", "stopped")
    assert panel.locator(".advised dt").count() == 1
    report = downloaded(page, panel, "Save report")
    assert report.startswith("<!doctype html>") and "python -m specdemo advise" in report


def trials_of(page):
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


def test_the_engine_as_it_is_fits_and_each_switch_is_told_from_it(page):
    choose(page, "Sampler", "top-p")
    set_field(page, "Seed", 7)
    close_settings(page)
    panel = trials_of(page)
    assert tried(page, TINY, "none", "fits").startswith("So far nothing but chance")
    for name in SWITCHES:
        turn(panel, name)
        assert panel.locator(".mistakes [aria-pressed=true]").all_inner_texts() == [name], "one at a time"
        assert panel.get_by_role("button", name=PAIR).is_disabled(), "it has no mistake in it"
    assert panel.get_attribute("data-found") is None
    assert tried(page, TINY, "likelier", "differs").startswith("Found: ")
    turn(panel, SWITCHES[-1])  # off again
    assert panel.locator(".mistakes [aria-pressed=true]").count() == 0
    assert panel.get_by_role("button", name=PAIR).is_enabled()


def test_this_prompt_with_drafting_on_and_off(page):
    set_field(page, "Prompt", "Tom and")
    panel = trials_of(page)
    tried(page, PAIR, "pair", "fits")
    assert panel.locator("thead th").all_inner_texts() == ["first tokens", "drafting on", "drafting off"]
    assert "“Tom and”" in panel.locator(".of").inner_text()
    assert panel.locator("tbody tr").count() > 2
    assert panel.locator("[data-count=chance]").inner_text() != "–"


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
    for one in found:
        differ = [abs(float(bar) - float(due)) for bar, due in zip(one["bars"], one["marks"], strict=True)]
        assert max(differ) < 0.15, "bars end near their marks"
    page.get_by_role("button", name="Lecture").click()
    page.keyboard.press("PageUp")
    assert " ×" not in panel.inner_text(), "no speed-up is claimed"
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
