"""The inspector in a real browser: its numbers and bars are the trace's, and a token can be pinned.

tests/js/verdict.test.js tests what it writes.
"""

import json
import re
from dataclasses import replace

import pytest

from specdemo.events import Judged, metrics
from specdemo.events.trace import Trace
from specdemo.ui.page.frame import scripts_path
from tests.web.conftest import RECORDED
from tests.web.screen import fates, inspector, open_trace, wait_for_state

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def seen(visit_for_all, bare, every_fate):
    """A page that shows tokens of every fate, and the trace."""
    file, trace = every_fate
    page = visit_for_all(bare, still=True)
    open_trace(page, file)
    wait_for_state(page, "recorded")
    page.get_by_role("button", name="discarded").click()  # all of them are shown
    return page, trace


def point(element) -> dict:
    """What the inspector shows of a token that the pointer is on."""
    element.locator("b").hover()
    return inspector(element.page).evaluate(READ)


@pytest.mark.parametrize("fate", ["accepted", "rejected", "discarded", "resampled", "bonus", "sampled"])
def test_it_shows_the_numbers_of_the_trace_whole_and_as_bars(seen, fate):
    page, trace = seen
    every = [(one, fate, token) for one in trace.rounds for fate, token in fates(one)]
    place = next(at for at, (_, its, token) in enumerate(every) if its == fate and token.text.strip())
    one, _, token = every[place]
    shown = point(page.locator(".stage [data-round]").nth(place))
    assert (shown["quote"], shown["fate"]) == (json.dumps(token.text, ensure_ascii=False), fate)
    assert shown["id"] == f"token {token.id}" and shown["where"].startswith(f"round {one.index + 1}, ")
    assert shown["verdict"].startswith(fate.capitalize())
    assert shown["values"] == numbers_of(token, one)

    rejected = next((draft for draft in one.draft if draft.fate == "rejected"), None)
    judged = rejected if fate == "resampled" else token
    if getattr(judged, "accept_prob", None) is None:
        assert shown["bar"] is False
    else:
        assert shown["bar"]["threshold"] == pytest.approx(judged.accept_prob, abs=0.02)
        assert shown["bar"]["u"] == pytest.approx(judged.u, abs=0.02)

    rows = {row["id"]: row for row in shown["rows"]}
    drawn = [token, one.next] if fate == "rejected" else [token, rejected] if fate == "resampled" else [token]
    assert {name for name, row in rows.items() if row["drawn"]} == {f"token {draw.id}" for draw in drawn}
    for token_id, _, p, q, *_ in () if fate == "discarded" else token.top:
        cells = rows[f"token {token_id}"]["cells"]
        expected = {"p": p} if q is None else {"p": p, "q": q}
        if fate in ("rejected", "resampled"):
            expected["residual"] = max(p - q, 0) / one.next.residual_mass
        assert cells.keys() == expected.keys()
        for column, (title, bar) in cells.items():
            exact = float(title.split(",")[0])
            assert exact == pytest.approx(expected[column], abs=1e-5) and bar == pytest.approx(
                exact, abs=0.02
            )


def numbers_of(token, its_round) -> list[float]:
    if isinstance(token, Judged):
        mass = its_round.next.residual_mass if token.fate == "rejected" else None
        numbers = [token.p, token.q, token.accept_prob, mass, token.u]
    else:
        mass = token.residual_mass
        share = max(token.p - token.q, 0) / mass if mass else None
        numbers = [token.p, token.q, mass, share, token.u]
    return [number for number in numbers if number is not None]


def test_a_resampled_token_s_numbers_are_told_from_those_of_the_one_that_it_replaced(seen):
    page, trace = seen
    every = [(one, fate, token) for one in trace.rounds for fate, token in fates(one)]
    at = next(at for at, (_, fate, token) in enumerate(every) if fate == "resampled" and token.text.strip())
    one, _, token = every[at]
    rejected = next(draft for draft in one.draft if draft.fate == "rejected")
    page.locator(".stage [data-round]").nth(at).locator("b").hover()
    judged, numbers = (inspector(page).locator(name) for name in (".judged", ".values-of"))
    assert rejected.text.strip() in judged.inner_text() and token.text.strip() not in judged.inner_text()
    assert token.text.strip() in numbers.inner_text() and rejected.text.strip() not in numbers.inner_text()
    page.locator(".stage [data-round]").nth(at - 1).locator("b").hover()
    assert not numbers.is_visible(), "all numbers of another token are its own"


def test_nothing_says_u_of_a_greedy_run(visit, bare):
    page = visit(f"{bare}?trace=greedy", still=True)
    wait_for_state(page, "recorded")
    for fate in ("accepted", "rejected", "resampled", "bonus"):
        page.locator(f'.stage [data-fate="{fate}"] > b').first.hover()
        shown = inspector(page).inner_text()
        assert "likeliest" in shown and not re.search(r"\bu\b", shown), shown
    inspector(page).locator("summary").click()
    assert "u cannot matter" in inspector(page).inner_text()
    page.get_by_role("tab", name="Exactness").click()
    checks = page.get_by_test_id("exactness").locator(".answer, .checks")
    assert not any(re.search(r"\bu\b", words) for words in checks.all_inner_texts())


def test_a_token_of_the_prompt_was_given(seen):
    page, trace = seen
    shown = point(page.locator('.stage [data-fate="prompt"]').first)
    assert shown["where"] == "prompt" and "part of the prompt" in shown["verdict"]
    assert shown["values"] == [] and shown["rows"] == [] and shown["bar"] is False


def test_hovering_shows_and_a_click_pins_until_escape(seen):
    page, _ = seen
    tokens = page.locator(".stage [data-round]")
    one, other = [at for at, text in enumerate(tokens.all_text_contents()) if text.strip()][:2]
    first, second = point(tokens.nth(one)), point(tokens.nth(other))
    assert first != second
    tokens.nth(one).locator("b").click()
    assert point(tokens.nth(other)) == first, "what is pinned stays"
    page.keyboard.press("Escape")
    is_unpinned(page)
    assert point(tokens.nth(one)) == first and point(tokens.nth(other)) == second
    tokens.nth(one).locator("b").click()
    inspector(page).get_by_role("button", name="pinned").click()
    is_unpinned(page)
    tokens.nth(one).locator("b").click()
    tokens.nth(one).locator("b").click()
    is_unpinned(page)


def is_unpinned(page) -> None:
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")
    assert page.locator(".stage .pinned").count() == 0


def test_arrow_keys_and_escape_work_from_where_the_mouse_has_pinned(seen):
    page, _ = seen
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


def test_the_cue_goes_when_it_has_been_followed(visit, bare):
    page = visit(bare, still=True)
    cue, hint, formulas = (inspector(page).locator(name) for name in (".cue", ".hint", "summary"))
    assert cue.text_content() == "Point at a red word: why was it replaced?"
    assert cue.is_visible() and not hint.is_visible() and not formulas.is_visible()
    page.locator('.stage [data-fate="accepted"] > b').first.hover()
    assert not cue.is_visible() and formulas.is_visible()
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Skip").click()
    cue.wait_for()  # nothing red was pointed at
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    assert not cue.is_visible() and not hint.is_visible()
    page.keyboard.press("Escape")
    hint.wait_for()
    assert not cue.is_visible() and len(hint.text_content().split()) <= 12


def test_three_signs_for_three_things_without_a_text(visit, bare, tmp_path):
    run = Trace.load(RECORDED)
    first = run.rounds[0]
    part = replace(first.next, text="", top=((first.next.id, "\ufffd", 0.5, None, 0.5, None),))
    trace = replace(run, rounds=[], output_ids=[], text="", stats=metrics.fresh())
    for one in (replace(first, next=part), *run.rounds[1:]):
        trace.add(one)
    trace.save(tmp_path / "signs.json")
    page = visit(bare, still=True)
    page.evaluate(
        """async (scripts) => {
          const { makeText } = await import(new URL(`${scripts}/view/text.js`, document.baseURI));
          const stage = document.querySelector(".stage").cloneNode(false);
          stage.id = "copy-of-stage";
          document.querySelector(".stage").after(stage);
          makeText(stage).add([{ id: 0, text: "", fate: "prompt" }, { id: 1, text: "One", fate: "prompt" }]);
        }""",
        scripts_path(),
    )
    drawn = "e => getComputedStyle(e, '::before').content"
    signs = [page.locator("#copy-of-stage .none").evaluate(drawn)]
    page.locator("#copy-of-stage").evaluate("e => e.remove()")
    open_trace(page, tmp_path / "signs.json")
    for kind, explained in (
        ("part", "Part of a character: the token that completes it shows it."),
        ("end", "End of the text: it adds nothing to the text."),
    ):
        token = page.locator(f".stage .none.{kind}")
        token.hover()
        assert inspector(page).locator(".stands-for").text_content() == explained
        sign = token.evaluate(drawn)
        assert inspector(page).locator(".what code").evaluate(drawn) == sign
        signs.append(sign)
    assert len(set(signs)) == 3 and "none" not in signs
    page.locator('.stage [data-fate="accepted"] > b').first.hover()
    assert inspector(page).locator(".stands-for").text_content() == ""


@pytest.mark.parametrize("fate", ["rejected", "resampled"])
def test_nothing_scrolls_inside_the_inspector(visit, bare, fate):
    page = visit(bare, still=True)
    page.locator(f'.stage [data-fate="{fate}"] > b').nth(1).click()
    for width in (1280, 1024, 820):
        page.set_viewport_size({"width": width, "height": 800})
        for _ in range(2):  # with the numbers, and with the formulas
            inside = inspector(page).evaluate(
                "panel => [panel, ...panel.querySelectorAll('*')].filter((e) => e.checkVisibility())"
                ".filter((e) => /auto|scroll/.test(getComputedStyle(e).overflow)"
                " || e.getBoundingClientRect().right > panel.getBoundingClientRect().right + 9)"
                ".map((e) => e.outerHTML.slice(0, 80))"
            )
            assert inside == [], width
            inspector(page).locator("summary").click()


def test_the_inspector_has_three_sizes_of_type(seen):
    page, _ = seen
    point(page.locator('.stage [data-fate="resampled"]').first)
    sizes = inspector(page).evaluate(
        "panel => [...panel.querySelectorAll('*')].filter((e) => e.checkVisibility() && !e.closest('math'))"
        ".filter((e) => [...e.childNodes].some((one) => one.nodeType === 3 && one.data.trim()))"
        ".map((e) => getComputedStyle(e).fontSize)"
    )
    assert {*sizes} == {"13px", "15px", "21px"}


def test_formulas_open_on_demand_and_stay_open(seen):
    page, _ = seen
    formulas, summary = inspector(page).locator("math"), inspector(page).locator("summary")
    point(page.locator('.stage [data-fate="accepted"]').first)
    assert formulas.count() and not formulas.first.is_visible()
    summary.click()
    assert all(formula.is_visible() for formula in formulas.all())
    point(page.locator('.stage [data-fate="accepted"]').first)
    assert all(formula.is_visible() for formula in formulas.all())
    summary.click()
    assert not formulas.first.is_visible()
