"""Race, gamma and comparison in a real browser, over the embedded pair."""

import csv
import json

import pytest

from specdemo.ui.view.choices import words_of_row
from specdemo.words.catalogue import say
from tests.web.screen import (
    box,
    choose,
    close_settings,
    first_token,
    generate,
    notice,
    open_examples,
    run,
    set_field,
    unfold,
)

PROMPT = "Once upon a time, there was a little fox"
DONE = 180_000  # ms

LEFTS = "cells => cells.map((cell) => Math.round(cell.getBoundingClientRect().left))"


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


def test_over_a_lossy_race_no_sentence_says_that_the_text_is_the_targets(page):
    choose(page, "Sampler", "multinomial")
    unfold(page, "Ending")
    choose(page, "Rule", words_of_row("rules", "lenient", "label"))
    panel = tab(page, "Race", "race")
    panel.get_by_role("button", name="Race:").click()
    page.locator(".intro", has_text="This run's rule is lossy").wait_for(timeout=DONE)
    choose(page, "Rule", words_of_row("rules", "speculative", "label"))
    choose(page, "Sampler", "greedy")
    close_settings(page)
    run(page, PROMPT)
    page.locator(".intro", has_text="as if the large one had written it alone").wait_for()
    tab(page, "Race", "race")
    page.locator(".intro", has_text="This run's rule is lossy").wait_for()
    page.get_by_role("tab", name="Text").click()
    page.locator(".intro", has_text="as if the large one had written it alone").wait_for()


def test_a_comparison_is_kept_saved_stopped_and_cleared(page):
    panel = tab(page, "Compare", "compare")
    panel.get_by_role("button", name="on this prompt").click()
    wait_for_state(page, "compare", "ended")
    rows = panel.locator("tbody tr")
    names = rows.evaluate_all("rows => rows.map(({dataset}) => dataset.row)")
    assert {"target alone", "lookup", "drafter model (embedded)"} <= set(names)
    assert set(rows.locator("td[data-column='same text']").all_text_contents()) == {"5 of 5"}, (
        "so few tokens are not timed in turns"
    )
    lines = list(csv.DictReader(downloaded(page, panel, "Save CSV").splitlines()))
    whole = json.loads(downloaded(page, panel, "Save JSON"))
    assert [line["name"] for line in lines] == [row["name"] for row in whole["rows"]] == names
    shown = panel.locator("tbody tr:visible")
    few = shown.count()
    panel.get_by_role("button", name=f"Show all {len(names)}").click()
    assert few < shown.count() == len(names), "the pair's own stand there at first"
    shown.first.locator("summary").click()
    assert shown.first.locator("details p").is_visible(), "a name says what it means"
    page.get_by_role("tab", name="Text").click()
    run(page, PROMPT)
    tab(page, "Compare", "compare")
    assert rows.count() == len(names), "another run leaves it"

    set_field(page, "Max new tokens", 60)  # it must not have ended when it is stopped
    close_settings(page)
    panel.get_by_role("button", name="on a set of prompts").click()
    rows.nth(len(names)).wait_for(timeout=DONE)  # the first of the new table
    tab(page, "Race", "race")
    choose(page, "Drafting method", "none: the target alone")
    page.get_by_test_id("race").get_by_role("button", name="Race:").click()
    wait_for_state(page, "race", "failed")
    assert "choose a drafter first" in page.get_by_test_id("race").inner_text()
    wait_for_state(page, "compare", "running")  # what cannot be measured ends no other measurement
    page.get_by_role("button", name="Stop", exact=True).first.click()
    wait_for_state(page, "compare", "stopped")
    tab(page, "Compare", "compare")
    assert rows.count() > len(names), "a stopped one leaves what it has"
    newest_first = [PROMPT in line for line in panel.locator(".of").all_text_contents()]
    assert newest_first == [False, True]
    panel.get_by_role("button", name="Clear").click()
    assert rows.count() == 0
    choose(page, "Drafting method", "the pair's drafter")
    page.get_by_role("tab", name="Text").click()
    run(page, max_new_tokens=8)  # the engine is free


def downloaded(page, panel, name: str) -> str:
    with page.expect_download() as download:
        panel.get_by_role("button", name=name).click()
    return download.value.path().read_text(encoding="utf-8")


def test_a_failed_load_leaves_the_stage_to_the_run_that_it_names(page):
    """The gated pair is refused at once; the run before it stays, under its own name."""
    page.get_by_role("tab", name="Text").click()
    run(page, PROMPT, max_new_tokens=8)
    whose = page.get_by_test_id("whose").text_content()
    assert whose.startswith("embedded ·")
    choose(page, "Pair", "llama-3.2-3b")
    generate(page)
    assert "HF_TOKEN" in notice(page, "error")
    assert page.get_by_test_id("whose").text_content() == whose
    assert "8 tokens in" in page.get_by_test_id("verdict").text_content()
    choose(page, "Pair", "embedded")


def test_measured_draft_lengths_are_laid_over_the_estimate_of_the_same_drafter_only(page):
    page.get_by_role("tab", name="Text").click()
    run(page, PROMPT, max_new_tokens=12)
    close_settings(page)
    panel = tab(page, "Gamma", "gamma")
    panel.get_by_text("estimate", exact=False).first.wait_for()
    panel.get_by_role("button", name="Measure some of these lengths").click()
    wait_for_state(page, "gamma", "ended")
    measured = panel.locator("td[data-column='tokensMeasured']").all_text_contents()
    assert [at for at, text in enumerate(measured) if text != "–"] == [0, 1, 2, 3, 4, 6, 8, 12, 16]
    assert measured[0] == "1.00"
    page.set_viewport_size({"width": 390, "height": 844})
    heads = panel.locator("thead th:visible").evaluate_all(LEFTS)
    cells = panel.locator("tbody tr").first.locator("td[data-column^=speedup]").evaluate_all(LEFTS)
    assert len(heads) == 3 and heads == cells, "each heading stands over its column"
    page.set_viewport_size({"width": 1280, "height": 800})
    panel.locator("button[data-gamma='6']").first.click()
    page.wait_for_function("box => box.value === '6'", arg=box(page, "Draft length γ").element_handle())

    drawn, apart = panel.locator("svg .measured:not(.best)"), panel.locator(".elsewhere")
    assert drawn.count() > 9 and not apart.is_visible()
    of = panel.locator(".of")
    assert "drafter model embedded/drafter" in of.inner_text()
    before = first_token(page)
    open_examples(page)
    page.get_by_role("button", name=say("recorded.poor.name")).click()
    page.wait_for_function("before => !before.isConnected", arg=before)
    page.get_by_role("tab", name="Gamma").click()
    apart.wait_for()
    assert drawn.count() == 0, "it was measured with another drafter"
    assert panel.locator("svg .seen:not(.best)").count() == 2, "the estimates are this run's"
    assert set(panel.locator("td[data-column$='Measured']").all_text_contents()) == {"–"}
    said = apart.inner_text()
    assert "Measured:" not in of.inner_text()
    assert "drafter model embedded/drafter" in said and "a set of 5 prompts" in said and "γ 16:" in said
    assert "a round in which nothing is drafted" in panel.locator(".leaves-out").inner_text()
