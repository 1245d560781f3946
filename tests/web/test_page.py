"""A run on the page in a real browser: the settings, the text on the stage, and the answers to mistakes."""

from urllib.parse import urlsplit

import pytest

from tests.web.screen import (
    IN_TEXT,
    NOT_IN_TEXT,
    choose,
    first_token,
    generate,
    joined,
    notice,
    number,
    on_stage,
    open_examples,
    recorded,
    run,
    set_field,
    tokens,
    unfold,
    wait_for_end,
)

REPEATING = '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang'


@pytest.fixture(scope="module")
def shared(visit_for_all, url):
    """A page for the tests that set all they need."""
    return visit_for_all(url)


WAYS = {  # (what is chosen on the page, the same for the API, what must be seen)
    "model": (("the pair's drafter", "top-p"), {}, {"accepted", "rejected", "resampled"}),
    "lookup": (("lookup", "top-p"), {"draft_with": "lookup"}, {"sampled", "accepted"}),
    "none": (
        ("none: the target alone", "greedy"),
        {"draft_with": "none", "temperature": 0, "top_p": 1},
        {"sampled"},
    ),
}


@pytest.mark.parametrize(
    "way", ["model", *(pytest.param(way, marks=pytest.mark.slow) for way in ("lookup", "none"))]
)
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


def test_what_is_copied_is_the_text(shared):
    page = shared
    choose(page, "Drafting method", "the pair's drafter")
    choose(page, "Sampler", "multinomial")
    run(page, "Once upon a time,\nthere was", seed=3, max_new_tokens=40)
    page.get_by_role("button", name="discarded").click()
    shown = page.get_by_test_id("stage")
    assert all(shown.locator(f'[data-fate="{fate}"]:visible').count() for fate in NOT_IN_TEXT)
    # From a token of the text over some that are not in it.
    fates = [token["fate"] for token in tokens(page)]
    start = next(at for at, fate in enumerate(fates) if fate in IN_TEXT and fates[at + 1] in NOT_IN_TEXT)
    end = next(at for at in range(start + 1, len(fates)) if fates[at] in IN_TEXT)
    pieces = shown.locator("[data-fate]")
    drag(page, pieces.nth(start), pieces.nth(end))
    page.keyboard.press("Control+C")
    copied = pieces.nth(start).text_content() + pieces.nth(end).text_content()
    assert page.evaluate("navigator.clipboard.readText()").strip() == copied.strip()
    page.evaluate("getSelection().empty()")
    page.get_by_role("button", name="discarded").click()


def drag(page, start, end) -> None:
    start, end = (place.locator("b").bounding_box() for place in (start, end))
    page.mouse.move(start["x"] + 0.5, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + end["width"] - 0.5, end["y"] + end["height"] / 2, steps=5)
    page.mouse.up()


def test_mistakes_are_answered_beside_the_stage_and_break_nothing(shared):
    choose(shared, "Sampler", "multinomial")
    right = {"Prompt": "Once", "Max new tokens": 3, "Seed": 7}
    for wrong, value, sentence in (
        ("Prompt", "", "Prompt must not be empty: the target needs at least one token to continue"),
        ("Max new tokens", 2.5, "Max new tokens must be a whole number from 1 to 32,768, not 2.5"),
        ("Seed", "seven", "Seed must be a whole number from 0 to 9,007,199,254,740,991, not 'seven'"),
    ):
        for label, held in (right | {wrong: value}).items():
            set_field(shared, label, held)
        generate(shared)
        shared.get_by_test_id("notice").get_by_text(sentence, exact=True).wait_for()
    run(shared, seed=7)
    assert joined(tokens(shared), *IN_TEXT)


def test_what_is_impossible_or_pointless_is_said_beside_its_control(shared):
    page = shared
    choose(page, "Sampler", "top-k")
    warns(page, "Top-k", 0, "0 is off: nothing is filtered")
    choose(page, "Sampler", "greedy")
    warns(page, "Max new tokens", 100_000, "must be a whole number from 1 to 32,768")
    warns(page, "Max new tokens", 3, None)
    page.get_by_text("⚠ a draft is never longer than the rest of the text: at most 2 here").wait_for()


def warns(page, label: str, value, sentence: str | None) -> None:
    """The words belong to the control: they are a part of its label, which a screen reader says with it."""
    set_field(page, label, value)
    labels = page.locator("label, .block").filter(has=page.get_by_label(label))
    warned = labels.get_by_text(f"⚠ {sentence or ''}").first
    warned.wait_for(state="visible" if sentence else "detached")


def test_an_example_brings_its_drafting_method_and_another_takes_it_away(page):
    set_field(page, "Seed", 1)
    for question, method in (
        ("When does it lose?", "early exit"),
        ("How does it work?", "the pair's drafter"),
    ):
        before = first_token(page)
        open_examples(page)
        page.locator("#examples").get_by_text(question).click()
        drafts = page.get_by_role("combobox", name="Drafting method").element_handle()
        page.wait_for_function("([box, method]) => box.value === method", arg=[drafts, method])
        wait_for_end(page, before)  # one press runs it
        assert number(page, "acceptance_rate").endswith("%")


def test_a_stop_string_cuts_the_text_on_the_stage(shared, generated):
    page = shared
    choose(page, "Drafting method", "the pair's drafter")
    choose(page, "Sampler", "top-p")
    text = generated("Once", seed=5, max_new_tokens=30).text
    words = text.split()
    stop = f"{words[4][-2:]} {words[5][:2]}"  # not at a token's edge, and longer than one
    unfold(page, "Ending")
    run(page, "Once", seed=5, max_new_tokens=30, stop_strings=stop)
    assert number(page, "finish") == "stop"
    assert joined(tokens(page), *IN_TEXT) == text[: text.index(stop)]
