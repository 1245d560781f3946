"""The recorded runs on the page, over a server that has no model: from the list, and by link."""

import re

import pytest

from specdemo.ui.runs.recorded import RECORDINGS, recorded_trace
from specdemo.words.catalogue import say
from tests.web.screen import (
    close_settings,
    first_token,
    inspector,
    on_stage,
    open_examples,
    recorded,
    wait_for_state,
)


def shows(page, name: str) -> bool:
    """Waits until the stage has the run of this name."""
    page.wait_for_url(f"**?trace={name}*")
    wait_for_state(page, "recorded")
    return on_stage(page) == recorded(recorded_trace(name))


@pytest.fixture(scope="module")
def opened(visit_for_all, bare):
    return visit_for_all(bare, still=True)


def open_from_list(page, name: str) -> str:
    """Gives what the list says of it."""
    open_examples(page)
    row = page.get_by_role("button", name=say(f"recorded.{name}.name"))
    told = row.inner_text()
    row.click()
    assert shows(page, name)
    return told


@pytest.mark.parametrize("name", ["poor", "ngram"])
def test_one_opens_from_the_list_and_all_its_verdicts_agree(opened, name):
    """tests/pure/test_recorded_table.py has the verdicts of every one."""
    page = opened
    assert say(f"recorded.{name}.about") in open_from_list(page, name)
    assert not page.locator("#examples").is_visible()
    assert page.get_by_test_id("whose").text_content().startswith("Recorded run: embedded")
    page.get_by_role("tab", name="Exactness").click()
    answer = page.get_by_test_id("exactness").locator(".answer").inner_text()
    judged = sum(token.u is not None for one in recorded_trace(name).rounds for token in one.draft)
    assert answer.startswith(f"{judged} of {judged} verdicts follow") and "But" not in answer
    for tab in ("Where drafts die", "Gamma", "Text"):
        page.get_by_role("tab", name=tab, exact=True).click()
    assert page.locator("#prompt textarea").input_value() == RECORDINGS[name].prompt


def test_it_plays_so_that_it_can_be_watched_and_a_speed_that_the_reader_chose_stays(visit, bare):
    page = visit(bare)
    speed = page.get_by_test_id("replay").get_by_role("combobox")
    for chosen in ("0.04", "0.2"):
        before = first_token(page)
        open_examples(page)
        page.get_by_role("button", name=say("recorded.first.name")).click()
        page.wait_for_function("before => !before.isConnected", arg=before)
        assert speed.input_value() == chosen
        speed.select_option("0.2")


def test_a_link_shows_one_fills_the_controls_and_nothing_says_u_of_a_greedy_run(visit, bare):
    page = visit(f"{bare}/?trace=greedy&token=1.0", still=True)
    assert shows(page, "greedy")
    assert page.locator(".stage .pinned").count() == 1 and re.search(
        r"\?trace=greedy&digest=\w{8}&token=1\.0$", page.url
    )
    page.get_by_role("button", name="Settings").click()
    sampler = page.get_by_role("combobox", name="Sampler").element_handle()
    page.wait_for_function("box => box.value === 'greedy'", arg=sampler)
    close_settings(page)
    page.keyboard.press("Escape")  # which lets go of it
    for fate in ("accepted", "rejected", "resampled", "bonus"):
        page.locator(f'.stage [data-fate="{fate}"] > b').first.hover()
        shown = inspector(page).inner_text()
        assert "likeliest" in shown and not re.search(r"\bu\b", shown), shown
    inspector(page).locator(".formulas summary").click()
    assert "u cannot matter" in inspector(page).inner_text()
    for part in ("inspector", "legend", "timeline", "verdict"):
        assert not re.search("drawn|sampled", page.get_by_test_id(part).text_content()), part
    page.get_by_role("tab", name="Exactness").click()
    checks = page.get_by_test_id("exactness").locator(".answer, .checks")
    assert not any(re.search(r"\bu\b", words) for words in checks.all_inner_texts())
