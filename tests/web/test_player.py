"""The player in a real browser: a run is walked by round and by token, both ways, and shown in a lecture."""

from dataclasses import replace
from urllib.parse import quote

import pytest

from specdemo.events import DRAFTER_KINDS, Round
from tests.web.screen import (
    IN_TEXT,
    fates,
    generate,
    inspector,
    joined,
    number,
    on_stage,
    open_trace,
    recorded,
    tokens,
    wait_for_rounds,
    wait_for_state,
)

pytestmark = pytest.mark.slow

SIZES = """selectors => selectors.flatMap((selector) => [...document.querySelectorAll(selector)]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .map((e) => [selector, parseFloat(getComputedStyle(e).fontSize)]))"""
HALLS = [(1920, 1080), (1280, 800)]


@pytest.fixture(scope="module")
def opened(visit_for_all, bare, every_fate):
    file, trace = every_fate
    page = visit_for_all(bare, still=True)
    open_trace(page, file)
    wait_for_state(page, "recorded")
    return page, trace


@pytest.fixture
def player(opened):
    """A page with all of a run on its stage, the focus on the scrubber, and the run's trace."""
    page, trace = opened
    page.bring_to_front()
    if page.locator(".run[data-lecture]").count():
        page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1280, "height": 900})
    button(page, "Skip").click()
    scrubber(page).focus()
    return page, trace


def button(page, name: str):
    return page.get_by_test_id("replay").get_by_role("button", name=name, exact=True)


def scrubber(page):
    return page.get_by_role("slider", name="Place in the run")


def scrub(page, share: float) -> None:
    scrubber(page).evaluate(
        "(e, share) => { e.value = Math.round(e.max * share); e.dispatchEvent(new Event('input')); }", share
    )


def said(page) -> str:
    return page.locator(".said").text_content()


def press(page, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


def steps_of(one: Round) -> int:
    judged = [token for token in one.draft if token.fate != "discarded"]
    return len(one.draft) + len(judged) + (one.next is not None)


def of_rounds(trace, count: int) -> list[tuple]:
    return [token for token in recorded(trace) if int(token[2]) < count]


def test_the_keys_go_by_round_back_and_forth(player):
    page, trace = player
    count = len(trace.rounds)
    press(page, "ArrowLeft", 3)
    assert page.locator(".run").get_attribute("data-state") == "paused"
    assert on_stage(page) == of_rounds(trace, count - 3) and number(page, "rounds") == str(count - 3)
    assert page.locator(".replay .place").text_content() == f"{count - 3} of {count} rounds"
    assert page.get_by_test_id("timeline").locator(".mark").count() == count - 3
    button(page, "One round back").click()
    assert on_stage(page) == of_rounds(trace, count - 4)
    kept = [token for _, token in fates(trace.rounds[count - 5])][-1]
    assert inspector(page).locator(".what small").text_content() == f"token {kept.id}"
    scrubber(page).focus()
    press(page, "ArrowRight", 9)
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace) and number(page, "rounds") == str(count)
    assert joined(tokens(page), *IN_TEXT) == trace.text


def test_by_token_the_draft_waits_then_is_judged_then_the_own_token_is_drawn(player):
    page, trace = player
    at, one = next(
        (at, one)
        for at, one in enumerate(trace.rounds)
        if [token.fate for token in one.draft[:2]] == ["accepted", "rejected"] and len(one.draft) > 2
    )
    page.evaluate("document.querySelector('.scrubber').focus()")
    press(page, "Home")
    assert on_stage(page) == [] and number(page, "tokens") == "0"
    press(page, "ArrowRight", at)
    before = of_rounds(trace, at)
    assert on_stage(page) == before
    shown = []
    for _ in range(steps_of(one)):
        press(page, "Shift+ArrowRight")
        shown.append(([fate for fate, *_ in on_stage(page)[len(before) :]], said(page)))
    size = len(one.draft)
    for step in range(size):
        assert shown[step][0] == ["pending"] * (step + 1)
    assert f"Now {size} tokens wait for their verdict." in shown[size - 1][1]
    assert shown[size][0] == ["accepted"] + ["pending"] * (size - 1) and "is accepted: u = " in shown[size][1]
    fallen = ["accepted", "rejected"] + ["discarded"] * (size - 2)
    assert shown[size + 1][0] == fallen and "is rejected: u = " in shown[size + 1][1]
    assert shown[size + 2][0] == [*fallen, "resampled"] and "from the residual" in shown[size + 2][1]
    for step in reversed(range(steps_of(one) - 1)):
        press(page, "Shift+ArrowLeft")
        assert ([fate for fate, *_ in on_stage(page)[len(before) :]], said(page)) == shown[step]
    press(page, "ArrowLeft")
    assert on_stage(page) == before


@pytest.fixture(scope="module")
def drafted_by(visit_for_all, bare, every_fate, tmp_path_factory):
    """Opens the same run as one of another kind of drafter, before a round of three drafts and a rejection;
    gives the page, that round, and what is on the stage before it."""

    def opened(kind: str) -> tuple:
        _, trace = every_fate
        file = tmp_path_factory.mktemp(kind) / "trace.json"
        replace(trace, pair=replace(trace.pair, drafter_kind=kind)).save(file)
        page = visit_for_all(bare, still=True)
        open_trace(page, file)
        wait_for_state(page, "recorded")
        fallen = ["accepted", "rejected"]
        one = next(o for o in trace.rounds if [t.fate for t in o.draft[:2]] == fallen and len(o.draft) > 2)
        page.evaluate("document.querySelector('.scrubber').focus()")
        press(page, "Home")
        press(page, "ArrowRight", one.index)
        return page, one, of_rounds(trace, one.index)

    return opened


def walk(page, count: int, before: list, key: str = "Shift+ArrowRight") -> list[list[tuple[str, str]]]:
    """Fates and texts of the round's tokens after each step."""
    shown = []
    for _ in range(count):
        press(page, key)
        shown.append([(fate, text) for fate, _, _, text in on_stage(page)[len(before) :]])
    return shown


def test_a_block_appears_at_once(drafted_by):
    page, one, before = drafted_by("dflash")
    drafts = [token.text for token in one.draft]
    block, judged = walk(page, 2, before)
    assert block == [("pending", text) for text in drafts]
    assert judged[0] == ("accepted", drafts[0]) and judged[1:] == block[1:]
    assert inspector(page).locator(".drafting").text_content() == DRAFTER_KINDS["dflash"].sentence
    press(page, "Shift+ArrowLeft")
    assert said(page).startswith(f"{len(drafts)} tokens are drafted at once, as a block. They wait")
    button(page, "One token back").click()
    assert on_stage(page) == before
    rail = page.get_by_test_id("timeline").locator(".mark")
    assert "drafting a block " in rail.nth(0).get_attribute("aria-label")


def test_the_places_of_a_corrected_block_are_empty_until_they_get_their_tokens(drafted_by):
    page, one, before = drafted_by("dspark")
    drafts = [token.text for token in one.draft]
    shown = walk(page, len(drafts) + 1, before)
    empty = ("pending", "")
    for count, seen in enumerate(shown):
        assert seen == [("pending", text) for text in drafts[:count]] + [empty] * (len(drafts) - count)
    assert f"Now {len(drafts)} tokens wait for their verdict." in said(page)
    assert walk(page, len(drafts), before, "Shift+ArrowLeft") == shown[-2::-1]
    assert said(page).startswith(f"A block of {len(drafts)} places is drafted at once.")
    place = page.locator(".stage .place").first
    assert place.get_attribute("aria-label") == f"An empty place, pending in round {one.index + 1}"
    assert place.bounding_box()["width"] > 10
    shows = inspector(page)
    assert shows.locator(".what code").text_content() == "?" and not shows.locator(".values dd").count()
    assert shows.locator(".what small").text_content() == "", "which token comes is not given away"
    assert shows.locator(".drafting").text_content() == DRAFTER_KINDS["dspark"].sentence
    button(page, "Skip").click()
    assert on_stage(page)[: len(before)] == before and page.locator(".stage .place").count() == 0


def test_what_lookup_copied_is_framed(visit, url):
    prompt = "The dog ran. The cat sat. The dog ran. The cat"
    asked = f"draft_with=lookup&temperature=0&max_new_tokens=16&prompt={quote(prompt)}&run=1"
    page = visit(f"{url}/?{asked}", still=True)
    wait_for_state(page, "ended")
    first = page.locator('.stage [data-round="0"]').first
    first.hover()
    ids = page.locator('.stage [data-round="0"]').evaluate_all(
        "all => all.filter(e => ['accepted', 'rejected', 'discarded'].includes(e.dataset.fate))"
        ".map(e => e.dataset.token)"
    )
    framed = page.locator(".stage .copied")
    assert ids and framed.evaluate_all("all => all.map(e => e.dataset.token)") == ids
    assert set(framed.evaluate_all("all => all.map(e => e.dataset.fate)")) == {"prompt"}
    sentence = "Lookup: copies what followed the same words earlier in the text. What was copied is framed in"
    assert inspector(page).locator(".drafting").text_content().startswith(sentence)
    page.locator('.stage [data-fate="prompt"]').first.hover()
    assert framed.count() == 0 and inspector(page).locator(".drafting").text_content() == ""


def test_the_inspector_shows_the_step_and_nothing_of_what_comes_later(player):
    page, trace = player
    one = next(one for one in trace.rounds if one.draft and one.draft[0].fate == "rejected")
    press(page, "Home")
    press(page, "ArrowRight", trace.rounds.index(one))
    press(page, "Shift+ArrowRight")
    shown = inspector(page)
    assert shown.locator(".what .token").text_content() == "pending"
    assert not shown.locator(".judgement").is_visible() and not shown.locator(".likely").is_visible()
    press(page, "Shift+ArrowRight", len(one.draft))
    assert (
        shown.locator(".what .token").text_content() == "rejected"
        and shown.locator(".judgement").is_visible()
    )
    assert "was drawn" not in shown.locator(".verdict").text_content()
    press(page, "Shift+ArrowRight")
    assert shown.locator(".what small").text_content() == f"token {one.next.id}"
    assert shown.locator(".likely .residual.drawn").count() == 1
    assert page.locator(".stage .now").get_attribute("data-token") == str(one.next.id)


def test_the_scrubber_goes_anywhere(player):
    page, trace = player
    for share in (0.5, 0.1, 0.9, 0.3):
        scrub(page, share)
        steps, at = int(scrubber(page).input_value()), 0
        while steps >= steps_of(trace.rounds[at]):
            steps -= steps_of(trace.rounds[at])
            at += 1
        complete = of_rounds(trace, at)
        shown = on_stage(page)
        assert shown[: len(complete)] == complete and number(page, "rounds") == str(at)
        assert len(shown) - len(complete) == min(steps, len(trace.rounds[at].draft))
        assert page.locator(".verdict-line").text_content().endswith("target forwards so far.")
        assert (
            scrubber(page).get_attribute("aria-valuetext").startswith(f"{at} of {len(trace.rounds)} rounds")
        )
    scrub(page, 1)
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace) and joined(tokens(page), *IN_TEXT) == trace.text
    assert "so far" not in page.locator(".verdict-line").text_content()


def test_space_plays_from_here_and_pauses(player):
    page, trace = player
    page.get_by_test_id("replay").get_by_role("combobox").select_option("0.04")
    scrub(page, 0.5)
    at = len(on_stage(page))
    scrubber(page).focus()
    press(page, "Space")
    wait_for_state(page, "running")
    page.wait_for_function("at => document.querySelectorAll('.stage [data-round]').length > at + 3", arg=at)
    press(page, "Space")
    wait_for_state(page, "paused")
    page.wait_for_timeout(200)
    held = on_stage(page)
    page.wait_for_timeout(600)
    assert on_stage(page) == held and len(held) < len(recorded(trace))
    press(page, "Space")
    wait_for_state(page, "running")
    button(page, "Skip").click()
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace)


def test_a_step_a_second_tells_what_happens(player):
    page, _ = player
    page.get_by_test_id("replay").get_by_role("combobox").select_option("steps")
    button(page, "Replay").click()
    page.locator(".said").get_by_text("is drafted").wait_for()
    assert page.locator(".said").get_attribute("aria-live") == "off"
    assert page.locator(".stage .open").count() >= 1
    button(page, "Pause").click()
    assert page.locator(".said").get_attribute("aria-live") == "polite"
    page.get_by_test_id("replay").get_by_role("combobox").select_option("1")


def test_the_stage_keeps_its_own_arrow_keys(player):
    page, trace = player
    page.get_by_test_id("stage").focus()
    press(page, "ArrowRight", 2)
    assert on_stage(page) == recorded(trace)
    assert page.evaluate("document.activeElement.closest('.stage') !== null")


def test_nothing_moves_when_the_player_says_something(player):
    page, _ = player
    top = page.get_by_test_id("stage").bounding_box()
    scrub(page, 0.5)
    assert said(page) and page.get_by_test_id("stage").bounding_box() == pytest.approx(top, abs=0.5)


@pytest.mark.parametrize(("width", "height"), HALLS)
def test_a_lecture_can_be_read_from_the_last_row(player, width, height):
    page, trace = player
    page.set_viewport_size({"width": width, "height": height})
    button(page, "Lecture").click()
    assert on_stage(page) == [], "it begins at the first token"
    press(page, "End")
    press(page, "ArrowLeft", 12)  # the last nine have no drafts
    press(page, "ArrowDown")
    sizes = page.evaluate(SIZES, [".stage", ".stage b"])
    assert sizes and all(size >= 28 for _, size in sizes)
    outcome = page.evaluate(
        SIZES, [".verdict-line b", ".numbers dt", ".numbers dd", ".said", ".legend .token"]
    )
    assert len(outcome) >= 9 and all(size >= 20 for _, size in outcome), outcome
    panel = page.evaluate(SIZES, [".inspector :is(p, span, small, code, dt, dd, th, td, caption)", ".keys"])
    assert panel and all(size >= 20 for _, size in panel), panel
    stage, beside = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
    assert beside["x"] >= stage["x"] + stage["width"] and beside["x"] + beside["width"] <= width
    assert stage["height"] > height / 2 and stage["width"] > width / 2
    assert page.evaluate("[scrollX, document.documentElement.scrollWidth]") == [0, width]
    for gone in ("Generate", "Stop", "Save trace"):
        assert not page.get_by_role("button", name=gone).is_visible()
    assert not page.locator("h1").is_visible() and not page.locator("footer").first.is_visible()
    word = page.locator(".stage .open > b").first
    assert word.evaluate("e => getComputedStyle(e).borderTopStyle") == "dashed"
    press(page, "Escape")
    page.locator(".run:not([data-lecture])").wait_for()
    assert page.get_by_role("button", name="Generate").is_visible() and page.locator("h1").is_visible()
    assert page.get_by_test_id("stage").evaluate("e => parseFloat(getComputedStyle(e).fontSize)") <= 24


def test_in_a_lecture_a_presenter_s_keys_work_wherever_the_focus_is(player):
    page, trace = player
    count = len(trace.rounds)
    button(page, "Lecture").click()
    for focus in (None, '[data-testid="stage"]', '[data-move="end"]'):
        if focus:
            page.locator(focus).focus()
        press(page, "End")
        press(page, "PageUp", 3)
        press(page, "PageDown")
        assert on_stage(page) == of_rounds(trace, count - 2)
        press(page, "ArrowLeft")
        press(page, "ArrowRight")
        press(page, "ArrowUp")
        assert number(page, "rounds") == str(count - 3)
        press(page, "ArrowDown")
        assert on_stage(page) == of_rounds(trace, count - 2)
    page.get_by_test_id("replay").get_by_role("combobox").select_option("0.04")
    press(page, "PageUp", 5)
    page.locator('[data-move="end"]').focus()
    press(page, "Space")
    wait_for_state(page, "running")
    press(page, "Space")
    wait_for_state(page, "paused")
    press(page, "b")
    page.locator(".run[data-blank]").wait_for()
    press(page, "b")
    page.locator(".run:not([data-blank])").wait_for()
    press(page, "l")
    page.locator(".run:not([data-lecture])").wait_for()
    page.get_by_test_id("replay").get_by_role("combobox").select_option("1")


def test_what_is_played_in_a_lecture_stays_in_view(visit, bare):
    page = visit(bare, still=True)
    page.set_viewport_size({"width": 1024, "height": 768})
    wait_for_state(page, "recorded")
    page.get_by_test_id("stage").evaluate("e => e.scrollTo(0, 1e7)")  # so that it goes back by itself
    page.wait_for_timeout(100)
    button(page, "Lecture").click()
    page.wait_for_timeout(100)
    button(page, "Play").click()
    page.locator('.run[data-lecture][data-state="recorded"]').wait_for()
    left = page.get_by_test_id("stage").evaluate("e => e.scrollHeight - e.clientHeight - e.scrollTop")
    assert page.get_by_test_id("stage").evaluate("e => e.scrollHeight > e.clientHeight") and left < 2


def test_on_a_narrow_window_the_inspector_is_still_beside_the_text_when_a_token_is_pinned(player):
    page, _ = player
    page.set_viewport_size({"width": 900, "height": 700})
    button(page, "Lecture").click()
    press(page, "End")
    page.locator('.stage [data-fate="accepted"] > b').last.click()
    stage, beside = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
    assert beside["x"] >= stage["x"] + stage["width"] and beside["x"] + beside["width"] <= 900
    press(page, "Escape")


def test_while_a_run_goes_on_the_player_waits(visit, endless):
    page = visit(endless, still=True)
    generate(page, max_new_tokens=30_000)
    wait_for_rounds(page)
    assert scrubber(page).is_disabled() and button(page, "One round back").is_disabled()
    page.get_by_role("button", name="Stop").click()
    wait_for_state(page, "ended")
    assert scrubber(page).is_enabled()
    rounds = int(number(page, "rounds").replace(",", ""))
    button(page, "One round back").click()
    assert number(page, "rounds") == f"{rounds - 1:,}"


def test_the_page_does_not_scroll_by_itself(visit, bare):
    page = visit(bare, still=True)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == 0
