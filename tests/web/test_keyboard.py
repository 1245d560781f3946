"""The page by keyboard alone: from Tab to everything that can be done with a mouse."""

import pytest

from specdemo.events.trace import Trace
from specdemo.words.catalogue import say
from tests.web.conftest import RECORDED
from tests.web.screen import (
    first_token,
    inspector,
    joined,
    number,
    saved,
    tokens,
    wait_for_end,
    wait_for_state,
)

# What has the focus, as a screen reader would name it.
FOCUS = """() => {
  const e = document.activeElement;
  const label = e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent ?? e.textContent;
  return label.trim().replace(/\\s+/g, " ");
}"""
WORDS = "[...document.querySelectorAll('.stage [data-token]')]"


def tab_to(page, name: str, back: bool = False) -> None:
    """Presses Tab until what is called so has the focus."""
    passed = []
    for _ in range(100):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        passed.append(page.evaluate(FOCUS))
        if passed[-1].startswith(name):
            return
    raise AssertionError(f"Tab does not come to {name}, only to {[name[:40] for name in passed]}")


def to_setting(page, name: str) -> None:
    """The settings are opened first, if they are not."""
    if not page.locator("#settings").is_visible():
        press_at(page, "Settings", "Enter")
    tab_to(page, name)


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def press_at(page, name: str, *keys: str) -> None:
    tab_to(page, name)
    press(page, *keys)


def type_over(page, text: str) -> None:
    press(page, "Control+a", "Delete")
    page.keyboard.type(text)


def choose_by_keys(page, name: str, option: str) -> None:
    """Types what is wanted and takes it from the list."""
    to_setting(page, name)
    type_over(page, option)
    press(page, "Enter")


def run_by_keys(page) -> None:
    before = first_token(page)
    press_at(page, "Generate", "Enter")
    wait_for_end(page, before)


def test_a_run_is_started_from_the_prompt_and_the_focus_goes_where_the_reader_looks(shared):
    to_setting(shared, "Max new tokens")
    type_over(shared, "5")
    tab_to(shared, "Prompt")
    type_over(shared, "Once")
    before = first_token(shared)
    press(shared, "Shift+Enter")
    wait_for_end(shared, before)
    assert joined(tokens(shared), "prompt") == "Once" and number(shared, "tokens") == "5"
    run_by_keys(shared)
    assert shared.evaluate(FOCUS).startswith("Text, token by token"), "after Generate"
    press(shared, "End")
    assert "in round" in shared.evaluate(FOCUS)


def test_every_control_can_be_reached_and_changed(shared):
    tab_to(shared, "Prompt")
    type_over(shared, "Tom and Tom and")
    choose_by_keys(shared, "Drafting method", "n-gram store")
    shared.get_by_role("slider", name="N-gram length").wait_for()
    press_at(shared, "range slider for Draft length", "ArrowRight", "ArrowRight")
    press_at(shared, "range slider for N-gram length", "ArrowLeft")
    choose_by_keys(shared, "Sampler", "all filters")
    shared.get_by_role("slider", name="Min-p").wait_for()
    press_at(shared, "range slider for Temperature", "ArrowRight", "ArrowRight")
    tab_to(shared, "Top-k")
    type_over(shared, "30")
    press_at(shared, "range slider for Top-p", "ArrowLeft")
    press_at(shared, "range slider for Min-p", "ArrowLeft")
    to_setting(shared, "Max new tokens")
    type_over(shared, "7")
    tab_to(shared, "Seed")
    type_over(shared, "12")
    for title in ("Chat", "Ending", "Weights"):
        press_at(shared, title, "Enter")
    tab_to(shared, "Seed", back=True)
    press_at(shared, "Chat template", "Space", "Space")
    tab_to(shared, "Stop strings")
    shared.keyboard.type("never\never")
    press_at(shared, "Continue past", "Space")
    press_at(shared, "range slider for Alternatives", "ArrowLeft", "ArrowLeft")
    for name, option in (("Number format", "float32"), ("Quantise the", "none")):
        choose_by_keys(shared, name, option)
    run_by_keys(shared)

    trace = saved(shared)
    params = trace.params
    assert trace.prompt == "Tom and Tom and" and number(shared, "tokens") == "7"
    assert (params.draft_with, params.gamma, params.ngram, params.rule) == ("ngram", 6, 2, "speculative")
    filters = (params.temperature, params.top_k, params.top_p, params.min_p)
    assert filters == pytest.approx((0.9, 30, 0.89, 0.04))
    assert (params.max_new_tokens, params.seed, params.chat, params.alternatives) == (7, 12, False, 3)
    assert (params.stop, params.ignore_eos) == (("never", "ever"), True)


def test_the_stage_can_be_walked_and_a_token_pinned(reading):
    page = reading
    unpin = inspector(page).get_by_role("button", name="pinned")
    tab_to(page, "Text, token by token")
    press(page, "ArrowRight")
    assert focused(page) == 0
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft")
    assert focused(page) == 1
    press(page, "End")
    last = focused(page)
    assert last == page.evaluate(f"{WORDS}.findLastIndex(e => e.checkVisibility())")
    press(page, "Enter")
    unpin.wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    press(page, "ArrowLeft")
    unpin.wait_for()  # what is pinned walks along
    assert focused(page) < last and page.locator(".stage .pinned").count() == 1
    press(page, "Escape")
    unpin.wait_for(state="hidden")
    press(page, "Home", "Tab", "Shift+Tab")
    assert focused(page) == 0, "Tab comes back to where the reader was"
    wait_for_state(page, "recorded")  # the player has not taken the arrow keys


def focused(page) -> int:
    return page.evaluate(f"{WORDS}.indexOf(document.activeElement)")


def test_the_timeline_can_be_walked_and_jumped_from(reading):
    page = reading
    tab_to(page, "round ")
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert page.evaluate(FOCUS).startswith("round 2: ")
    press(page, "Enter")
    inspector(page).get_by_role("button", name="pinned").wait_for()
    assert page.evaluate("document.activeElement.dataset.round") == "1", "after a jump"
    press(page, "Escape")
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")


def test_the_numbers_and_the_legend_say_what_they_mean_and_the_legend_filters(reading):
    page = reading
    definition = page.get_by_test_id("metrics").locator(".definition:visible")
    press_at(page, "All numbers", "Enter")
    press_at(page, "tokens/s", "ArrowRight")
    assert definition.all_text_contents() == [say("run.numbers.acceptance_rate.definition")]
    meanings = page.get_by_test_id("legend").locator(".definition:visible")
    tab_to(page, "accepted")
    assert meanings.all_text_contents() == [say("run.fates.accepted.definition")]
    rejected = page.locator('.stage [data-fate="rejected"]').first
    press_at(page, "rejected", "Space")
    assert not rejected.is_visible()
    press(page, "Enter")
    assert rejected.is_visible()


def test_what_is_copied_is_the_text(reading):
    reading.get_by_test_id("stage").focus()
    press(reading, "Control+a", "Control+c")
    trace = Trace.load(RECORDED)
    assert reading.evaluate("navigator.clipboard.readText()") == trace.prompt + trace.text


def test_replay_formulas_and_traces_are_in_reach(reading):
    page = reading
    # Playwright catches choosers from now on: asked for at the last moment, it may be late.
    page.on("filechooser", lambda chooser: None)
    before_replay = tokens(page)
    speed = page.get_by_test_id("replay").get_by_role("combobox")
    speed.select_option("0.04")
    press_at(page, "Replay", "Enter")
    wait_for_state(page, "running")
    press(page, "Space")  # it is called Pause now
    wait_for_state(page, "paused")
    press_at(page, "Skip", "Enter")
    wait_for_state(page, "recorded")
    assert tokens(page) == before_replay
    tab_to(page, "Place in the run")
    before = speed.input_value()
    press_at(page, "at ", "ArrowDown")
    assert speed.input_value() != before
    press_at(page, "Text, token by token", "End")
    press_at(page, "Formulas", "Enter")
    inspector(page).locator("math").first.wait_for()
    press_at(page, "Examples", "Enter")
    tab_to(page, "Open a saved trace")
    with page.expect_file_chooser():  # first: after a download, Playwright does not always hear of it
        press(page, "Space")
    tab_to(page, "Save trace")
    with page.expect_download() as download:
        press(page, "Enter")
    assert download.value.suggested_filename.endswith(".json")


def test_stop_is_in_reach(reading):
    page = reading
    press_at(page, "Generate", "Enter")
    wait_for_state(page, "waiting")  # for a pair that never comes
    press_at(page, "Stop", "Enter")
    wait_for_state(page, "recorded")
