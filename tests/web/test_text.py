"""The tab Text in a real browser: runs, recorded runs, and what the controls do besides holding values."""

import re
from urllib.parse import urlsplit

import pytest

from specdemo.ui.view.kept import recorded_trace
from specdemo.words.catalogue import say
from tests.web.screen import (
    IN_TEXT,
    choose,
    close_settings,
    first_token,
    generate,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_examples,
    recorded,
    run,
    set_field,
    tokens,
    wait_for_end,
    wait_for_state,
)

REPEATING = '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang'


@pytest.mark.parametrize(
    ("drafter", "sampler", "asked"),
    [
        ("the pair's drafter", "top-p", {}),
        ("none: the target alone", "greedy", {"draft_with": "none", "temperature": 0, "top_p": 1}),
    ],
)
def test_a_run_streams_onto_the_stage_as_the_api_tells_it(shared, generated, drafter, sampler, asked):
    page, prompt = shared, f"{REPEATING}\n\nTom"
    choose(page, "Drafting method", drafter)
    choose(page, "Sampler", sampler)
    run(page, prompt, max_new_tokens=30, **({} if sampler == "greedy" else {"seed": 11}))
    shown, trace = tokens(page), generated(prompt, seed=11, max_new_tokens=30, **asked)
    assert on_stage(page) == recorded(trace)
    assert joined(shown, *IN_TEXT) == trace.text and joined(shown, "prompt") == prompt
    assert [int(t["token"]) for t in shown if t["fate"] == "prompt"] == list(trace.prompt_ids)
    assert number(page, "tokens") == str(trace.stats.tokens)
    assert number(page, "seed") == ("–" if sampler == "greedy" else "11")
    assert number(page, "rounds") == str(len(trace.rounds)) and number(page, "finish") == trace.finish


def test_nothing_is_asked_of_other_hosts(shared, url):
    run(shared, "Once", max_new_tokens=5)
    asked = {
        urlsplit(address).netloc for address in shared.requested if not address.startswith(("data:", "blob:"))
    }
    assert asked == {urlsplit(url).netloc}


def test_what_cannot_be_seen_has_signs_that_are_not_in_the_text(shared):
    choose(shared, "Sampler", "multinomial")
    seeds = []
    for _ in range(2):
        run(shared, "a b\n\n  c\td     e", seed="", max_new_tokens=1)
        seeds.append(number(shared, "seed"))
    assert seeds[0] != seeds[1], "without a seed each run draws one"
    stage = shared.get_by_test_id("stage")
    assert joined(tokens(shared), "prompt") == "a b\n\n  c\td     e"
    assert stage.evaluate("s => s.innerText").startswith("a b\n\n  c\td     e"), "what is copied has no signs"
    assert signs(stage, ".newline") == ['"⏎"'] * 2 and signs(stage, ".tab") == ['"→"']
    spaces = shared.locator('[data-fate="prompt"] > .space')
    assert spaces.count() and set(signs(stage, ".space")) == {'"␣"'}


def signs(stage, selector: str) -> list[str]:
    return stage.locator(selector).evaluate_all(
        "all => all.map(e => getComputedStyle(e, '::before').content)"
    )


def test_an_example_is_run_here_with_its_settings_after_the_recorded_run(shared):
    page = shared
    page.get_by_role("tab", name="Gamma").click()
    open_examples(page)
    page.locator("#examples").get_by_text(say("recorded.lookup.name")).click()
    wait_for_state(page, "recorded")
    assert page.get_by_test_id("stage").is_visible(), "its text comes to the front"
    before = first_token(page)
    page.get_by_role("button", name="Run it here").click()
    wait_for_end(page, before)
    assert on_stage(page) == recorded(recorded_trace("lookup")), "greedy, so the same text"


def shows(page, name: str) -> bool:
    """Waits until the stage has the run of this name."""
    page.wait_for_url(f"**?trace={name}*")
    wait_for_state(page, "recorded")
    return on_stage(page) == recorded(recorded_trace(name))


def test_a_link_shows_one_and_nothing_says_u_of_a_greedy_run(visit, bare):
    page = visit(f"{bare}/?trace=greedy&token=1.0", still=True)
    assert shows(page, "greedy")
    assert page.locator(".stage .pinned").count() == 1 and page.url.endswith("?trace=greedy&token=1.0")
    page.keyboard.press("Escape")  # which lets go of it
    page.locator('.stage [data-fate="rejected"] > b').first.hover()
    shown = inspector(page).inner_text()
    assert "likeliest" in shown and not re.search(r"\bu\b", shown), shown
    for part in ("inspector", "legend", "timeline", "verdict"):
        assert not re.search("drawn|sampled", page.get_by_test_id(part).text_content()), part
    page.get_by_role("tab", name="Exactness").click()
    checks = page.get_by_test_id("exactness").locator(".answer, .checks")
    assert not any(re.search(r"\bu\b", words) for words in checks.all_inner_texts())


def stop(page):
    return page.get_by_role("button", name="Stop")


def test_an_error_opens_the_settings_at_the_control_that_it_is_about(reading):
    page = reading
    close_settings(page)
    generate(page, "")
    assert notice(page, "error").startswith("Prompt must not be empty")
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
