"""A run that drafts trees, on the page, against its trace."""

import re
import xml.etree.ElementTree as ET

import pytest

from specdemo.events import JudgedInTree, Round
from tests.web.screen import (
    IN_TEXT,
    PHONE,
    inspector,
    joined,
    on_stage,
    saved,
    tokens,
    wait_for_state,
)
from tests.web.test_panels import choose_tab, table

SETTING = "tree=3,2,1&temperature=1&top_p=1&seed=7&max_new_tokens=60&ignore_eos=true"
LINK = f"/?prompt=Once+upon+a+time&{SETTING}&run=1"
NODES = """tree => [...tree.querySelectorAll("button")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }))
  .map(({ dataset: { fate }, firstChild }) => [firstChild.textContent, fate])"""
ROWS = """table => [...table.tBodies[0].rows].map((row) => [row.cells[0].textContent,
  ...[...row.cells].slice(1).map(({ title, textContent }) => title === "" ? textContent : Number(title))])"""


def in_reading_order(one: Round) -> list[tuple[str, str]]:
    """(fate, id) of the round's tokens, each drafted one before its own children."""

    def below(parent: int | None) -> list[tuple[str, str]]:
        found = []
        for place, token in enumerate(one.draft):
            assert isinstance(token, JudgedInTree)
            if token.parent == parent:
                found += [(token.fate, str(token.id)), *below(place)]
        return found

    return [*below(None), *([(one.next.source, str(one.next.id))] if one.next else [])]


@pytest.fixture(scope="module")
def grown(visit_for_all, url):
    """A page with a run that has drafted trees, and its trace."""
    page = visit_for_all(url + LINK, still=True)
    wait_for_state(page, "ended")
    return page, saved(page)


@pytest.fixture
def page(grown):
    page = grown[0]
    page.get_by_test_id("replay").get_by_role("button", name="Skip").click()
    page.keyboard.press("Escape")
    return page


@pytest.fixture(scope="module")
def refused(grown) -> Round:
    """The first round in which two guesses at its first place are refused, and the text goes on."""
    return next(
        one
        for one in grown[1].rounds
        if one.next and [token.fate for token in one.draft[:2]] == ["rejected", "rejected"]
    )


def point_at(page, one: Round, fate: str):
    token = page.get_by_test_id("stage").locator(f'[data-round="{one.index}"][data-fate="{fate}"]').first
    token.locator("b").click()
    return token


def test_the_text_has_each_guess_before_what_came_in_its_place(page, grown):
    trace = grown[1]
    expected = [
        (fate, id_, str(at)) for at, one in enumerate(trace.rounds) for fate, id_ in in_reading_order(one)
    ]
    assert [shown[:3] for shown in on_stage(page)] == expected
    assert joined(tokens(page), *IN_TEXT) == trace.text
    drawn = "all => all.map((e) => [getComputedStyle(e, '::before').content, e.textContent])"
    two = next(one for one in trace.rounds if [token.fate for token in one.draft[:2]] == ["rejected"] * 2)
    refused = page.locator(f'.stage [data-round="{two.index}"][data-fate="rejected"]').evaluate_all(drawn)
    assert refused[:2] == [["none", two.draft[0].text], ['"/"', two.draft[1].text]], "two, and no sentence"
    assert page.locator(".timeline .key .of-trees").is_visible(), "it says what the fork is"


def test_the_inspector_has_all_guesses_at_a_place_with_what_each_was_judged_by(page, refused):
    point_at(page, refused, "rejected")
    rows = inspector(page).locator(".family").evaluate(ROWS)
    family = refused.draft[:3]
    assert [row[0].strip() for row in rows] == [token.text.strip() for token in family]
    whole = 1.0
    for (_, p, q, u, left), token in zip(rows[:2], family[:2], strict=True):
        assert (p, q, u) == (token.p, token.q, token.u)
        whole *= token.residual_mass
        assert left == pytest.approx(whole), "of all of p, and less with each refusal"


def test_the_tree_has_every_guess_with_its_fate_and_brings_its_token(page, refused):
    point_at(page, refused, "rejected")
    tree = page.get_by_test_id("tree")
    nodes = tree.evaluate(NODES)
    fates = [fate for _, fate in nodes]
    assert sorted(fates) == sorted([*(token.fate for token in refused.draft), refused.next.source])
    assert tree.locator("button > b").evaluate_all("all => all.every((e) => e.scrollWidth <= e.clientWidth)")
    page.locator(".save-as summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Tree as SVG").click()
    picture = ET.fromstring(download.value.path().read_bytes()).iter()
    drawn = [
        one.get("data-fate") for one in picture if one.get("font-weight") == "600" and one.get("data-fate")
    ]
    assert sorted(drawn) == sorted(fates), "the picture has the same guesses"
    tree.locator('button[data-fate="rejected"]').nth(1).click()
    pinned = page.locator(".stage .pinned")
    assert pinned.get_attribute("data-token") == str(refused.draft[1].id)
    tree.locator('button[data-fate="discarded"]').first.click()
    assert inspector(page).locator(".what .token").text_content() == "discarded"
    assert "which was not kept" in inspector(page).locator(".verdict").text_content()
    mark = page.locator(f'.timeline .mark[data-index="{refused.index}"]')
    assert "tree of 15 guesses: " in mark.get_attribute("aria-label")


def test_the_player_grows_the_tree_and_walks_its_verdicts(page, refused):
    player = page.get_by_test_id("replay")
    point_at(page, refused, "rejected")
    scrubber = page.get_by_role("slider", name="Place in the run")
    page.locator(f'.timeline .mark[data-index="{refused.index}"]').click()
    steps = scrubber.evaluate("(e) => { e.value = 0; e.dispatchEvent(new Event('input')); return e.max }")
    assert int(steps) > len(refused.draft)
    for _ in range(refused.index):
        player.get_by_role("button", name="One round on").click()
    tree = page.get_by_test_id("tree")
    grown, known = [], []
    for _ in range(5):
        player.get_by_role("button", name="One token on").click()
        nodes = tree.evaluate(NODES)
        grown.append(len(nodes))
        known.append([fate for _, fate in nodes if fate != "pending"])
    assert grown == [3, 9, 15, 15, 15]
    assert known == [[], [], [], ["rejected"], ["rejected", "rejected"]]
    shown = [fate for fate, _, at, _ in on_stage(page) if at == str(refused.index)]
    assert shown == ["rejected", "rejected", "pending"], "of the tree the text has the place that is judged"


def test_its_verdicts_are_checked_and_counted_by_place_and_no_gamma_is_estimated(page):
    said = choose_tab(page, "Exactness").inner_text()
    judged = re.search(r"(\d+) of (\d+) verdicts follow from the recorded p, q and u\.", said)
    assert judged and judged[1] == judged[2] and int(judged[1]) > 20
    assert page.get_by_role("tabpanel", name="Exactness").locator("[data-holds='false']").count() == 0
    places = table(choose_tab(page, "Where drafts die"), "By place in the draft")
    assert [row[0] for row in places] == ["place 1", "place 2", "place 3", "all"]
    assert "estimated from runs that draft chains" in choose_tab(page, "Gamma").inner_text()
    assert "tree 3,2,1" in page.get_by_test_id("whose").inner_text()


def test_on_a_phone_the_tree_is_folded_and_opens_within_the_screen(browser, url):
    page = browser.new_page(**PHONE)
    page.goto(url + LINK)
    wait_for_state(page, "ended")
    page.locator('.stage [data-fate="rejected"] b').first.tap()
    tree = page.get_by_test_id("tree")
    assert not tree.evaluate("tree => tree.open")
    tree.locator("summary").tap()
    assert len(tree.evaluate(NODES)) > 9
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
