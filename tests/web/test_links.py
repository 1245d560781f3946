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
    wait_for_state,
)

pytestmark = pytest.mark.slow
PROMPT = "Once upon a time,\nthere was a <b>cat & dog"
HOW = {"gamma": 3, "temperature": 0.9, "top_p": 1.0, "max_new_tokens": 30, "seed": 5}


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
    assert box(opened, "Draft length γ").input_value() == "3" and box(opened, "Seed").input_value() == "5"
    assert box(opened, "Prompt").input_value() == PROMPT
    assert inspector(opened).locator(".where").text_content().startswith("round 3, ")
    held = address(opened)
    assert held["__theme"] == "dark" and held["token"] == "2.0" and held["run"] == "1"
    assert {name: held[name] for name in ("prompt", "pair", "seed", "gamma")} == {
        "prompt": PROMPT, "pair": trace.pair.name, "seed": "5", "gamma": "3"
    }  # fmt: skip


def test_reload_back_and_a_copied_link_show_the_same_again(opened):
    page = opened
    first, url = on_stage(page), page.url
    page.reload()
    shows(page, PROMPT)
    assert on_stage(page) == first and page.url == url

    run(page, "Tom", seed="")
    drawn = number(page, "seed")
    assert (
        address(page)["prompt"] == "Tom" and address(page)["seed"] == drawn and "token" not in address(page)
    )
    second = on_stage(page)
    page.locator(".stage [data-round] > b").first.click()
    page.wait_for_url(lambda url: "token=0.0" in url)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_test_id("notice").get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url
    page.go_back()
    shows(page, PROMPT)
    assert on_stage(page) == first
    page.goto(copied)
    shows(page, "Tom")
    assert on_stage(page) == second and inspector(page).locator(".where").text_content().startswith(
        "round 1, "
    )


def test_settings_without_run_fill_the_controls_only(visit, bare):
    page = visit(link(bare, prompt="Tom", gamma=9, draft_with="ngram", foo=1, __sign="x"), still=True)
    assert notice(page, "note") == "Not known in an address, and so ignored: foo."
    open_settings(page)
    page.get_by_role("slider", name="N-gram length").wait_for()
    assert box(page, "Prompt").input_value() == "Tom" and box(page, "Draft length γ").input_value() == "9"
    wait_for_state(page, "recorded")
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_a_hostile_prompt_is_text(visit, bare):
    text = " ".join(HOSTILE[:5])
    page = visit(link(bare, prompt=text, run=1, system=text, chat="true", stop=text), still=True)
    wait_for_state(page, "waiting")
    assert box(page, "Prompt").input_value() == text and page.evaluate("window.hit") is None


@pytest.mark.parametrize(
    "query, sentence",
    [
        ({"gamma": 99, "run": 1}, "Draft length γ must be a whole number from 1 to 16 or auto, not 99"),
        ({"pair": "<img src=x onerror=window.hit=1>"}, "Pair must be one of "),
        ({"token": "x"}, "token must be ROUND.PLACE, two whole numbers, not 'x'"),
    ],
)
def test_what_is_wrong_in_a_link_is_refused_and_nothing_runs(visit, bare, query, sentence):
    page = visit(link(bare, prompt="Tom", **query), still=True)
    assert notice(page, "error").startswith(sentence)
    page.wait_for_timeout(500)
    wait_for_state(page, "recorded")
    assert box(page, "Prompt").input_value() != "Tom" and page.evaluate("window.hit") is None


def test_what_is_wrong_in_a_link_is_told_however_late_the_first_run_comes(browser, bare):
    page = browser.new_page(reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    page.route("**/first/whole", lambda route: (time.sleep(1), route.continue_()))
    page.goto(link(bare, prompt="Tom", gamma=99))
    wait_for_state(page, "recorded")
    page.get_by_test_id("notice").get_by_text("not 99").wait_for()
    page.wait_for_timeout(1_500)
    assert notice(page, "error").endswith("not 99")
    page.close()


def test_a_link_to_a_pair_that_is_not_loaded_asks_first(visit, url):
    asked = link(url, prompt="Tom", pair="embedded", dtype="bfloat16", max_new_tokens=5, seed=1, run=1)
    page = visit(asked, still=True)
    page.get_by_test_id("notice").get_by_text(
        "which is not loaded: press Generate to load and run it"
    ).wait_for()
    assert box(page, "Prompt").input_value() == "Tom"
    page.get_by_role("button", name="Generate").click()
    shows(page, "Tom")
    assert number(page, "tokens") == "5" and address(page)["dtype"] == "bfloat16"
    page.reload()
    shows(page, "Tom")  # now it is loaded


def test_a_prompt_that_is_too_long_for_a_link_is_left_out_and_the_copy_says_so(visit, url):
    page = visit(url, still=True)
    generate(page, "wonderful " * 850, max_new_tokens=1)
    page.wait_for_function("() => location.search.includes('pair=')")
    assert "prompt" not in address(page) and "run" not in address(page) and len(page.url) < 8_000
    page.get_by_role("button", name="Copy link").click()
    page.get_by_test_id("notice").get_by_text("without its prompt").wait_for()


def test_a_late_answer_to_the_address_leaves_what_was_typed_meanwhile(desk, url):
    """On a slow line the page can be used before the server has answered to its address."""
    page, held, released = desk.new_page(), [], []
    page.set_default_timeout(PATIENCE)
    page.route("**/gradio_api/run/**", lambda route: route.continue_() if released else held.append(route))
    page.goto(f"{url}/?gamma=2")
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


def test_a_length_chosen_round_by_round_is_shown_round_by_round(visit, url, generated):
    how = HOW | {"gamma": "auto", "confidence": 0.3}
    page = visit(link(url, prompt=PROMPT, **how, run=1, token="1.0"), still=True)
    shows(page, PROMPT)
    trace = generated(PROMPT, **how)
    assert on_stage(page) == recorded(trace)
    open_settings(page)
    assert page.get_by_label("Choose γ round by round").is_checked()
    page.get_by_label("Draft length γ").first.wait_for(state="hidden")
    assert f", γ {trace.rounds[1].gamma}" in inspector(page).locator(".where").text_content()
    unsure = [one for one in trace.rounds if one.ended_by == "confidence"]
    marks = page.get_by_test_id("timeline").get_by_role("button", name="the drafter was not sure enough")
    assert marks.count() == len(unsure) > 0
    assert address(page)["gamma"] == "auto" and address(page)["confidence"] == "0.3"
