"""Visitors, one and several: before any model is loaded, waiting and giving up, what frees the engine."""

import re
import time
from dataclasses import replace

import pytest
from gradio_client import Client

from specdemo.ui.runs.limits import HOSTED, LOCAL
from tests.web.screen import (
    choose,
    first_token,
    generate,
    joined,
    notice,
    number,
    on_stage,
    open_settings,
    recorded,
    run,
    saved,
    set_field,
    tokens,
    wait_for_end,
    wait_for_rounds,
    wait_for_state,
)
from tests.web.server import served_here

pytestmark = pytest.mark.slow

LONG = 30_000  # tokens; the tiny pair is busy for minutes


@pytest.fixture
def visitor(visit, browser):
    """visitor(url): a page in a browser of its own. The tabs of one share its six connections to a server."""
    return lambda url: visit(url, still=True, context=browser.new_context())


def test_the_page_can_be_used_before_any_model_is_there(visit, bare, capsys):
    start = time.perf_counter()
    page = visit(bare)
    page.locator(".stage [data-round]").first.wait_for()
    took = time.perf_counter() - start
    with capsys.disabled():
        print(f"\nthe page can be used {took:.1f} s after it was asked for")
    assert took < 60  # 1.5 s on an idle machine; the models never come
    open_settings(page)
    page.get_by_text("Needs about").wait_for()  # nothing is loaded
    assert notice(page, "recorded").startswith("A recorded run")
    set_field(page, "Prompt", "")
    page.locator("#hint").get_by_text("must not be empty").wait_for()


def test_loading_says_how_it_goes_on_and_can_be_given_up(visit, bare):
    page = visit(bare, still=True)
    generate(page, "Once")
    wait_for_state(page, "waiting")
    said = page.get_by_test_id("notice")
    said.get_by_text(re.compile(r"… ([2-9]|\d\d+) s$")).wait_for()
    assert tokens(page) == []
    page.get_by_role("button", name="Stop").click()
    assert notice(page, "note") == "Stopped before the run began."
    page.wait_for_timeout(1500)
    assert (
        said.text_content() == "Stopped before the run began."
        and page.locator('.run[data-state="waiting"]').count() == 0
    )


def test_stop_ends_the_run_at_once_and_the_next_one_works(visit, endless):
    page = visit(endless)
    choose(page, "Drafting method", "none: the target alone")
    generate(page, max_new_tokens=LONG)
    wait_for_rounds(page)
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert number(page, "finish") == "cancelled"
    assert "Drafting is off" in notice(page, "note")
    stopped = on_stage(page)
    assert {fate for fate, *_ in stopped} == {"sampled"} and f"{len(stopped):,}" == number(page, "tokens")
    page.wait_for_timeout(500)
    assert on_stage(page) == stopped, "nothing comes after the end"

    run(page, max_new_tokens=2)
    assert number(page, "tokens") == "2" and number(page, "finish") == "length"


@pytest.mark.parametrize("leave", ["close", "reload"])
def test_a_closed_tab_frees_the_engine(visit, endless, leave):
    page = visit(endless)
    generate(page, max_new_tokens=LONG)
    wait_for_rounds(page)
    left = time.monotonic()
    getattr(page, leave)()
    if leave == "reload":  # the address asks for the run again, which begins when the first one has ended
        wait_for_rounds(page)
        assert time.monotonic() - left < LOCAL.resume_seconds, "it was not told that its page has left"
        page.get_by_role("button", name="Stop").click()
    job = Client(endless, verbose=False).submit("Once", max_new_tokens=2, api_name="/generate")
    assert job.result(timeout=300)["trace"]["finish"] == "length"
    page.broken.clear()  # Gradio's own cry, when it is left in the middle


def test_who_waits_knows_their_place_can_give_up_and_gets_a_turn_otherwise(visitor, endless):
    first, second, third = (visitor(endless) for _ in range(3))
    generate(first, max_new_tokens=LONG)
    wait_for_rounds(first)
    for place, page in enumerate((second, third), 1):
        generate(page, f"visitor {place}", max_new_tokens=3)
        page.get_by_test_id("notice").get_by_text(f"You are number {place} in line").wait_for()
        assert notice(page, "wait") and tokens(page) == []
        for told in ("verdict", "whose"):
            assert page.get_by_test_id(told).text_content() == "", "that of the run before is gone, too"
    second.get_by_role("button", name="Stop").click()
    assert notice(second, "note") == "Stopped before the run began."
    third.get_by_test_id("notice").get_by_text("You are number 1 in line").wait_for()
    first.get_by_role("button", name="Stop").click()
    wait_for_end(third)
    wait_for_end(first)
    assert (number(first, "finish"), number(third, "finish")) == ("cancelled", "length")
    assert joined(tokens(third), "prompt") == "visitor 2" and number(third, "tokens") == "3"
    assert joined(tokens(second), "prompt") != "visitor 1", "it never ran"


def test_two_pages_at_once_both_get_the_run_that_they_asked_for(visitor, url):
    pages = [visitor(url) for _ in range(2)]
    before = [first_token(page) for page in pages]
    for seed, page in enumerate(pages):
        generate(page, f"visitor {seed}", seed=seed, max_new_tokens=30)
    for seed, page in enumerate(pages):
        wait_for_end(page, before[seed])
        assert joined(tokens(page), "prompt") == f"visitor {seed}" and number(page, "seed") == str(seed)


def test_generate_pressed_again_leaves_one_run(visit, endless):
    page = visit(endless, still=True)
    generate(page, max_new_tokens=LONG, seed=5)
    wait_for_rounds(page)
    generate(page, seed=6)
    page.wait_for_timeout(1000)
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert on_stage(page) == recorded(saved(page)), "of one run, and all of it"
    run(page, seed=7, max_new_tokens=2)
    assert number(page, "seed") == "7" and number(page, "tokens") == "2"


def test_generate_pressed_again_in_line_keeps_the_place_and_leaves_one_request(visitor, endless):
    first, second, third = (visitor(endless) for _ in range(3))
    generate(first, max_new_tokens=LONG)
    wait_for_rounds(first)
    for place, page in enumerate((second, third), 1):
        generate(page, seed=1, max_new_tokens=3)
        page.get_by_test_id("notice").get_by_text(f"You are number {place} in line").wait_for()
    for seed in range(2, 7):
        # Two requests at once may arrive in the other order, and the last to arrive counts.
        with second.expect_response(lambda answer: "/queue/join" in answer.url):
            generate(second, seed=seed, max_new_tokens=3)
    second.wait_for_timeout(1_000)
    for place, page in enumerate((second, third), 1):
        assert notice(page, "wait") == f"You are number {place} in line …"
    first.get_by_role("button", name="Stop").click()
    for page, seed in ((second, "6"), (third, "1")):
        wait_for_end(page)
        assert number(page, "seed") == seed and number(page, "finish") == "length"


def test_a_turn_that_takes_too_long_ends_and_says_why(visitor, tmp_path):
    with served_here(tmp_path, replace(HOSTED, run_seconds=0.3)) as (url, _):
        client = Client(url, verbose=False)
        last = client.predict("Once", max_new_tokens=1_000, alternatives=0, gamma=1, api_name="/generate")
        assert last["trace"]["finish"] == "cancelled" and last["note"].startswith(
            "This run was ended after 0.3 s"
        )
        page = visitor(url)
        run(page, max_new_tokens=1_000)
        assert number(page, "finish") == "cancelled" and notice(page, "note") == last["note"]
        set_field(page, "Max new tokens", "1001")
        page.get_by_text("must be a whole number from 1 to 1,000").wait_for()
        generate(page)
        assert notice(page, "error") == "Max new tokens must be a whole number from 1 to 1,000, not 1001"
        page.close()  # before the server, which it would miss


def test_a_mistake_during_a_run_is_told_and_the_run_goes_on(visit, endless):
    page = visit(endless, still=True)
    generate(page, max_new_tokens=30_000)
    wait_for_rounds(page)
    generate(page, max_new_tokens=0)
    assert notice(page, "error").startswith("Max new tokens must be")
    before = int(number(page, "rounds").replace(",", ""))
    wait_for_rounds(page, before + 5)
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert number(page, "finish") == "cancelled"
