"""What the controls do in a real browser besides holding values: refusals, Stop, and the keys for a run."""

import pytest

from tests.web.screen import (
    box,
    close_settings,
    generate,
    notice,
    open_settings,
    set_field,
    wait_for_state,
)


@pytest.fixture(scope="module")
def page(visit_for_all, bare):
    """Over a server whose pair never comes, so that every run waits."""
    return visit_for_all(bare, still=True)


def stop(page):
    return page.get_by_role("button", name="Stop")


def test_a_number_beyond_its_slider_stays_and_is_refused(page):
    for typed, wrong in (("99", "not 99"), ("", "and the box is empty")):
        set_field(page, "Draft length γ", typed)
        page.get_by_text("⚠ must be a whole number from 1 to 16").wait_for()
        assert box(page, "Draft length γ").input_value() == typed
        generate(page)
        refused = f"Draft length γ must be a whole number from 1 to 16 or auto, {wrong}"
        page.get_by_test_id("notice").get_by_text(refused, exact=True).wait_for()
        assert stop(page).is_disabled(), "nothing has begun"
        assert box(page, "Draft length γ").get_attribute("aria-invalid") == "true"
    set_field(page, "Draft length γ", 4)


def test_an_error_opens_the_settings_at_the_control_that_it_is_about(page):
    close_settings(page)
    generate(page, "")
    said = "Prompt must not be empty: the target needs at least one token to continue"
    assert notice(page, "error") == said
    page.locator("#prompt [aria-invalid]").wait_for()
    assert not page.locator("#settings").is_visible()
    set_field(page, "Prompt", "Once")
    set_field(page, "Max new tokens", 0)
    close_settings(page)
    generate(page)
    marked = page.locator("#settings [aria-invalid]")
    marked.wait_for()
    assert marked.evaluate("e => e.closest('[id]').id") == "set-max_new_tokens"
    set_field(page, "Max new tokens", 8)
    generate(page)
    marked.wait_for(state="detached")
    page.locator('[data-testid="notice"][data-kind="error"]').wait_for(state="detached")
    wait_for_state(page, "waiting")
    stop(page).click()
    wait_for_state(page, "recorded")


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


def test_control_and_enter_starts_a_run_from_any_control(page):
    open_settings(page)
    for keys, label in (("Control+Enter", "Prompt"), ("Meta+Enter", "Max new tokens")):
        box(page, label).press(keys)
        wait_for_state(page, "waiting")
        assert "\n" not in box(page, "Prompt").input_value()
        stop(page).click()
        wait_for_state(page, "recorded")
