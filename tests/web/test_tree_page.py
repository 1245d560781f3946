"""A run that drafts trees, on the page, against its trace."""

import re

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
from tests.web.test_inspector import choose_tab, table

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


def test_a_tree_in_the_text_the_inspector_and_the_tabs(visit, url):
    page = visit(url + LINK, still=True)
    wait_for_state(page, "ended")
    trace = saved(page)
    expected = [
        (fate, id_, str(at)) for at, one in enumerate(trace.rounds) for fate, id_ in in_reading_order(one)
    ]
    assert [shown[:3] for shown in on_stage(page)] == expected, "each guess before what came in its place"
    assert joined(tokens(page), *IN_TEXT) == trace.text

    two = ["rejected", "rejected"]  # guesses at a round's first place
    refused = next(one for one in trace.rounds if one.next and [token.fate for token in one.draft[:2]] == two)
    page.locator(f'.stage [data-round="{refused.index}"][data-fate="rejected"] b').first.click()
    rows = inspector(page).locator(".family").evaluate(ROWS)
    assert [row[0].strip() for row in rows] == [token.text.strip() for token in refused.draft[:3]]
    for (_, p, q, u, _), token in zip(rows[:2], refused.draft[:2], strict=True):
        assert (p, q, u) == (token.p, token.q, token.u)
    tree = page.get_by_test_id("tree")
    fates = [fate for _, fate in tree.evaluate(NODES)]
    assert sorted(fates) == sorted([*(token.fate for token in refused.draft), refused.next.source])
    tree.locator('button[data-fate="rejected"]').nth(1).click()
    assert page.locator(".stage .pinned").get_attribute("data-token") == str(refused.draft[1].id)
    tree.locator('button[data-fate="discarded"]').first.click()
    assert inspector(page).locator(".what .token").text_content() == "discarded"

    said = choose_tab(page, "Exactness").inner_text()
    judged = re.search(r"(\d+) of (\d+) verdicts follow", said)
    assert judged and judged[1] == judged[2] and int(judged[1]) > 20
    places = table(choose_tab(page, "Where drafts die"), "By place in the draft")
    assert [row[0] for row in places] == ["place 1", "place 2", "place 3", "all"]


def test_on_a_phone_the_tree_is_folded_and_opens_within_the_screen(visit, browser, url):
    page = visit(url + LINK, still=True, context=browser.new_context(**PHONE))
    wait_for_state(page, "ended")
    page.locator('.stage [data-fate="rejected"] b').first.tap()
    tree = page.get_by_test_id("tree")
    assert not tree.evaluate("tree => tree.open")
    tree.locator("summary").tap()
    assert len(tree.evaluate(NODES)) > 9
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
