"""A run in a real browser, against its trace: the inspector, the timeline, "Where drafts die" and
"Exactness". tests/js/verdict, deaths and recompute.test.js test what they write and compute."""

import json
import re
from dataclasses import replace

import pytest

from specdemo.events import Round
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED, undrafted, with_rounds
from tests.web.screen import fates, inspector, open_trace, wait_for_state

READ = """panel => {
  const text = (selector) => panel.querySelector(selector)?.textContent ?? "";
  const bar = panel.querySelector(".judgement");
  const sides = bar.querySelector(".sides");
  const pixels = (element, sign, side) => parseFloat(getComputedStyle(element, sign)[side]);
  const share = (...of) => pixels(...of) / sides.clientWidth;
  return {
    where: text(".where"), quote: text(".what code"), fate: text(".what .token"), id: text(".what small"),
    values: [...panel.querySelectorAll(".values dd")].map((value) => Number(value.title)),
    drawn: [...panel.querySelectorAll(".likely tbody tr:has(.drawn) th")].map(({ title }) => title),
    bar: bar.checkVisibility()
      && { threshold: share(sides.firstElementChild, null, "width"), u: share(sides, "::after", "left") },
  };
}"""
LIT = "all => all.flatMap((e, at) => getComputedStyle(e).boxShadow === 'none' ? [] : [at])"
TABLE = """table => [...table.querySelectorAll("tr")].slice(1).map((row) => [
  row.querySelector("th").textContent, ...[...row.querySelectorAll("td")].map((cell) => cell.textContent)])"""
OUTLINED = """words => words.flatMap((word, at) => {
  const { outlineStyle, outlineWidth } = getComputedStyle(word);
  return outlineStyle === "solid" && outlineWidth === "2px" ? [at] : [];
})"""

TRACE = Trace.load(RECORDED)
TOKENS = [  # (place in the draft from 1, fate, token); the target's own have no place
    (at if fate in ("accepted", "rejected", "discarded") else None, fate, token)
    for one in TRACE.rounds
    for at, (fate, token) in enumerate(fates(one), start=1)
]
JUDGED = TRACE.stats.accepted + TRACE.stats.rejected


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


@pytest.mark.parametrize("fate", ["accepted", "rejected", "discarded", "resampled", "sampled"])
def test_it_shows_the_numbers_of_the_trace_whole_and_as_bars(page, every, fate):
    place = next(at for at, (_, its, token) in enumerate(every) if its == fate and token.text.strip())
    one, _, token = every[place]
    shown = point(page.locator(".stage [data-round]").nth(place))
    assert (shown["quote"], shown["fate"]) == (json.dumps(token.text, ensure_ascii=False), fate)
    assert shown["id"] == f"token {token.id}" and shown["where"].startswith(f"round {one.index + 1}, ")
    assert {token.p, token.q, token.u} - {None} <= {*shown["values"]}
    rejected = next((draft for draft in one.draft if draft.fate == "rejected"), None)
    judged = rejected if fate == "resampled" else token
    decided = getattr(judged, "accept_prob", None)
    bar = {"threshold": decided, "u": judged.u}
    assert shown["bar"] == (False if decided is None else pytest.approx(bar, abs=0.02))
    drawn = [token, one.next] if fate == "rejected" else [token, rejected] if fate == "resampled" else [token]
    assert {*shown["drawn"]} == {f"token {draw.id}" for draw in drawn}


def test_hovering_shows_and_a_click_pins_until_it_is_unpinned(page):
    tokens = page.locator(".stage [data-round]")
    one, other = [at for at, text in enumerate(tokens.all_text_contents()) if text.strip()][:2]
    first, second = point(tokens.nth(one)), point(tokens.nth(other))
    assert first != second
    pinned = tokens.nth(one).locator("b")
    unpin = inspector(page).get_by_role("button", name="pinned")
    for release in (unpin.click, pinned.click):
        pinned.click()
        assert point(tokens.nth(other)) == first, "what is pinned stays"
        release()
        is_unpinned(page)
    assert point(tokens.nth(other)) == second


def is_unpinned(page) -> None:
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")
    assert page.locator(".stage .pinned").count() == 0


def marks(page):
    return page.get_by_test_id("timeline").get_by_role("button", name=re.compile("^round"))


def test_a_click_jumps_to_the_round_and_pins_its_first_token(page, trace):
    for index in (len(trace.rounds) - 1, 2):
        marks(page).nth(index).click()
        inspector(page).get_by_role("button", name="pinned").wait_for()
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
    page.mouse.move(5, 5)
    assert words.evaluate_all(LIT) == []
    words.nth(rounds.index(3)).hover()
    assert marks(page).evaluate_all(LIT) == [3]
    page.mouse.move(5, 5)
    assert marks(page).evaluate_all(LIT) == [] == words.evaluate_all(LIT)


def test_below_the_hint_stands_what_a_check_takes(visit, bare, every_fate):
    page = visit(bare, still=True)
    check, hint = (inspector(page).locator(name) for name in (".one-check", ".hint"))
    assert hint.is_visible() and check.is_visible()
    page.locator('.stage [data-fate="rejected"] > b').first.click()
    assert not hint.is_visible() and not check.is_visible()
    page.keyboard.press("Escape")
    hint.wait_for()
    open_trace(page, every_fate[0])
    check.wait_for(state="hidden")  # that run has no plain rounds


@pytest.fixture(scope="module")
def beside(visit_for_all, bare):
    """A page that shows the recorded run."""
    page = visit_for_all(bare, still=True)
    wait_for_state(page, "recorded")
    return page


@pytest.fixture
def show(beside, tmp_path):
    """show(rounds): opens the recorded run with these rounds in place of its own. It is back at the end."""

    def show(rounds: list[Round]) -> None:
        with_rounds(TRACE, rounds).save(tmp_path / "run.json")
        open_trace(beside, tmp_path / "run.json")
        wait_for_state(beside, "recorded")

    yield show
    open_trace(beside, RECORDED)


def choose_tab(page, name: str):
    page.get_by_role("tab", name=name).click()
    panel = page.get_by_role("tabpanel", name=name)
    panel.wait_for()
    return panel


def table(panel, title: str) -> list[list[str]]:
    """The rows of a table, each with its name, then the counts and the share; the last one is the sum."""
    return panel.get_by_role("table", name=title).evaluate(TABLE)


def outlined(page) -> list[int]:
    """The places of the outlined tokens among all of the run."""
    return page.locator(".stage [data-round] > b").evaluate_all(OUTLINED)


def judged_at(place: int) -> list[int]:
    return [at for at, (its, fate, _) in enumerate(TOKENS) if its == place and fate != "discarded"]


def test_the_tables_are_those_of_the_trace(beside):
    page = beside
    panel = choose_tab(page, "Where drafts die")
    *places, all_places = table(panel, "By place in the draft")
    for at, (name, judged, accepted, *_) in enumerate(places, start=1):
        fates = [TOKENS[index][1] for index in judged_at(at)]
        assert (name, judged, accepted) == (f"place {at}", str(len(fates)), str(fates.count("accepted")))
    assert all_places[1:4] == [*map(str, (JUDGED, TRACE.stats.accepted, TRACE.stats.rejected))]


def test_a_row_outlines_its_tokens_and_scrolls_to_the_first(beside):
    page = beside
    panel = choose_tab(page, "Where drafts die")
    row = panel.get_by_role("button", name="place 4")
    row.click()
    expected = judged_at(4)
    assert outlined(page) == expected and row.get_attribute("aria-pressed") == "true"
    stage = page.get_by_test_id("stage").bounding_box()
    first = page.locator(".stage [data-round]").nth(expected[0]).locator("b").bounding_box()
    assert stage["y"] <= first["y"] and first["y"] + first["height"] <= stage["y"] + stage["height"]
    row.click()
    assert outlined(page) == [] and row.get_attribute("aria-pressed") == "false"


def test_escape_and_another_run_end_the_outlines_and_a_replay_does_not(beside, show):
    page = beside
    panel = choose_tab(page, "Where drafts die")
    row = panel.get_by_role("button", name="place 1")
    row.press("Enter")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Skip").click()
    wait_for_state(page, "recorded")
    assert outlined(page) == judged_at(1)
    row.press("Escape")
    assert outlined(page) == []
    row.click()
    show([undrafted(one) for one in TRACE.rounds[:9]])
    assert outlined(page) == [] and panel.get_by_role("table").count() == 0, "nothing was drafted"


def test_every_verdict_is_recomputed_and_one_that_does_not_follow_is_listed(beside, show):
    page = beside
    panel = choose_tab(page, "Exactness")
    assert f"{JUDGED} of {JUDGED} verdicts follow" in panel.inner_text()
    assert panel.locator("[data-holds='false']").count() == 0

    def is_doubtful(token) -> bool:
        return token.fate == "accepted" and token.accept_prob < 0.9

    rounds = [*TRACE.rounds]
    at, first, *rest = next((one.index, *one.draft) for one in rounds if is_doubtful(one.draft[0]))
    rounds[at] = replace(rounds[at], draft=(replace(first, u=0.95), *rest))
    show(rounds)
    said = panel.inner_text()
    assert f"{JUDGED - 1} of {JUDGED} verdicts follow" in said
    assert panel.locator("[data-holds='false']").count() == 1
