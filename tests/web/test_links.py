"""Links in a real browser: opened, run, reloaded, gone back from, copied, and wrong ones."""

import time
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.web.conftest import HOSTILE, PATIENCE
from tests.web.screen import (
    IN_TEXT,
    box,
    generate,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_settings,
    recorded,
    run,
    tokens,
    unfold,
    wait_for_state,
)

PROMPT = "Once upon a time,\nthere was a <b>cat & dog"
HOW = {"gamma": "auto", "confidence": 0.3, "temperature": 0.9, "top_p": 1.0, "max_new_tokens": 30, "seed": 5}


def address(page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def link(url: str, **query) -> str:
    return f"{url}/?{urlencode(query)}"


def shows(page, prompt: str) -> None:
    page.wait_for_function(
        """prompt => document.querySelector(".run")?.dataset.state === "ended" && prompt ===
        [...document.querySelectorAll(".stage [data-fate=prompt]")].map((e) => e.textContent).join("")""",
        arg=prompt,
    )


@pytest.fixture(scope="module")
def opened(visit_for_all, url):
    """A page from a link that runs, pins a token, and has a name that Gradio reads."""
    page = visit_for_all(link(url, prompt=PROMPT, **HOW, run=1, token="2.0", __theme="dark"), still=True)
    shows(page, PROMPT)
    return page


def test_a_link_runs_and_shows_what_the_api_gives(opened, generated):
    trace = generated(PROMPT, **HOW)
    assert on_stage(opened) == recorded(trace) and joined(tokens(opened), *IN_TEXT) == trace.text
    assert inspector(opened).locator(".where").text_content().startswith("round 3, ")
    assert f", γ {trace.rounds[2].gamma}" in inspector(opened).locator(".where").text_content()
    unsure = [one for one in trace.rounds if one.ended_by == "confidence"]
    marks = opened.get_by_test_id("timeline").get_by_role("button", name="the drafter was not sure enough")
    assert marks.count() == len(unsure) > 0
    held = address(opened)
    named = {"prompt": PROMPT, "pair": trace.pair.name, "seed": "5", "gamma": "auto", "confidence": "0.3"}
    assert named | {"run": "1", "token": "2.0", "__theme": "dark"} == {
        name: held[name] for name in (*named, "run", "token", "__theme")
    }
    open_settings(opened)
    assert box(opened, "Prompt").input_value() == PROMPT and box(opened, "Seed").input_value() == "5"
    assert opened.get_by_label("Choose γ round by round").is_checked()
    opened.get_by_label("Draft length γ").first.wait_for(state="hidden")


def test_reload_back_and_a_copied_link_show_the_same_again(opened):
    page = opened
    first, url = on_stage(page), page.url
    page.reload()
    shows(page, PROMPT)
    assert on_stage(page) == first and page.url == url

    run(page, "Tom", seed="")
    drawn = number(page, "seed")
    assert {"prompt": "Tom", "seed": drawn}.items() <= address(page).items() and "token" not in address(page)
    second = on_stage(page)
    page.locator(".stage [data-round] > b").first.click()
    page.wait_for_url(lambda url: "token=0.0" in url)
    copied = copy(page, "Copied")
    assert copied == page.url
    page.go_back()
    shows(page, PROMPT)
    assert on_stage(page) == first
    page.goto(copied)
    shows(page, "Tom")
    assert on_stage(page) == second
    assert inspector(page).locator(".where").text_content().startswith("round 1, ")


def copy(page, said: str) -> str:
    page.get_by_role("button", name="Copy link").click()
    page.get_by_test_id("notice").get_by_text(said).wait_for()
    return page.evaluate("navigator.clipboard.readText()")


def test_a_prompt_that_is_too_long_for_a_link_is_left_out_and_the_copy_says_so(opened):
    generate(opened, "wonderful " * 850, max_new_tokens=1)
    opened.wait_for_function(
        "() => location.search.includes('pair=') && !location.search.includes('prompt=')"
    )
    assert "run" not in address(opened) and len(opened.url) < 8_000
    copy(opened, "without its prompt")


def test_settings_without_run_fill_the_controls_only_and_a_hostile_text_is_text(visit, bare):
    text = " ".join(HOSTILE[:5])
    how = {"prompt": text, "system": text, "chat": "true", "stop": text, "gamma": 9, "draft_with": "ngram"}
    page = visit(link(bare, **how, foo=1, __sign="x"), still=True)
    assert notice(page, "note") == "Not known in an address, and so ignored: foo."
    unfold(page, "Chat")
    page.get_by_role("slider", name="N-gram length").wait_for()
    assert box(page, "Prompt").input_value() == text and box(page, "Draft length γ").input_value() == "9"
    assert box(page, "System prompt").input_value() == text and page.evaluate("window.hit") is None
    wait_for_state(page, "recorded")
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_what_is_wrong_in_a_link_is_told_however_late_the_first_run_comes_and_nothing_runs(desk, visit, bare):
    pattern = "**/first/whole"
    desk.route(pattern, lambda route: (time.sleep(1), route.continue_()))
    page = visit(link(bare, prompt="Tom", gamma=99, run=1), still=True)
    desk.unroute(pattern)
    refused = "Draft length γ must be a whole number from 1 to 16 or auto, not 99"
    page.get_by_test_id("notice").get_by_text(refused).wait_for()
    wait_for_state(page, "recorded")
    assert notice(page, "error") == refused and box(page, "Prompt").input_value() != "Tom"
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_a_link_to_a_pair_that_is_not_loaded_asks_first(visit, url):
    asked = link(url, prompt="Tom", pair="embedded", dtype="bfloat16", max_new_tokens=5, seed=1, run=1)
    page = visit(asked, still=True)
    said = "which is not loaded: press Generate to load and run it"
    page.get_by_test_id("notice").get_by_text(said).wait_for()
    assert box(page, "Prompt").input_value() == "Tom"
    page.get_by_role("button", name="Generate").click()
    shows(page, "Tom")
    assert number(page, "tokens") == "5" and address(page)["dtype"] == "bfloat16"


def test_a_late_answer_to_the_address_leaves_what_was_typed_meanwhile(desk, bare):
    """On a slow line the page can be used before the server has answered to its address."""
    page, held, released = desk.new_page(), [], []
    page.set_default_timeout(PATIENCE)
    page.route("**/gradio_api/run/**", lambda route: route.continue_() if released else held.append(route))
    page.goto(f"{bare}/?gamma=2")
    page.get_by_role("button", name="Generate").wait_for()
    while not held:  # the server has not been asked yet
        page.wait_for_timeout(100)
    box(page, "Prompt").fill("mine")
    released.append(True)
    for route in held:
        route.continue_()
    page.wait_for_function("box => box.value === '2'", arg=box(page, "Draft length γ").element_handle())
    assert box(page, "Prompt").input_value() == "mine"
    page.close()


def test_a_copied_link_names_the_start_run_and_brings_back_the_figure_with_its_mistake(visit, bare):
    page = visit(bare, still=True)
    wait_for_state(page, "recorded")
    assert address(page) == {}
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    page.get_by_role("tab", name="Why it is exact").click()
    figure = page.get_by_test_id("figure")
    figure.get_by_role("button", name="Take them from the pinned token").click()
    page.get_by_role("tab", name="Text").click()
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Why it is exact").click()
    figure.get_by_role("button", name="replace from p").click()
    figure.get_by_role("slider", name="q of ").nth(1).press("PageUp")
    figure.locator(".verdicts .u").press("Home")
    before = shown_by(figure)
    copied = copy(page, "Copied")
    held = address(page)
    assert copied == page.url and held["trace"] == "first" and held["tab"] == "figure" and "token" not in held
    assert (held["figure_mistakes"], held["figure_u"]) == ("from_p", "0") and "figure_p" not in held
    page.reload()
    figure.get_by_role("button", name="replace from p", pressed=True).wait_for()
    assert shown_by(figure) == before and page.url == copied
    said = 'The recording "first" was made again after this link was copied'
    earlier = visit(copied.replace(held["digest"], "00000000"), still=True)
    earlier.get_by_test_id("notice").get_by_text(said).wait_for()


def shown_by(figure) -> list[str]:
    tables = figure.get_by_role("table").all_text_contents()
    return [*tables, *figure.locator(".answer, .whys, .outcome-of-one, .place").all_text_contents()]
