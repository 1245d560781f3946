"""A run while it goes on, for one visitor and several: reading, waiting, giving up, what frees the engine,
and how much comes at once."""

import re
from dataclasses import replace

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.kept import with_update
from tests.web.conftest import HOSTILE, RECORDED, listening, with_rounds
from tests.web.screen import (
    first_token,
    generate,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_settings,
    recorded,
    run,
    saved,
    tokens,
    wait_for_end,
    wait_for_rounds,
    wait_for_state,
)
from tests.web.server import served_here

LONG = 30_000  # tokens; the tiny pair is busy until it is stopped

WATCH = """stage => {
  const drawn = () => stage.querySelectorAll("[data-round]").length;
  window.most = 0;
  let before = drawn();
  requestAnimationFrame(function look() {
    const now = drawn();
    window.most = Math.max(most, now - before);
    before = now;
    if (!window.clickedAfter && now && document.querySelector(".run").dataset.state === "running") {
      stage.querySelector("[data-round]").click();
      window.clickedAfter = document.querySelector(".run[data-pinned]") && now;
    }
    requestAnimationFrame(look);
  });
}"""


@pytest.fixture(scope="module")
def busy(visit_for_all, endless):
    return visit_for_all(endless, still=True)


@pytest.fixture
def visitor(visit, browser):
    """visitor(url): a page in a browser of its own. The tabs of one share its six connections to a server."""
    contexts = []

    def visitor(url: str):
        contexts.append(browser.new_context())
        return visit(url, still=True, context=contexts[-1])

    yield visitor
    for context in contexts:
        context.close()


def test_before_any_model_is_there_the_page_can_be_used_and_a_load_can_be_given_up(visit, bare):
    page = visit(bare)
    wait_for_state(page, "running")  # the recorded run plays by itself, where motion is welcome
    page.locator(".stage [data-round]").first.wait_for()
    page.get_by_role("button", name="Skip").click()
    open_settings(page)
    page.get_by_text("Needs about").wait_for()  # nothing is loaded
    assert page.get_by_test_id("whose").text_content().startswith("Recorded run")
    generate(page, "Once")
    wait_for_state(page, "waiting")
    page.get_by_test_id("notice").get_by_text(re.compile(r"… [1-9]\d* s$")).wait_for()
    assert tokens(page) == []
    stop(page)
    assert notice(page, "note") == "Stopped before the run began."
    page.locator('.run:not([data-state="waiting"])').wait_for()


def test_a_run_can_be_read_while_it_goes_on(busy):
    page = busy
    generate(page, max_new_tokens=LONG)
    wait_for_rounds(page)
    for fate in ("accepted", "rejected"):
        page.locator(f".stage [data-fate={fate}] > b").first.hover()
        inspector(page).locator(".verdict").get_by_text(f"{fate.capitalize()}: ").wait_for()
    wait_for_state(page, "running")
    back = page.get_by_role("button", name="One round back")
    assert page.get_by_role("slider", name="Place in the run").is_disabled() and back.is_disabled()
    page.get_by_role("button", name="Stop").click()
    wait_for_state(page, "ended")
    rounds = int(number(page, "rounds"))
    back.click()
    assert number(page, "rounds") == str(rounds - 1)


def test_generate_pressed_in_a_run_tells_a_mistake_or_takes_its_place_and_stop_ends_it(busy):
    page = busy
    generate(page, max_new_tokens=LONG, seed=5)
    wait_for_rounds(page)
    generate(page, max_new_tokens=0)
    assert notice(page, "error").startswith("Max new tokens must be")
    wait_for_rounds(page, int(number(page, "rounds").replace(",", "")) + 3)  # it goes on
    generate(page, max_new_tokens=LONG, seed=6, temperature=2)
    page.locator('[data-number="seed"]').get_by_text("6", exact=True).wait_for(state="attached")
    wait_for_rounds(page, 20)
    stop(page)
    wait_for_end(page)
    assert number(page, "finish") == "cancelled" and saved(page).params.seed == 6
    shown = on_stage(page)
    assert shown == recorded(saved(page)), "of one run, and all of it"
    assert {one[3] for one in shown} & {*HOSTILE} and page.evaluate("window.hit") is None
    run(page, max_new_tokens=2)
    assert number(page, "tokens") == "2" and number(page, "finish") == "length"


def test_a_page_that_is_left_tells_the_server_which_frees_the_engine(busy):
    page = busy
    generate(page, max_new_tokens=LONG)
    wait_for_rounds(page)
    page.evaluate(
        """() => {
          const send = navigator.sendBeacon.bind(navigator);
          navigator.sendBeacon = (url) => { sessionStorage.setItem("told", url); return send(url); };
        }"""
    )
    page.reload()  # the address asks for the run again, which begins when the first one has ended
    assert page.evaluate("sessionStorage.getItem('told')").endswith("/stop")
    wait_for_rounds(page)
    stop(page)
    wait_for_end(page)
    page.broken.clear()  # Gradio's own cry, when it is left in the middle


def test_who_waits_knows_their_place_can_give_up_and_gets_a_turn_otherwise(visitor, busy, endless):
    first, second, third = busy, visitor(endless), visitor(endless)
    generate(first, max_new_tokens=LONG)
    wait_for_rounds(first)
    for place, page in enumerate((second, third), 1):
        generate(page, f"visitor {place}", seed=1, max_new_tokens=3)
        is_told(page, f"You are number {place} in line …")
        assert notice(page, "wait") and tokens(page) == []
        for told in ("verdict", "whose"):
            assert page.get_by_test_id(told).text_content() == "", "that of the run before is gone, too"
    for seed in (2, 3, 4):
        # Two requests at once may be taken in the other order, and the last one counts.
        with third.expect_request("**/specdemo/runs/*"):  # the page follows what has been taken
            generate(third, seed=seed)
    is_told(third, "You are number 2 in line …")  # its place, and it stands there once
    assert notice(second, "wait") == "You are number 1 in line …"
    stop(second)
    assert notice(second, "note") == "Stopped before the run began."
    is_told(third, "You are number 1 in line …")
    stop(first)
    wait_for_end(third)
    wait_for_end(first)
    assert (number(first, "finish"), number(third, "finish")) == ("cancelled", "length")
    assert joined(tokens(third), "prompt") == "visitor 2"
    assert number(third, "tokens") == "3" and number(third, "seed") == "4"
    assert joined(tokens(second), "prompt") != "visitor 1", "it never ran"


def test_a_burst_is_drawn_in_portions_between_which_the_page_answers(visit, url):
    page = visit(url, still=True)
    first = Trace.load(RECORDED)
    long = with_rounds(first, [first.rounds[index % 40] for index in range(400)])
    messages = []
    for until in range(8, 400, 8):
        so_far = replace(long, rounds=long.rounds[:until], finish=None)
        messages.append(with_update({}, RunFeed(so_far).update(until - 8)))
    whole = RunFeed(long)
    whole.ended = True
    messages.append(with_update({"ended": True}, whole.update(392)))
    burst = "".join(f"data: {message}\n\n" for message in messages)
    assert len(burst) < 1_200 * long.stats.tokens + 1_500 * len(messages), "what it costs on the wire"
    answer = {"body": burst, "content_type": "text/event-stream"}
    page.route("**/specdemo/runs/*", lambda route: route.fulfill(**answer))
    before = first_token(page)
    page.get_by_test_id("stage").evaluate(WATCH)
    generate(page)
    wait_for_end(page, before)
    shown, clicked_after = on_stage(page), page.evaluate("clickedAfter")
    assert shown == recorded(long)
    assert page.evaluate("most") < 250, "between two frames"
    assert 0 < clicked_after < len(shown) / 2


@pytest.mark.long
def test_a_page_whose_connections_are_all_cut_goes_on_where_it_was(browser, tmp_path):
    with served_here(tmp_path, LOCAL) as (url, demo):
        page, loads = listening(browser.new_page()), []
        page.on("load", lambda: loads.append(page.url))
        page.goto(url)
        page.locator('.run:not([data-state="empty"])').wait_for()
        generate(page, "Once", max_new_tokens=LONG, seed=3)
        wait_for_rounds(page)
        (table,) = demo.server.config.http_protocol_class.args
        for _ in range(3):
            seen = int(number(page, "rounds").replace(",", ""))
            for connection in [*table.open]:
                connection.loop.call_soon_threadsafe(connection.abandon)
            wait_for_rounds(page, seen + 5)  # it goes on
        stop(page)
        wait_for_end(page)
        assert len(loads) == 1, "the page was not loaded again"
        assert number(page, "finish") == "cancelled" and on_stage(page) == recorded(saved(page))
        page.close()


def stop(page) -> None:
    page.get_by_role("button", name="Stop").click()


def is_told(page, sentence: str) -> None:
    page.get_by_test_id("notice").get_by_text(sentence, exact=True).wait_for()
