"""What a long run costs on the wire and in the browser, and that it can be read while it goes on."""

import re

import pytest

from specdemo.ui.page.frame import STATIC
from tests.web.screen import (
    choose,
    inspector,
    number,
    run,
    saved,
    set_field,
    unfold,
    wait_for_rounds,
    wait_for_state,
)

pytestmark = pytest.mark.slow


class Meter:
    """The bytes that a page gets and the processor time of its main thread, from here on."""

    def __init__(self, page):
        self.bytes = 0
        self.session = page.context.new_cdp_session(page)
        self.session.on("Network.dataReceived", self._received)
        self.session.send("Network.enable")
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.before = self._spent()

    def _received(self, event) -> None:
        self.bytes += event["dataLength"]

    def _spent(self) -> float:
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def seconds(self) -> float:
        return self._spent() - self.before


@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.long)])
def test_what_a_token_with_five_alternatives_costs(visit, url, count, capsys):
    page = visit(url, still=True)
    choose(page, "Sampler", "multinomial")
    unfold(page, "Ending")
    page.get_by_label("Continue past").check()
    run(page, "Once upon a time", seed=7, max_new_tokens=2)  # the pair is there, and the page is warm
    meter = Meter(page)
    run(page, max_new_tokens=count)
    size, seconds, trace = meter.bytes, meter.seconds(), saved(page)
    with capsys.disabled():
        print(f"\n{count:,} tokens, {size / count:,.0f} bytes each, in {len(trace.rounds)} rounds")
        print(f"{seconds:.2f} s on the page's main thread (goal {count / 400:.1f})")
    assert trace.stats.tokens == count
    assert all(len(token.top) >= 5 for one in trace.rounds for token in one.draft if token.u is not None)
    # In a slow run each round comes in a message of its own, with the run's numbers.
    assert 100 * count <= size <= 1_200 * count + 1_500 * len(trace.rounds)
    assert seconds < 5 + count / 50
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
    for file in STATIC.rglob("*.js"):
        spread = re.findall(rf"\b(?:{takes_any})\([^()]*\.\.\.\w+.*", file.read_text(encoding="utf-8"))
        assert spread == [], file
