"""The inspector in a real browser: the numbers that it shows are the record's, and its sentences say what they mean."""

import json
import re

import pytest

from specdemo.events import Judged
from tests.web.screen import IN_TEXT, choose, inspector, run, saved

pytestmark = pytest.mark.slow

REPEATING = '"Row, row, row your boat," sang Mia. "Row, row, row your boat," sang'
ALL = {"accepted", "rejected", "discarded", "resampled", "bonus"}
RUNS = {  # what is chosen on the page: the same for the API, the fates that it must show
    "the drafter model": ({"draft_with": "model"}, ALL),
    "a lookup in the text so far": ({"draft_with": "lookup"}, {"accepted", "rejected", "sampled"}),
}
READ = """panel => {
  const text = (selector, from = panel) => from.querySelector(selector)?.textContent ?? "";
  const share = (element, of, sign, side) => parseFloat(getComputedStyle(element, sign)[side]) / of.clientWidth;
  const coin = panel.querySelector(".coin");
  const sides = coin.querySelector(".sides");
  const shares = () => ({ least: share(sides.firstElementChild, sides, null, "width"), u: share(sides, sides, "::after", "left") });
  return {
    where: text(".where"), quote: text(".what code"), fate: text(".what .token"), id: text(".what small"), verdict: text(".verdict"),
    values: Object.fromEntries([...panel.querySelectorAll(".values div")].map((row) =>
      [row.querySelector("dt").firstChild.textContent, [row.querySelector("dd").title, text("dd", row)]])),
    rows: [...panel.querySelectorAll(".likely tbody tr")].map((row) => ({
      id: row.querySelector("th").title, quote: text("code", row), drawn: text("small", row),
      cells: Object.fromEntries([...row.querySelectorAll("td.p, td.q, td.residual")].map((cell) =>
        [cell.classList[cell.classList.length - 1], [cell.title, share(cell, cell, "::before", "width")]])),
      marked: [...row.querySelectorAll(".drawn")].map((cell) => cell.className),
    })),
    coin: coin.checkVisibility() && shares(),
  };
}"""


@pytest.fixture(scope="module", params=RUNS)
def seen(request, visit_for_all, url, told):
    """A page with a run on its stage that has all the fates, and the run's trace."""
    same, fates = RUNS[request.param]
    settings = {"max_new_tokens": 40, "temperature": 1.2}
    found = ({*fates_of(told(REPEATING, seed=seed, top_p=1.0, **settings, **same))} for seed in range(30))
    seed = next(seed for seed, shown in enumerate(found) if fates <= shown)
    page = visit_for_all(url)
    choose(page, "Drafting method", request.param)
    choose(page, "Sampler", "multinomial")
    run(page, REPEATING, seed=seed, **settings)
    page.get_by_role("button", name="discarded").click()  # all are there to be pointed at
    return page, saved(page)


def fates_of(trace) -> list[str]:
    return [fate for round in trace.rounds for fate, _ in fated(round)]


def fated(round) -> list[tuple]:
    return [(token.fate, token) for token in round.draft] + (
        [(round.next.source, round.next)] if round.next else []
    )


def of_fate(seen, fate: str) -> list[tuple]:
    """(its element, its round, the token) of up to three tokens that have something to point at."""
    page, trace = seen
    stage = page.locator(".stage [data-round]")
    all = [(round, fate, token) for round in trace.rounds for fate, token in fated(round)]
    found = [
        (stage.nth(at), round, token)
        for at, (round, fated, token) in enumerate(all)
        if fated == fate and token.text.strip()
    ]
    return found[:3]


def point(element) -> dict:
    """What the inspector says of a token that the pointer is on."""
    element.locator("b").hover()
    return inspector(element.page).evaluate(READ)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


FATES = [*sorted(ALL), "sampled"]


@pytest.mark.parametrize("fate", FATES)
def test_it_shows_the_numbers_of_the_record_whole(seen, fate):
    for element, round, token in of_fate(seen, fate):
        said = point(element)
        assert (said["quote"], said["fate"], said["id"]) == (quoted(token.text), fate, f"token {token.id}")
        assert said["where"].startswith(f"round {round.index}, ")
        values = {sign: float(exact) for sign, (exact, _) in said["values"].items()}
        assert values == {sign: value for sign, value in numbers_of(token).items() if value is not None}
        for exact, written in said["values"].values():
            assert read(written) == pytest.approx(float(exact), rel=5e-4)
        judged = (
            next((draft for draft in round.draft if draft.fate == "rejected"), None)
            if fate == "resampled"
            else token
        )
        if getattr(judged, "accept_prob", None) is None:
            assert said["coin"] is False
        else:
            assert judged.accept_prob == pytest.approx(min(1, judged.p / judged.q))
            assert said["coin"]["least"] == pytest.approx(judged.accept_prob, abs=0.02)
            assert said["coin"]["u"] == pytest.approx(judged.u, abs=0.02)


def numbers_of(token) -> dict:
    if isinstance(token, Judged):
        return {"p": token.p, "q": token.q, "min(1, p/q)": token.accept_prob, "u": token.u}
    mass = token.residual_mass
    chance = max(token.p - token.q, 0) / mass if mass else None
    return {"p": token.p, "q": token.q, "Σ (p − q)₊": mass, "(p − q)₊ / Σ": chance, "u": token.u}


def read(written: str) -> float:
    digits = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    number, _, exponent = written.partition(" × 10")
    return float(f"{number}e{exponent.translate(digits) or 0}")


@pytest.mark.parametrize("fate", FATES)
def test_it_shows_the_alternatives_with_what_was_drawn_among_them(seen, fate):
    for element, round, token in of_fate(seen, fate):
        rows = {row["id"]: row for row in point(element)["rows"]}
        never_judged = isinstance(token, Judged) and token.u is None
        for id, text, p, q, *_ in () if never_judged else token.top:
            row = rows[f"token {id}"]
            assert row["quote"] == quoted(text) or not text.isprintable()
            residual = max(p - q, 0) if q is not None else None
            for column, value in {"p": p, "q": q, "residual": residual}.items():
                if value is None:
                    assert column not in row["cells"]
                    continue
                exact, bar = row["cells"][column]
                assert float(exact.split(",")[0]) == pytest.approx(
                    value, abs=5e-4 * (p + (q or 0))
                )  # a difference of two rounded ones
                assert bar == pytest.approx(value, abs=0.02)
        drawn = {(row["id"], row["drawn"]): row["marked"] for row in rows.values() if row["drawn"]}
        assert drawn == {
            (f"token {id}", f"◆ {how}"): [f"drawn {column}"]
            for id, how, column in drawn_in(round, fate, token)
        }


def drawn_in(round, fate: str, token) -> list[tuple]:
    drafted, own = [(token.id, "drafted", "q")], [(token.id, "drawn", "p")]
    if fate == "rejected" and round.next:
        return [*drafted, (round.next.id, "drawn", "residual")]
    if fate == "resampled":
        refused = next(draft for draft in round.draft if draft.fate == "rejected")
        return [(refused.id, "drafted", "q"), (token.id, "drawn", "residual")]
    return drafted if isinstance(token, Judged) else own


NUMBER = r"\d+(?:\.\d+)?(?: × 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
JUDGEMENT = rf"u = ({NUMBER}) is (not )?below min\(1, p/q\) = ({NUMBER})"


def test_a_judged_token_s_sentence_is_the_verdict(seen):
    for fate in ("accepted", "rejected"):
        for element, round, _ in of_fate(seen, fate):
            said = point(element)["verdict"]
            coin, refused, least = re.match(f"{fate.capitalize()}: {JUDGEMENT}", said).groups()
            assert (read(coin) < read(least)) == (fate == "accepted") == (refused is None), said
            if fate == "rejected":
                assert said.endswith(f"{quoted(round.next.text)} was drawn in its place.")


def test_the_target_s_own_and_the_dropped_say_why_they_are_there(seen):
    for element, round, _ in of_fate(seen, "resampled"):
        refused = next(draft for draft in round.draft if draft.fate == "rejected")
        said = point(element)["verdict"]
        why = re.escape(f"Resampled: {quoted(refused.text)} was rejected, because ")
        assert (
            re.match(f"{why}{JUDGEMENT}", said) and "drawn from the residual, what p has more than q" in said
        )
    for element, round, _ in of_fate(seen, "bonus"):
        drafts = (
            f"all {len(round.draft)} drafts of the round were"
            if len(round.draft) > 1
            else "the one draft of the round was"
        )
        assert point(element)["verdict"].startswith(f"Bonus: {drafts} accepted")
    for element, _, _ in of_fate(seen, "sampled"):
        assert point(element)["verdict"].startswith("Sampled: nothing was drafted in this round")
    for element, round, token in of_fate(seen, "discarded"):
        if token.u is None:
            refused = next(at for at, draft in enumerate(round.draft) if draft.fate == "rejected")
            why = f"Discarded, and never judged: draft {refused + 1}, {quoted(round.draft[refused].text)}, was rejected"
            assert point(element)["verdict"].startswith(why)


def test_a_token_of_the_prompt_was_given(seen):
    page, trace = seen
    said = point(page.locator('.stage [data-fate="prompt"]').nth(3))
    assert (
        said["where"] == "prompt"
        and "part of the prompt" in said["verdict"]
        and said["id"] == f"token {trace.prompt_ids[3]}"
    )
    assert said["values"] == {} and said["rows"] == [] and said["coin"] is False


def test_hovering_shows_and_a_click_pins_until_escape(seen):
    page, _ = seen
    tokens = page.locator(".stage [data-round]")
    one, other = [at for at, text in enumerate(tokens.all_text_contents()) if text.strip()][:2]
    first, second = point(tokens.nth(one)), point(tokens.nth(other))
    assert first != second
    tokens.nth(one).locator("b").click()
    assert point(tokens.nth(other)) == first, "what is pinned stays"
    page.keyboard.press("Escape")
    is_let_go(page)
    assert point(tokens.nth(one)) == first and point(tokens.nth(other)) == second
    tokens.nth(one).locator("b").click()
    inspector(page).get_by_role("button", name="pinned").click()
    is_let_go(page)
    tokens.nth(one).locator("b").click()
    tokens.nth(one).locator("b").click()
    is_let_go(page)


def is_let_go(page) -> None:
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")
    assert page.locator(".stage .pinned").count() == 0


def test_arrow_keys_and_escape_work_from_where_the_mouse_has_pinned(seen):
    page, trace = seen
    tokens = page.locator(".stage [data-round]")
    said = [point(tokens.nth(at)) for at in range(3)]
    for _ in range(2):  # the second time it is the token that Tab comes to already
        tokens.nth(1).locator("b").click()
        page.mouse.move(5, 5)
        page.keyboard.press("ArrowRight")
        assert inspector(page).evaluate(READ) == said[2]
        page.keyboard.press("ArrowLeft")
        assert inspector(page).evaluate(READ) == said[1]
        page.keyboard.press("Escape")
        is_let_go(page)


def test_formulas_open_on_demand_and_stay_open(seen):
    page, _ = seen
    formulas, summary = inspector(page).locator("math"), inspector(page).locator("summary")
    assert formulas.count() and not formulas.first.is_visible()
    summary.click()
    assert all(formula.is_visible() for formula in formulas.all())
    point(page.locator('.stage [data-fate="accepted"] b').locator("..").first)
    assert all(formula.is_visible() for formula in formulas.all())
    summary.click()
    assert not formulas.first.is_visible()


def test_every_fate_was_looked_at(seen, request):
    fates = RUNS[request.node.callspec.params["seen"]][1]
    assert all(of_fate(seen, fate) for fate in fates) and set(IN_TEXT) <= ALL | {"sampled"}
