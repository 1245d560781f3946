"""The player in a real browser: a run is walked by round and by token, both ways, and shown in a lecture."""

import pytest

from tests.web.screen import (
    IN_TEXT,
    fates,
    inspector,
    joined,
    number,
    on_stage,
    open_trace,
    recorded,
    tokens,
    wait_for_state,
)

SIZES = """selectors => selectors.flatMap((selector) => [...document.querySelectorAll(selector)]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .map((e) => [selector, parseFloat(getComputedStyle(e).fontSize)]))"""


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


def press(page, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


def of_rounds(trace, count: int) -> list[tuple]:
    return [token for token in recorded(trace) if int(token[2]) < count]


def test_the_keys_go_by_round_back_and_forth(player):
    page, trace = player
    count = len(trace.rounds)
    press(page, "ArrowLeft", 3)
    assert page.locator(".run").get_attribute("data-state") == "paused"
    assert on_stage(page) == of_rounds(trace, count - 3) and number(page, "rounds") == str(count - 3)
    assert page.get_by_test_id("timeline").locator(".mark").count() == count - 3
    button(page, "One round back").click()
    kept = [token for _, token in fates(trace.rounds[count - 5])][-1]
    assert inspector(page).locator(".what small").text_content() == f"token {kept.id}"
    scrubber(page).focus()
    press(page, "ArrowRight", 9)
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace) and number(page, "rounds") == str(count)


def test_by_token_the_draft_waits_then_is_judged_then_the_own_token_is_drawn(player):
    page, trace = player
    rejection = ["accepted", "rejected"]  # at the second place of three or more
    one = next(o for o in trace.rounds if [t.fate for t in o.draft[:2]] == rejection and len(o.draft) > 2)
    press(page, "Home")
    press(page, "ArrowRight", one.index)
    before = of_rounds(trace, one.index)
    assert on_stage(page) == before
    shows, first = inspector(page), page.locator(f".stage [data-round='{one.index}']").first
    pending, size = ["pending"], len(one.draft)
    fallen = rejection + ["discarded"] * (size - 2)
    steps = [  # the round's fates after each, and the fate of the token that it was about
        *((pending * count, "pending") for count in range(1, size + 1)),
        (["accepted"] + pending * (size - 1), "accepted"),
        (fallen, "rejected"),
        ([*fallen, "resampled"], "resampled"),
    ]
    for key, way in (("Shift+ArrowRight", steps), ("Shift+ArrowLeft", steps[-2::-1])):
        for there, latest in way:
            press(page, key)
            assert [fate for fate, *_ in on_stage(page)[len(before) :]] == there
            assert shows.locator(".what .token").text_content() == latest
            assert first.get_attribute("aria-label").endswith(f", {there[0]} in round {one.index + 1}")
            if latest != "resampled":
                assert shows.locator(".judgement").is_visible() == (latest != "pending")
                assert "was drawn" not in shows.locator(".verdict").text_content(), "that comes later"
                continue
            assert shows.locator(".likely .residual.drawn").count() == 1
            assert page.locator(".stage .now").get_attribute("data-token") == str(one.next.id)
    press(page, "ArrowLeft")
    assert on_stage(page) == before


def test_the_scrubber_goes_anywhere_and_space_plays_from_there_and_pauses(player):
    page, trace = player
    scrub(page, 0.5)
    at = int(number(page, "rounds"))
    complete, shown = of_rounds(trace, at), on_stage(page)
    assert shown[: len(complete)] == complete
    assert scrubber(page).get_attribute("aria-valuetext").startswith(f"{at} of {len(trace.rounds)} rounds")
    page.get_by_test_id("replay").get_by_role("combobox").select_option("0.04")
    scrubber(page).focus()
    press(page, "Space")
    wait_for_state(page, "running")
    page.wait_for_function(
        "at => document.querySelectorAll('.stage [data-round]').length > at + 3", arg=len(shown)
    )
    press(page, "Space")
    wait_for_state(page, "paused")
    assert len(on_stage(page)) < len(recorded(trace))
    scrub(page, 1)
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace) and joined(tokens(page), *IN_TEXT) == trace.text


def test_a_lecture_can_be_read_from_the_last_row(player):
    page, _ = player
    page.set_viewport_size({"width": 1280, "height": 800})
    button(page, "Lecture").click()
    assert on_stage(page) == [], "it begins at the first token"
    press(page, "End")
    press(page, "ArrowLeft", 12)  # the last nine have no drafts
    press(page, "ArrowDown")
    outcome = (".verdict-line b", ".numbers dt", ".numbers dd", ".said", ".legend .token")
    panel = (".inspector :is(p, span, small, code, dt, dd, th, td, caption)", ".keys")
    for selectors, count, least in (((".stage", ".stage b"), 1, 28), (outcome, 9, 20), (panel, 1, 20)):
        sizes = page.evaluate(SIZES, selectors)
        assert len(sizes) >= count and all(size >= least for _, size in sizes), sizes
    stage = is_beside_the_inspector(page, 1280)
    assert stage["height"] > 800 / 2 and stage["width"] > 1280 / 2
    assert page.evaluate("[scrollX, document.documentElement.scrollWidth]") == [0, 1280]
    for gone in ("Generate", "Stop", "Save trace"):
        assert not page.get_by_role("button", name=gone).is_visible()
    press(page, "f")  # goes on in the window, which can be made narrower
    page.wait_for_function("!document.fullscreenElement")
    page.set_viewport_size({"width": 900, "height": 700})
    press(page, "End")
    page.locator('.stage [data-fate="accepted"] > b').last.click()
    is_beside_the_inspector(page, 900)
    press(page, "Escape", 2)  # leaves, and unpins
    page.locator(".run:not([data-lecture])").wait_for()
    assert page.get_by_role("button", name="Generate").is_visible() and page.locator("h1").is_visible()


def is_beside_the_inspector(page, width: int) -> dict:
    stage, beside = page.get_by_test_id("stage").bounding_box(), inspector(page).bounding_box()
    assert beside["x"] >= stage["x"] + stage["width"] and beside["x"] + beside["width"] <= width
    return stage


def test_in_a_lecture_a_presenter_s_keys_work_wherever_the_focus_is(player):
    page, trace = player
    count = len(trace.rounds)
    page.locator('.stage [data-fate="resampled"]').first.click()
    link = page.url
    button(page, "Lecture").click()
    for focus in ('[data-testid="stage"]', '[data-move="end"]'):
        page.locator(focus).focus()
        for key in ("End", "PageUp", "PageUp", "PageDown", "ArrowLeft", "ArrowRight", "ArrowUp"):
            press(page, key)
        assert number(page, "rounds") == str(count - 2)
        press(page, "ArrowDown")
        assert on_stage(page) == of_rounds(trace, count - 1)
    speed = page.get_by_test_id("replay").get_by_role("combobox").first
    speed.select_option("0.04")
    page.locator('[data-move="end"]').focus()
    for key, shown in (
        ("Space", '[data-state="running"]'),
        ("Space", '[data-state="paused"]'),
        ("b", "[data-blank]"),
        ("b", ":not([data-blank])"),
        ("l", ":not([data-lecture])"),
    ):
        press(page, key)
        page.locator(f".run{shown}").wait_for()
    wait_for_state(page, "recorded")
    assert on_stage(page) == recorded(trace), "what was shown before the lecture is there again"
    assert page.locator(".stage .pinned").get_attribute("data-fate") == "resampled" and page.url == link
    speed.select_option("1")


def test_a_lecture_is_one_sequence_and_leaves_the_page_as_it_was(visit, bare):
    page = visit(f"{bare}/?lecture=figure", still=True)
    scene, address = (
        page.get_by_role("combobox", name="Scene"),
        "new URLSearchParams(location.search).get('lecture')",
    )
    page.locator(".run[data-lecture]").wait_for()

    def shown(name: str) -> None:
        page.wait_for_function(f"name => {address} === name", arg=name)
        assert scene.input_value() == name

    shown("figure")
    press(page, "PageUp")
    shown("text")
    assert on_stage(page), "one comes back to the end of the text"
    press(page, "ArrowRight", 2)
    assert page.locator('[data-testid="figure"] .cards').evaluate("e => e.scrollLeft") > 0
    press(page, "ArrowRight", 2)
    shown("trials")
    press(page, "ArrowRight")
    shown("worlds")
    press(page, "ArrowRight", 9)
    shown("tree")
    page.get_by_text("tree 2,2,1,1").wait_for()
    press(page, "ArrowDown")
    page.get_by_test_id("inspector").locator(".tree button").first.wait_for()
    with page.expect_popup() as popup:
        press(page, "n")
    assert popup.value.locator(".now h2").inner_text() == "5 A tree"
    press(page, "k")
    assert page.locator(".workspace").get_attribute("inert") is not None, (
        "nothing but the keys changes anything"
    )
    press(page, "k")
    press(page, "6")
    shown("exercises")
    assert popup.value.locator(".now h2").inner_text() == "6 Exercises"
    press(page, "8")
    shown("gamma")
    press(page, "PageDown")
    shown("exercises")
    press(page, "l")
    wait_for_state(page, "recorded")
    assert "lecture" not in page.url
    assert page.locator("[inert]").count() == 0 and popup.value.is_closed()
