"""What a run costs on the wire, and that it can be read while it goes on, however fast it comes."""

import re
from dataclasses import replace

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.page.frame import STATIC
from specdemo.ui.view.feed import RunFeed, with_update
from tests.web.conftest import RECORDED, with_rounds
from tests.web.screen import (
    choose,
    first_token,
    generate,
    inspector,
    number,
    on_stage,
    recorded,
    run,
    saved,
    set_field,
    unfold,
    wait_for_end,
    wait_for_rounds,
    wait_for_state,
)

pytestmark = pytest.mark.slow

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


def test_what_a_token_with_five_alternatives_costs_on_the_wire(visit, url, capsys):
    page, count, received = visit(url, still=True), 200, []
    choose(page, "Sampler", "multinomial")
    unfold(page, "Ending")
    page.get_by_label("Continue past").check()
    run(page, "Once upon a time", seed=7, max_new_tokens=2)  # the pair is there
    session = page.context.new_cdp_session(page)
    session.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
    session.send("Network.enable")
    run(page, max_new_tokens=count)
    size, trace = sum(received), saved(page)
    with capsys.disabled():
        print(f"\n{count:,} tokens, {size / count:,.0f} bytes each, in {len(trace.rounds)} rounds")
    assert trace.stats.tokens == count
    assert all(len(token.top) >= 5 for one in trace.rounds for token in one.draft if token.u is not None)
    # In a slow run each round comes in a message of its own, with the run's numbers.
    assert 100 * count <= size <= 1_200 * count + 1_500 * len(trace.rounds)
    assert page.locator(".stage [data-round]").count() == sum(
        len(one.draft) + (one.next is not None) for one in trace.rounds
    )


def test_a_run_can_be_read_while_it_goes_on(visit, endless):
    page = visit(endless, still=True)
    set_field(page, "Max new tokens", 30_000)
    page.get_by_role("button", name="Generate").click()
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


def test_no_script_makes_a_call_with_an_argument_for_each_token():
    """From about 120,000 arguments on, a browser refuses."""
    takes_any = r"append|prepend|before|after|replaceChildren|push|unshift|splice|max|min|fromCharCode"
    spread = re.compile(rf"\b(?:{takes_any})" + r"\([^(){}]*\.\.\.\w.*")
    for file in STATIC.rglob("*.js"):
        assert spread.findall(file.read_text(encoding="utf-8")) == [], file


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
    page.route(
        "**/specdemo/runs/*", lambda route: route.fulfill(body=burst, content_type="text/event-stream")
    )
    before = first_token(page)
    page.get_by_test_id("stage").evaluate(WATCH)
    generate(page)
    wait_for_end(page, before)
    shown, clicked_after = on_stage(page), page.evaluate("clickedAfter")
    assert shown == recorded(long)
    assert page.evaluate("most") < 250, "between two frames"
    assert 0 < clicked_after < len(shown) / 2
