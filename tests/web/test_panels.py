"""The tabs "Where drafts die" and "Exactness" in a real browser, verdicts that explain a p of 0, and tokens
under a finger. tests/js/deaths.test.js and recompute.test.js test what the two tabs compute."""

import re
from dataclasses import replace

import pytest

from specdemo.events import Round, metrics
from specdemo.events.trace import Trace
from tests.web.conftest import RECORDED, undrafted
from tests.web.screen import fates, inspector, open_trace, wait_for_state

pytestmark = pytest.mark.slow

TABLE = """table => [...table.querySelectorAll("tr")].slice(1).map((row) => [
  row.querySelector("th").textContent, ...[...row.querySelectorAll("td")].map((cell) => cell.textContent)])"""
OUTLINED = """words => words.flatMap((word, at) => {
  const { outlineStyle, outlineWidth } = getComputedStyle(word);
  return outlineStyle === "solid" && outlineWidth === "2px" ? [at] : [];
})"""
# Of each token that is shown: its text, and how wide and high the part of it is that a finger can hit.
REACH = """tokens => tokens.filter((token) => token.checkVisibility()).map((token) => {
  token.scrollIntoView({ block: "center" });
  const boxes = [...token.querySelector("b").getClientRects()].sort((a, b) => b.width - a.width);
  const [x, y] = [boxes[0].left + boxes[0].width / 2, boxes[0].top + boxes[0].height / 2];
  const isHit = (dx, dy) => document.elementFromPoint(x + dx, y + dy)?.closest("[data-token]") === token;
  const reach = (dx, dy) => { let at = 0; while (at < 40 && isHit(at * dx, at * dy)) at++; return at; };
  return [token.textContent, reach(1, 0) + reach(-1, 0), reach(0, 1) + reach(0, -1)];
})"""


@pytest.fixture(scope="module")
def seen(visit_for_all, bare):
    """A page that shows the recorded run, and the run's trace."""
    page = visit_for_all(bare, still=True)
    wait_for_state(page, "recorded")
    return page, Trace.load(RECORDED)


def again(trace: Trace, rounds: list[Round], **params) -> Trace:
    """The trace with these rounds in place of its own."""
    other = replace(trace, rounds=[], output_ids=[], text="", stats=metrics.fresh())
    other.params = replace(trace.params, **params)
    for one in rounds:
        other.add(one)
    return other


def show(page, trace: Trace, folder) -> None:
    trace.save(folder / "run.json")
    open_trace(page, folder / "run.json")
    wait_for_state(page, "recorded")


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


def every(trace: Trace) -> list[tuple]:
    """(place in the draft from 1, fate, token); the target's own have no place."""
    return [
        (at if fate in ("accepted", "rejected", "discarded") else None, fate, token)
        for one in trace.rounds
        for at, (fate, token) in enumerate(fates(one), start=1)
    ]


def is_judged(fate: str) -> bool:
    return fate in ("accepted", "rejected")


def test_the_places_are_those_of_the_trace_and_the_sums_those_of_the_page(seen):
    page, trace = seen
    panel = choose_tab(page, "Where drafts die")
    assert "the run goes on" not in panel.inner_text()
    *places, all_places = table(panel, "By place in the draft")
    for at, (name, *counts, share) in enumerate(places, start=1):
        found = [fate for place, fate, _ in every(trace) if place == at and is_judged(fate)]
        accepted = found.count("accepted")
        assert (name, counts) == (
            f"place {at}",
            [str(n) for n in (len(found), accepted, len(found) - accepted)],
        )
        assert share == f"{1 - accepted / len(found):.0%}"
    *kinds, all_kinds = table(panel, "By kind of token")
    stats = trace.stats
    judged = [stats.accepted + stats.rejected, stats.accepted, stats.rejected]
    refused = f"{stats.rejected / judged[0]:.0%}"
    assert all_places == all_kinds == ["all", *map(str, judged), refused]
    for rows in (places, kinds):
        assert [sum(int(row[column]) for row in rows) for column in (1, 2, 3)] == judged
        assert all(int(row[1]) == int(row[2]) + int(row[3]) for row in rows)
    worst = max(places, key=lambda row: int(row[3]) / int(row[1]))
    here = f"{worst[3]} of the {worst[1]} tokens judged there were rejected ({worst[4]})"
    assert f"at {worst[0]}: {here}." in panel.inner_text()


def test_a_row_outlines_its_tokens_and_scrolls_to_the_first(seen):
    page, trace = seen
    panel = choose_tab(page, "Where drafts die")
    row = panel.get_by_role("button", name="place 4")
    row.click()
    expected = [at for at, (place, fate, _) in enumerate(every(trace)) if place == 4 and is_judged(fate)]
    assert outlined(page) == expected and row.get_attribute("aria-pressed") == "true"
    accepted = sum(every(trace)[at][1] == "accepted" for at in expected)
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


def test_escape_and_another_run_end_the_outlines_and_a_replay_does_not(seen, tmp_path):
    page, trace = seen
    panel = choose_tab(page, "Where drafts die")
    panel.get_by_role("button", name="place 1").press("Enter")
    before = outlined(page)
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Skip").click()
    wait_for_state(page, "recorded")
    assert outlined(page) == before != []
    panel.get_by_role("button", name="place 1").press("Escape")
    assert outlined(page) == []
    panel.get_by_role("button", name="place 1").click()
    show(page, again(trace, trace.rounds[:9]), tmp_path)
    assert outlined(page) == []
    assert panel.get_by_role("button", name="place 1").get_attribute("aria-pressed") == "false"
    shorter = sum(is_judged(fate) for one in trace.rounds[:9] for fate, _ in fates(one))
    assert table(panel, "By place in the draft")[-1][1] == str(shorter)
    show(page, trace, tmp_path)


def test_every_verdict_is_recomputed(seen):
    page, trace = seen
    panel = choose_tab(page, "Exactness")
    judged = trace.stats.accepted + trace.stats.rejected
    said = panel.inner_text()
    assert f"{judged} of {judged} verdicts follow from the recorded p, q and u." in said
    assert f"{trace.stats.accepted} accepted, {trace.stats.rejected} rejected" in said
    assert f"= {trace.stats.tokens} tokens" in said and "This run is sampled." in said
    assert panel.locator("[data-holds='false']").count() == 0


def test_a_verdict_that_does_not_follow_is_listed(seen, tmp_path):
    page, trace = seen
    at, token = next(
        (one.index, token)
        for one in trace.rounds
        for token in one.draft[:1]
        if token.fate == "accepted" and token.accept_prob < 0.9
    )
    one = trace.rounds[at]
    rounds = [*trace.rounds]
    rounds[at] = replace(one, draft=(replace(token, u=0.95), *one.draft[1:]))
    show(page, again(trace, rounds), tmp_path)
    panel = choose_tab(page, "Exactness")
    judged = trace.stats.accepted + trace.stats.rejected
    said = panel.inner_text()
    assert f"{judged - 1} of {judged} verdicts follow" in said
    assert f"round {at + 1}, draft 1 of {len(one.draft)}: u = 0.9500 is not below" in said
    assert panel.locator("[data-holds='false']").count() == 1
    show(page, trace, tmp_path)


def test_the_parts_of_p_add_up_to_it_for_the_first_rejection_and_for_the_pinned_token(seen):
    page, trace = seen
    rejection = next(token for _, fate, token in every(trace) if fate == "rejected")
    assert "the run's first rejection" in identity(page, rejection)
    tokens = every(trace)
    at, pinned = next((at, token) for at, (_, fate, token) in enumerate(tokens) if fate == "accepted")
    page.get_by_role("tab", name="Text").click()
    page.locator(".stage [data-round]").nth(at).locator("b").click()
    assert "the pinned token" in identity(page, pinned)
    page.keyboard.press("Escape")


def identity(page, token) -> str:
    """Holds the figure against the token's alternatives; returns its caption."""
    figure = choose_tab(page, "Exactness").get_by_role("figure")
    rows = figure.locator("tbody tr").evaluate_all(
        """rows => rows.map((row) => ({ id: row.querySelector("th").title,
          bars: [...row.querySelectorAll("i")].map((bar) => bar.getBoundingClientRect()),
          written: [...row.querySelectorAll("td:not(.sum)")].map(({ textContent }) => textContent) }))"""
    )
    shown = {row["id"]: row for row in rows}
    widths = []
    for token_id, _, p, q, *_ in token.top:
        kept, added, whole = map(float, shown[f"token {token_id}"]["written"])
        assert kept + added == pytest.approx(whole) and (kept, whole) == pytest.approx(
            (min(p, q), p), abs=5.1e-4
        )
        first, second = shown[f"token {token_id}"]["bars"]
        assert second["left"] == pytest.approx(first["right"], abs=0.6) and second["top"] == first["top"]
        widths.append((second["right"] - first["left"], p))
    longest, most = max(widths)
    assert longest > 20 and all(width == pytest.approx(longest * p / most, abs=1) for width, p in widths)
    return figure.inner_text()


def test_with_nothing_drafted_both_tabs_say_so(seen, tmp_path):
    page, trace = seen
    plain = [undrafted(one) for one in trace.rounds[:9]]
    show(page, again(trace, plain, draft_with="none"), tmp_path)
    panel = choose_tab(page, "Where drafts die")
    assert "Nothing was drafted in this run" in panel.inner_text()
    assert panel.get_by_role("table").count() == 0
    panel = choose_tab(page, "Exactness")
    assert "there is nothing to verify" in panel.inner_text()
    assert panel.get_by_role("table").count() == 0
    show(page, trace, tmp_path)


def test_the_verdict_says_which_filter_removed_a_token(seen, generated, tmp_path):
    page, trace = seen
    filtered = generated(trace.prompt, top_p=0.9, max_new_tokens=100)
    at, token = removed(filtered)
    show(page, filtered, tmp_path)
    verdict = verdict_on(page, at)
    assert "(p is 0: top-p 0.9 removed it; before the sampler" in verdict
    assert given(verdict) == pytest.approx(token.raw_p, rel=0.05)
    show(page, trace, tmp_path)


def test_the_verdict_on_a_greedy_rejection_says_that_another_token_is_likeliest(seen, generated, tmp_path):
    page, trace = seen
    greedy = generated(trace.prompt, temperature=0, max_new_tokens=60)
    at, token = removed(greedy)
    show(page, greedy, tmp_path)
    verdict = verdict_on(page, at)
    assert (
        "the target's likeliest token is another one (p is 0; at temperature 1 it gave the draft" in verdict
    )
    assert given(verdict) == pytest.approx(token.raw_p, rel=0.05)
    assert "This run is greedy." in choose_tab(page, "Exactness").inner_text()
    show(page, trace, tmp_path)


def removed(trace: Trace) -> tuple[int, object]:
    """The place of a rejected token whose p is 0, and the token."""
    return next(
        (at, token)
        for at, (_, fate, token) in enumerate(every(trace))
        if fate == "rejected" and token.p == 0 and token.raw_p > 0.001 and token.text.strip()
    )


def verdict_on(page, at: int) -> str:
    page.get_by_role("tab", name="Text").click()
    page.locator(".stage [data-round]").nth(at).locator("b").hover()
    return inspector(page).locator(".verdict").text_content()


def given(verdict: str) -> float:
    """What the verdict says that the target gave the token."""
    return float(re.search(r"gave (?:it|the draft) ([\d.]+)\)", verdict)[1])


def test_words_in_place_of_a_number_stay_in_their_place(seen, tmp_path):
    page, trace = seen
    show(
        page,
        replace(trace, stats=replace(trace.stats, speedup=11.0, speedup_interval=(10.0, 16.0))),
        tmp_path,
    )
    page.get_by_role("tab", name="Text").click()
    speedup = page.locator('[data-number="speedup"]')
    assert speedup.text_content() == "10.00–16.00 ×"
    for width in (1920, 1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert speedup.evaluate("e => e.scrollWidth <= e.clientWidth"), width
    page.set_viewport_size({"width": 1280, "height": 800})
    show(page, trace, tmp_path)


def test_a_finger_can_hit_every_token(browser, visit, bare):
    phone = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = visit(bare, still=True, context=phone)
    wait_for_state(page, "recorded")
    page.get_by_role("button", name="discarded").tap()
    reach = page.locator(".stage [data-token]").evaluate_all(REACH)
    assert "," in {text.strip() for text, *_ in reach}
    for text, width, height in reach:
        assert width >= 23 and height >= 23, (text, width, height)
    assert page.get_by_test_id("stage").text_content().startswith(Trace.load(RECORDED).prompt)
    comma = page.locator(".stage [data-token]").filter(has_text=re.compile("^,$")).first
    comma.tap()
    assert inspector(page).locator(".what code").text_content() == '","'
