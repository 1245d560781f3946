"""A run on the page in a real browser: the settings, the examples, and the text on the stage."""

from urllib.parse import urlsplit

import pytest

from specdemo.ui.runs.recorded import recorded_trace
from specdemo.words.catalogue import say
from tests.web.screen import (
    IN_TEXT,
    choose,
    first_token,
    joined,
    notice,
    number,
    on_stage,
    open_examples,
    recorded,
    run,
    tokens,
    wait_for_end,
    wait_for_state,
)

REPEATING = '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang'


@pytest.fixture(scope="module")
def shared(visit_for_all, url):
    """A page for the tests that set all they need."""
    return visit_for_all(url, still=True)


WAYS = {  # (what is chosen on the page, the same for the API, what must be seen)
    "model": (("the pair's drafter", "top-p"), {}, {"accepted", "rejected", "resampled"}),
    "none": (
        ("none: the target alone", "greedy"),
        {"draft_with": "none", "temperature": 0, "top_p": 1},
        {"sampled"},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_streams_onto_the_stage_as_the_api_tells_it(shared, generated, way):
    (drafter, sampler), same, fates = WAYS[way]
    page, prompt = shared, f"{REPEATING}\n\nTom"
    choose(page, "Drafting method", drafter)
    choose(page, "Sampler", sampler)
    run(page, prompt, max_new_tokens=30, **({} if sampler == "greedy" else {"seed": 11}))
    shown, trace = tokens(page), generated(prompt, seed=11, max_new_tokens=30, **same)

    assert on_stage(page) == recorded(trace)
    assert joined(shown, *IN_TEXT) == trace.text and joined(shown, "prompt") == prompt
    assert [int(t["token"]) for t in shown if t["fate"] == "prompt"] == list(trace.prompt_ids)
    assert all(t["round"] is None for t in shown if t["fate"] == "prompt")
    assert fates <= {t["fate"] for t in shown}
    assert number(page, "tokens") == str(trace.stats.tokens)
    assert number(page, "seed") == ("–" if sampler == "greedy" else "11")
    assert number(page, "rounds") == str(len(trace.rounds)) and number(page, "finish") == trace.finish
    assert "MB for the target" in notice(page, "note")
    assert ("Drafting is off" in notice(page, "note")) == (way == "none")


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
    lines = stage.locator(".newline").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    assert lines[0] < lines[1]
    spaces = shared.locator('[data-fate="prompt"] > .space')
    assert spaces.count() and set(signs(stage, ".space")) == {'"␣"'}
    assert all(box["width"] > 4 for box in (space.bounding_box() for space in spaces.all()))


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
    assert page.locator(".intro").inner_text().startswith(say("recorded.lookup.about"))
    drafts = page.get_by_role("combobox", name="Drafting method").element_handle()
    assert drafts.evaluate("box => box.value") == "lookup"
    before = first_token(page)
    page.get_by_role("button", name="Run it here").click()
    wait_for_end(page, before)
    assert on_stage(page) == recorded(recorded_trace("lookup")), "greedy, so the same text"
    assert page.locator(".intro").inner_text().startswith(say("page.introduction"))
