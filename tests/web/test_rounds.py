"""The timeline, the numbers and the replay in a real browser, against the trace."""

import re

import pytest

from specdemo.ui.view.texts import HEADLINE, NUMBERS, number_texts
from specdemo.ui.view.words import say
from tests.web.screen import inspector, number, on_stage, open_trace, recorded, wait_for_state

pytestmark = pytest.mark.slow

HEIGHTS = """all => all.map((mark) => getComputedStyle(mark).backgroundSize.split(", ")
  .map((size) => parseFloat(size.split(" ")[1])))"""
LIT = "all => all.flatMap((e, at) => getComputedStyle(e).boxShadow === 'none' ? [] : [at])"


@pytest.fixture(scope="module")
def page(visit_for_all, bare, every_fate):
    """A page with a run on its stage."""
    page = visit_for_all(bare, still=True)
    open_trace(page, every_fate[0])
    wait_for_state(page, "recorded")
    return page


@pytest.fixture(scope="module")
def trace(every_fate):
    return every_fate[1]


def marks(page):
    return page.get_by_test_id("timeline").get_by_role("button", name=re.compile("^round"))


def test_a_mark_is_as_high_as_what_its_round_brought_and_what_it_cost(page, trace):
    """As painted: the layers of its background are bricks above the line and bars below it."""
    painted = marks(page).evaluate_all(HEIGHTS)
    kept = [sum(token.fate == "accepted" for token in one.draft) for one in trace.rounds]
    brick = max(layers[0] / count for layers, count in zip(painted, kept, strict=True) if count)
    longest = max(max(layers[4:]) for layers in painted)  # longer bars end there
    per_ms = max(layers[5] / one.verify_ms for layers, one in zip(painted, trace.rounds, strict=True))
    for (accepted, own, dropped, _, *bars), count, one in zip(painted, kept, trace.rounds, strict=True):
        assert brick > 2 and accepted == pytest.approx(count * brick) and (own > 2) == (one.next is not None)
        assert dropped == pytest.approx((len(one.draft) - count) * brick)
        costs = [min(ms * per_ms, longest) for ms in (one.draft_ms, one.verify_ms)]
        assert bars == pytest.approx(costs, abs=0.1)


def test_a_click_jumps_to_the_round_and_pins_its_first_token(page, trace):
    for index in (len(trace.rounds) - 1, 2):
        marks(page).nth(index).click()
        inspector(page).get_by_role("button", name="pinned").wait_for()
        assert inspector(page).locator(".where").text_content().startswith(f"round {index + 1}, ")
        pinned = page.locator(".stage .pinned")
        assert pinned.get_attribute("data-round") == str(index)
        stage, token = page.get_by_test_id("stage").bounding_box(), pinned.locator("b").bounding_box()
        assert stage["y"] <= token["y"] and token["y"] + token["height"] <= stage["y"] + stage["height"]
    page.keyboard.press("Escape")
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")


def test_the_round_under_the_pointer_lights_up_in_the_text_and_the_other_way_round(page, trace):
    words = page.locator(".stage [data-round] > b")
    rounds = page.locator(".stage [data-round]").evaluate_all("all => all.map(e => Number(e.dataset.round))")
    for index in (1, 4):
        marks(page).nth(index).hover()
        assert words.evaluate_all(LIT) == [at for at, of in enumerate(rounds) if of == index]
        readout = page.get_by_test_id("timeline").locator(".readout")
        assert readout.text_content() == marks(page).nth(index).get_attribute("aria-label")
    page.mouse.move(5, 5)
    assert words.evaluate_all(LIT) == []
    words.nth(rounds.index(3)).hover()
    assert marks(page).evaluate_all(LIT) == [3]
    page.mouse.move(5, 5)
    assert marks(page).evaluate_all(LIT) == [] == words.evaluate_all(LIT)


def test_each_number_has_its_definition_when_pointed_at(page):
    metrics = page.get_by_test_id("metrics")
    definitions = metrics.locator(".definition:visible")
    page.get_by_text("All numbers").click()
    page.mouse.move(5, 5)
    assert definitions.count() == 0
    for name in NUMBERS:
        entry = (
            page.get_by_test_id("metrics").locator("div").filter(has=page.locator(f'[data-number="{name}"]'))
        )
        if name == HEADLINE and not entry.is_visible():
            continue  # this run has no speed-up, and another number stands there
        entry.hover()
        assert definitions.all_text_contents() == [say(f"run.numbers.{name}.definition")]
        assert entry.locator("dt").text_content() == say(f"run.numbers.{name}.name")
        shown = definitions.bounding_box()
        assert shown["x"] >= 0 and shown["x"] + shown["width"] <= 1280
    page.get_by_text("All numbers").click()


def test_a_replay_plays_the_same_run_again_and_can_be_skipped(page, trace):
    assert {name: number(page, name) for name in NUMBERS} == number_texts(trace)
    page.get_by_test_id("replay").get_by_role("combobox").select_option(label="1/10 of engine speed")
    page.get_by_role("button", name="Replay").click()
    wait_for_state(page, "running")
    page.wait_for_function("() => Number(document.querySelector('[data-number=rounds]').textContent) >= 2")
    assert 0 < int(number(page, "tokens")) < trace.stats.tokens and number(page, "finish") == "–"
    assert marks(page).count() < len(trace.rounds)
    page.get_by_role("button", name="Skip").click()
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace) and marks(page).count() == len(trace.rounds)
    assert {name: number(page, name) for name in NUMBERS} == number_texts(trace)
