"""What the controls do in a real browser besides holding values: refusals, Stop, and the keys for a run."""

import pytest

from tests.web.conftest import RECORDED
from tests.web.screen import (
    box,
    choose,
    choose_file,
    close_settings,
    generate,
    notice,
    open_settings,
    open_trace,
    set_field,
    wait_for_state,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def page(visit, bare):
    """Over a server whose pair never comes, so that every run waits."""
    return visit(bare, still=True)


def stop(page):
    return page.get_by_role("button", name="Stop")


@pytest.mark.parametrize("typed", ["99", ""])
def test_a_number_beyond_its_slider_stays_and_is_refused(page, typed):
    set_field(page, "Draft length γ", typed)
    page.get_by_text("⚠ must be a whole number from 1 to 16").wait_for()
    assert box(page, "Draft length γ").input_value() == typed
    generate(page)
    wrong = f"not {typed}" if typed else "and the box is empty"
    assert notice(page, "error") == f"Draft length γ must be a whole number from 1 to 16 or auto, {wrong}"
    assert stop(page).is_disabled(), "nothing has begun"
    assert box(page, "Draft length γ").get_attribute("aria-invalid") == "true"


def test_an_error_opens_the_settings_at_the_control_that_it_is_about(page):
    set_field(page, "Max new tokens", 0)
    close_settings(page)
    generate(page)
    marked = page.locator("#settings [aria-invalid]")
    marked.wait_for()
    assert marked.evaluate("e => e.closest('[id]').id") == "set-max_new_tokens"
    set_field(page, "Max new tokens", 8)
    generate(page)
    marked.wait_for(state="detached")


def test_an_error_about_the_prompt_marks_the_prompt_and_opens_nothing(page):
    generate(page, "")
    page.locator("#prompt [aria-invalid]").wait_for()
    assert not page.locator("#settings").is_visible()


def test_stop_can_be_pressed_exactly_while_there_is_something_to_stop(page):
    assert stop(page).is_disabled()
    assert page.evaluate("document.querySelector('#go').click(), !document.querySelector('#end').disabled"), (
        "at once, before the server has answered"
    )
    wait_for_state(page, "waiting")
    assert stop(page).is_enabled()
    stop(page).click()
    wait_for_state(page, "recorded")
    assert stop(page).is_disabled()


@pytest.mark.parametrize(
    ("keys", "label"),
    [("Control+Enter", "Prompt"), ("Control+Enter", "Seed"), ("Meta+Enter", "Max new tokens")],
)
def test_control_and_enter_starts_a_run_from_any_control(page, label, keys):
    open_settings(page)
    box(page, label).press(keys)
    wait_for_state(page, "waiting")
    assert "\n" not in box(page, "Prompt").input_value()


def test_an_error_is_shown_once_and_goes_with_what_it_was_about(visit, url, tmp_path):
    page = visit(url, still=True)  # the run loads the trace's pair, which no test expects of a bare server
    large, broken = tmp_path / "large.json", tmp_path / "broken.json"
    large.write_bytes(b"x" * (17 * 2**20))
    broken.write_text("once")
    said = page.get_by_test_id("notice")
    for file, words in ((broken, "not JSON"), (large, "17.0 MB"), (broken, "not JSON"), (large, "17.0 MB")):
        choose_file(page, file)
        said.get_by_text(words).wait_for()
        assert page.locator(".toast-body").count() == 0
    open_trace(page, RECORDED)
    assert notice(page, "recorded").startswith("A recorded run")
    generate(page, "")
    assert (
        notice(page, "error") == "Prompt must not be empty: the target needs at least one token to continue"
    )
    generate(page, "Once")
    page.locator('[data-testid="notice"][data-kind="error"]').wait_for(state="detached")


def test_what_has_no_effect_is_not_there(page):
    seed, rule = page.get_by_label("Seed"), page.get_by_role("combobox", name="Rule")
    choose(page, "Sampler", "greedy")
    seed.wait_for(state="detached")
    page.get_by_role("button", name="Ending").click()
    page.get_by_label("Stop strings").wait_for()
    lenience = page.locator("#set-lenience")
    assert rule.count() == 1 and lenience.count() == 0
    choose(page, "Rule", "lenient (lossy): accept when u < min(1, p/(l·q))")
    lenience.wait_for()
    choose(page, "Rule", "block: judges the draft as a whole; on average keeps no fewer")
    lenience.wait_for(state="detached")
    choose(page, "Sampler", "top-p")
    seed.wait_for()
