"""The tabs "Where drafts die" and "Exactness" in a real browser.
tests/js/deaths.test.js and recompute.test.js test what the two tabs compute."""

import re
from dataclasses import replace

import pytest

from specdemo.events import Round
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED, undrafted, with_rounds
from tests.web.screen import fates, open_trace, wait_for_state

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
def page(visit_for_all, bare):
    """A page that shows the recorded run."""
    page = visit_for_all(bare, still=True)
    wait_for_state(page, "recorded")
    return page


@pytest.fixture
def show(page, tmp_path):
    """show(rounds): opens the recorded run with these rounds in place of its own. It is back at the end."""

    def show(rounds: list[Round], **stats) -> None:
        other = with_rounds(TRACE, rounds)
        replace(other, stats=replace(other.stats, **stats)).save(tmp_path / "run.json")
        open_trace(page, tmp_path / "run.json")
        wait_for_state(page, "recorded")

    yield show
    open_trace(page, RECORDED)


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


def test_the_tables_are_those_of_the_trace_and_of_the_numbers(page):
    panel = choose_tab(page, "Where drafts die")
    *places, all_places = table(panel, "By place in the draft")
    for at, (name, judged, accepted, *_) in enumerate(places, start=1):
        fates = [TOKENS[index][1] for index in judged_at(at)]
        assert (name, judged, accepted) == (f"place {at}", str(len(fates)), str(fates.count("accepted")))
    *kinds, all_kinds = table(panel, "By kind of token")
    sums = (JUDGED, TRACE.stats.accepted, TRACE.stats.rejected)
    assert all_places == all_kinds == ["all", *map(str, sums), f"{TRACE.stats.rejected / JUDGED:.0%}"]
    alike = "the largest share rejected was 25%, at each of these: place 1, place 4;"
    assert len(kinds) > 2 and alike in panel.inner_text()


def test_a_row_outlines_its_tokens_and_scrolls_to_the_first(page):
    panel = choose_tab(page, "Where drafts die")
    row = panel.get_by_role("button", name="place 4")
    row.click()
    expected = judged_at(4)
    assert outlined(page) == expected and row.get_attribute("aria-pressed") == "true"
    accepted = sum(TOKENS[at][1] == "accepted" for at in expected)
    says = f"{accepted} accepted, {len(expected) - accepted} rejected"
    assert says in panel.get_by_role("status").text_content()
    stage = page.get_by_test_id("stage").bounding_box()
    first = page.locator(".stage [data-round]").nth(expected[0]).locator("b").bounding_box()
    assert stage["y"] <= first["y"] and first["y"] + first["height"] <= stage["y"] + stage["height"]

    other = panel.get_by_role("button", name="punctuation")
    other.click()
    texts = page.locator(".stage [data-round]").all_text_contents()
    assert outlined(page) and all(re.fullmatch(r"\s*[^\w\s]+", texts[at]) for at in outlined(page))
    assert [row.get_attribute("aria-pressed"), other.get_attribute("aria-pressed")] == ["false", "true"]
    other.click()
    assert outlined(page) == [] and other.get_attribute("aria-pressed") == "false"


def test_escape_and_another_run_end_the_outlines_and_a_replay_does_not(page, show):
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
    show(TRACE.rounds[:9])
    assert outlined(page) == [] and row.get_attribute("aria-pressed") == "false"
    assert int(table(panel, "By place in the draft")[-1][1]) < JUDGED


def test_every_verdict_is_recomputed_and_one_that_does_not_follow_is_listed(page, show):
    panel = choose_tab(page, "Exactness")
    said = panel.inner_text()
    assert f"{JUDGED} of {JUDGED} verdicts follow from the recorded p, q and u." in said
    assert f"= {TRACE.stats.tokens} tokens" in said and "This run is sampled." in said
    assert panel.locator("[data-holds='false']").count() == 0

    def is_doubtful(token) -> bool:
        return token.fate == "accepted" and token.accept_prob < 0.9

    rounds = [*TRACE.rounds]
    at, first, *rest = next((one.index, *one.draft) for one in rounds if is_doubtful(one.draft[0]))
    rounds[at] = replace(rounds[at], draft=(replace(first, u=0.95), *rest))
    show(rounds)
    said = panel.inner_text()
    assert f"{JUDGED - 1} of {JUDGED} verdicts follow" in said
    assert f"round {at + 1}, draft 1 of {1 + len(rest)}: u = 0.9500 is not below" in said
    assert panel.locator("[data-holds='false']").count() == 1


def test_with_nothing_drafted_both_tabs_say_so(page, show):
    show([undrafted(one) for one in TRACE.rounds[:9]])
    for name, said in (
        ("Where drafts die", "Nothing was drafted in this run"),
        ("Exactness", "there is nothing to verify"),
    ):
        panel = choose_tab(page, name)
        assert said in panel.inner_text() and panel.get_by_role("table").count() == 0


def test_a_wide_interval_is_no_figure_and_the_tokens_a_round_are(page, show):
    page.get_by_role("tab", name="Text").click()
    timed = {"target_step_ms": 10.0, "target_step_spread": (9.0, 11.0), "speedup": 11.0}
    show(TRACE.rounds, **timed, speedup_interval=(10.0, 16.1))
    speedup, tokens = page.locator('[data-number="speedup"]'), page.locator("[data-copy]")
    assert tokens.is_visible() and not speedup.is_visible()
    assert "the machine was too busy to time one" in page.get_by_test_id("verdict").text_content()
    before = page.get_by_test_id("stage").bounding_box()["y"]
    show(TRACE.rounds, **timed, speedup_interval=(10.0, 12.0))
    assert speedup.text_content() == "11.00 ×" and not tokens.is_visible()
    assert page.get_by_test_id("verdict").text_content().count("Recorded on") == 1
    assert page.get_by_test_id("stage").bounding_box()["y"] == before, "the text stays where it is"
