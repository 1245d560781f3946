"""A run in a real browser, against its trace: the inspector, the timeline, the numbers and the replay.
tests/js/verdict.test.js tests what the inspector writes."""

import json
import re
from dataclasses import replace

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.view.texts import HEADLINE, NUMBERS, number_texts
from specdemo.words.catalogue import say
from tests.web.conftest import RECORDED, with_rounds
from tests.web.screen import fates, inspector, number, on_stage, open_trace, recorded, wait_for_state

READ = """panel => {
  const text = (selector, from = panel) => from.querySelector(selector)?.textContent ?? "";
  const pixels = (element, sign, side) => parseFloat(getComputedStyle(element, sign)[side]);
  const share = (element, of, sign, side) => pixels(element, sign, side) / of.clientWidth;
  const bar = panel.querySelector(".judgement");
  const sides = bar.querySelector(".sides");
  const shares = () => ({
    threshold: share(sides.firstElementChild, sides, null, "width"),
    u: share(sides, sides, "::after", "left"),
  });
  return {
    where: text(".where"), quote: text(".what code"), fate: text(".what .token"), id: text(".what small"),
    verdict: text(".verdict"),
    values: [...panel.querySelectorAll(".values dd")].map((value) => Number(value.title)),
    rows: [...panel.querySelectorAll(".likely tbody tr")].map((row) => ({
      id: row.querySelector("th").title, drawn: row.querySelectorAll(".drawn").length,
      cells: Object.fromEntries([...row.querySelectorAll("td.p, td.q, td.residual")].map((cell) =>
        [cell.classList[cell.classList.length - 1], [cell.title, share(cell, cell, "::before", "width")]])),
    })),
    bar: bar.checkVisibility() && shares(),
  };
}"""

# What scrolls in the inspector, or is wider than it.
INSIDE = """panel => [panel, ...panel.querySelectorAll("*")].filter((e) => e.checkVisibility())
  .filter((e) => /auto|scroll/.test(getComputedStyle(e).overflow)
    || e.getBoundingClientRect().right > panel.getBoundingClientRect().right + 9)
  .map((e) => e.outerHTML.slice(0, 80))"""
HEIGHTS = """all => all.map((mark) => getComputedStyle(mark).backgroundSize.split(", ")
  .map((size) => parseFloat(size.split(" ")[1])))"""
LIT = "all => all.flatMap((e, at) => getComputedStyle(e).boxShadow === 'none' ? [] : [at])"
ANIMATIONS = "e => e.getAnimations({ subtree: true }).length"
SIGN = "e => getComputedStyle(e, '::before').content"


@pytest.fixture(scope="module")
def page(visit_for_all, bare, every_fate):
    """A page that shows tokens of every fate."""
    page = visit_for_all(bare, still=True)
    open_trace(page, every_fate[0])
    wait_for_state(page, "recorded")
    page.get_by_role("button", name="discarded").click()  # all of them are shown
    return page


@pytest.fixture(scope="module")
def trace(every_fate) -> Trace:
    return every_fate[1]


@pytest.fixture(scope="module")
def every(every_fate) -> list[tuple]:
    """(round, fate, token) of each token of it, in reading order."""
    return [(one, fate, token) for one in every_fate[1].rounds for fate, token in fates(one)]


def point(element) -> dict:
    """What the inspector shows of a token that the pointer is on."""
    element.locator("b").hover()
    return inspector(element.page).evaluate(READ)


@pytest.mark.parametrize("fate", ["accepted", "rejected", "discarded", "resampled", "bonus", "sampled"])
def test_it_shows_the_numbers_of_the_trace_whole_and_as_bars(page, every, fate):
    place = next(at for at, (_, its, token) in enumerate(every) if its == fate and token.text.strip())
    one, _, token = every[place]
    shown = point(page.locator(".stage [data-round]").nth(place))
    assert (shown["quote"], shown["fate"]) == (json.dumps(token.text, ensure_ascii=False), fate)
    assert shown["id"] == f"token {token.id}" and shown["where"].startswith(f"round {one.index + 1}, ")
    assert shown["verdict"].startswith(fate.capitalize())
    told = {token.p, token.q, token.u} - {None}
    assert told <= {*shown["values"]}

    rejected = next((draft for draft in one.draft if draft.fate == "rejected"), None)
    judged = rejected if fate == "resampled" else token
    decided = getattr(judged, "accept_prob", None)
    bar = {"threshold": decided, "u": judged.u}
    assert shown["bar"] == (False if decided is None else pytest.approx(bar, abs=0.02))

    rows = {row["id"]: row for row in shown["rows"]}
    drawn = [token, one.next] if fate == "rejected" else [token, rejected] if fate == "resampled" else [token]
    assert {name for name, row in rows.items() if row["drawn"]} == {f"token {draw.id}" for draw in drawn}
    for token_id, _, p, q, *_ in () if fate == "discarded" else token.top:
        expected = {"p": p} if q is None else {"p": p, "q": q}
        if fate in ("rejected", "resampled"):
            expected["residual"] = max(p - q, 0) / one.next.residual_mass
        cells = rows[f"token {token_id}"]["cells"]
        written = {column: float(title.split(",")[0]) for column, (title, _) in cells.items()}
        assert written == pytest.approx(expected, abs=1e-5)
        assert {column: bar for column, (_, bar) in cells.items()} == pytest.approx(written, abs=0.02)


def test_a_resampled_token_s_numbers_are_told_from_those_of_the_one_that_it_replaced(page, every):
    at = next(at for at, (_, fate, token) in enumerate(every) if fate == "resampled" and token.text.strip())
    one, _, token = every[at]
    rejected = next(draft for draft in one.draft if draft.fate == "rejected")
    words = page.locator(".stage [data-round]")
    point(words.nth(at))
    judged, numbers = (inspector(page).locator(name) for name in (".judged", ".values-of"))
    assert rejected.text.strip() in judged.inner_text() and token.text.strip() not in judged.inner_text()
    assert token.text.strip() in numbers.inner_text() and rejected.text.strip() not in numbers.inner_text()
    point(words.nth(at - 1))
    assert not numbers.is_visible(), "all numbers of another token are its own"


def test_hovering_shows_and_a_click_pins_until_it_is_unpinned(page):
    tokens = page.locator(".stage [data-round]")
    one, other = [at for at, text in enumerate(tokens.all_text_contents()) if text.strip()][:2]
    first, second = point(tokens.nth(one)), point(tokens.nth(other))
    assert first != second
    pinned = tokens.nth(one).locator("b")
    unpin = inspector(page).get_by_role("button", name="pinned")
    for release in (lambda: page.keyboard.press("Escape"), unpin.click, pinned.click):
        pinned.click()
        assert point(tokens.nth(other)) == first, "what is pinned stays"
        release()
        is_unpinned(page)
    assert point(tokens.nth(other)) == second


def is_unpinned(page) -> None:
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")
    assert page.locator(".stage .pinned").count() == 0


def test_arrow_keys_and_escape_work_from_where_the_mouse_has_pinned(page):
    tokens = page.locator(".stage [data-round]")
    shown = [point(tokens.nth(at)) for at in range(3)]
    for _ in range(2):  # the second time it is the token that Tab comes to already
        tokens.nth(1).locator("b").click()
        page.mouse.move(5, 5)
        page.keyboard.press("ArrowRight")
        assert inspector(page).evaluate(READ) == shown[2]
        page.keyboard.press("ArrowLeft")
        assert inspector(page).evaluate(READ) == shown[1]
        page.keyboard.press("Escape")
        is_unpinned(page)


def test_nothing_scrolls_inside_the_inspector(page):
    for _ in range(2):  # with the numbers, and with the formulas
        for fate in ("rejected", "resampled"):
            page.locator(f'.stage [data-fate="{fate}"] > b').nth(1).click()
            for width in (820, 1024, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                assert inspector(page).evaluate(INSIDE) == [], width
        inspector(page).locator(".formulas summary").click()
    page.keyboard.press("Escape")


def test_three_signs_for_three_things_without_a_text(page, every_fate, tmp_path):
    run = Trace.load(RECORDED)
    first = run.rounds[0]
    part = replace(first.next, text="", top=((first.next.id, "\ufffd", 0.5, None, 0.5, None),))
    with_rounds(run, (replace(first, next=part), *run.rounds[1:])).save(tmp_path / "signs.json")
    open_trace(page, tmp_path / "signs.json")
    signs = []
    for sign, explained in (
        ("◌", "Part of a character: the token that completes it shows it."),
        (say("view.signs.end"), "End of the text: it adds nothing to the text."),
    ):
        token = page.locator(f'.stage .none[data-sign="{sign}"]')
        token.hover()
        assert inspector(page).locator(".stands-for").text_content() == explained
        signs.append(token.evaluate(SIGN))
        assert inspector(page).locator(".what code").evaluate(SIGN) == signs[-1]
    point(page.locator('.stage [data-fate="accepted"]').first)
    assert inspector(page).locator(".stands-for").text_content() == ""
    assert signs == ['"◌"', f'"{say("view.signs.end")}"'] and say("view.signs.start") not in signs[1]
    open_trace(page, every_fate[0])
    wait_for_state(page, "recorded")


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
        if name in (HEADLINE, "segments", "experts_read") and not entry.is_visible():
            continue  # this run has no speed-up, segments or experts
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


def test_below_the_cue_is_a_round_in_slow_motion_and_the_cue_goes_when_followed(visit, bare, every_fate):
    page = visit(bare, still=True)
    slow, run = inspector(page).locator(".slow-motion"), Trace.load(RECORDED)
    shown = slow.inner_text()
    assert f"{run.stats.target_step_ms:.2f} ms" in shown and "5 rows took 1.39 ×" in shown
    drafting, reading = (slow.locator(f".lane:last-of-type > .{name}") for name in ("drafted", "weights"))
    ms = [sum(getattr(one, name) for one in run.rounds) for name in ("draft_ms", "verify_ms")]
    share = drafting.bounding_box()["width"] / reading.bounding_box()["width"]
    assert share == pytest.approx(ms[0] / ms[1], rel=0.03) and slow.locator(".rows > i").count() == 1 + 5
    assert slow.evaluate(ANIMATIONS) == 0, "it is still"
    cue, hint, formulas = (inspector(page).locator(name) for name in (".cue", ".hint", ".formulas summary"))
    assert cue.text_content() == "Point at a red word to see why."
    assert cue.is_visible() and not hint.is_visible() and not formulas.is_visible()
    page.locator('.stage [data-fate="accepted"] > b').first.hover()
    assert not cue.is_visible() and formulas.is_visible() and not slow.is_visible()
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Skip").click()
    cue.wait_for()  # nothing red was pointed at
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    assert not cue.is_visible() and not hint.is_visible()
    page.keyboard.press("Escape")
    hint.wait_for()
    assert not cue.is_visible()
    slow.get_by_role("button", name="Once more").click()
    assert slow.evaluate(ANIMATIONS) > 0
    open_trace(page, every_fate[0])
    slow.wait_for(state="hidden")  # that run has no plain rounds
