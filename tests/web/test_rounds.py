"""The timeline and the numbers in a real browser, against the run's record."""

import re

import pytest

from specdemo.ui.feed import NUMBERS
from tests.web.screen import choose, inspector, number, run, saved, set_field, wait_for_state

pytestmark = pytest.mark.slow

HEIGHTS = "all => all.map(e => getComputedStyle(e).backgroundSize.split(', ').map(size => parseFloat(size.split(' ')[1])))"
LIT = "all => all.flatMap((e, at) => getComputedStyle(e).boxShadow === 'none' ? [] : [at])"


@pytest.fixture(scope="module")
def seen(visit_for_all, url):
    """A page with a run on its stage, and the run's trace."""
    page = visit_for_all(url)
    choose(page, "Sampler", "multinomial")
    run(page, "Once upon a time", seed=3, max_new_tokens=60)
    return page, saved(page)


def marks(page):
    return page.get_by_test_id("timeline").get_by_role("button", name=re.compile("^round"))


def test_each_round_has_a_mark_that_says_what_it_was(seen):
    page, trace = seen
    labels = [mark.get_attribute("aria-label") for mark in marks(page).all()]
    assert len(labels) == len(trace.rounds)
    for label, round in zip(labels, trace.rounds, strict=True):
        accepted = sum(token.fate == "accepted" for token in round.draft)
        drafts = f"{accepted} of {len(round.draft)} drafts accepted" if round.draft else "nothing drafted"
        emitted = f"{len(round.emitted)} token{'s' * (len(round.emitted) != 1)}"
        found = re.fullmatch(
            rf"round {round.index}: {drafts}, {emitted}, drafting ([\d.]+) ms, verifying ([\d.]+) ms", label
        )
        assert found, (label, drafts, emitted)
        assert float(found[1]) == pytest.approx(round.draft_ms, abs=0.06) and float(
            found[2]
        ) == pytest.approx(round.verify_ms, abs=0.6)


def test_a_mark_is_as_high_as_what_it_brought_and_what_it_cost(seen):
    """As painted: the layers of its background are bricks above the line and bars below it."""
    page, trace = seen
    painted = marks(page).evaluate_all(HEIGHTS)
    kept = [sum(token.fate == "accepted" for token in round.draft) for round in trace.rounds]
    brick = max(layers[0] / count for layers, count in zip(painted, kept, strict=True) if count)
    longest = max(max(layers[4:]) for layers in painted)  # what takes longer ends there
    per_ms = max(layers[5] / round.verify_ms for layers, round in zip(painted, trace.rounds, strict=True))
    for (accepted, own, refused, _, *bars), count, round in zip(painted, kept, trace.rounds, strict=True):
        assert (
            brick > 2 and accepted == pytest.approx(count * brick) and (own > 2) == (round.next is not None)
        )
        assert refused == pytest.approx((len(round.draft) - count) * brick)
        assert bars == pytest.approx(
            [min(ms * per_ms, longest) for ms in (round.draft_ms, round.verify_ms)], abs=0.1
        )


def test_a_click_jumps_to_the_round_and_pins_its_first_token(seen):
    page, trace = seen
    for index in (len(trace.rounds) - 1, 2):
        marks(page).nth(index).click()
        inspector(page).get_by_role("button", name="pinned").wait_for()
        assert inspector(page).locator(".where").text_content().startswith(f"round {index}, ")
        pinned = page.locator(".stage .pinned")
        assert pinned.get_attribute("data-round") == str(index)
        stage, token = page.get_by_test_id("stage").bounding_box(), pinned.locator("b").bounding_box()
        assert stage["y"] <= token["y"] and token["y"] + token["height"] <= stage["y"] + stage["height"]
    page.keyboard.press("Escape")
    inspector(page).get_by_role("button", name="pinned").wait_for(state="hidden")


def test_the_round_under_the_pointer_lights_up_in_the_text_and_the_other_way_round(seen):
    page, trace = seen
    words = page.locator(".stage [data-round] > b")
    rounds = page.locator(".stage [data-round]").evaluate_all("all => all.map(e => Number(e.dataset.round))")
    for index in (1, 4):
        marks(page).nth(index).hover()
        assert words.evaluate_all(LIT) == [at for at, round in enumerate(rounds) if round == index]
        readout = page.get_by_test_id("timeline").locator(".readout")
        assert readout.text_content() == marks(page).nth(index).get_attribute("aria-label")
    page.mouse.move(5, 5)
    assert words.evaluate_all(LIT) == []
    token = next(at for at, round in enumerate(rounds) if round == 3)
    words.nth(token).hover()
    assert marks(page).evaluate_all(LIT) == [3]
    page.mouse.move(5, 5)
    assert marks(page).evaluate_all(LIT) == [] == words.evaluate_all(LIT)


def test_the_numbers_are_what_the_record_gives(seen):
    page, trace = seen
    drafts = [token for round in trace.rounds for token in round.draft]
    accepted, rejected = (sum(token.fate == fate for token in drafts) for fate in ("accepted", "rejected"))
    tokens, rounds = sum(len(round.emitted) for round in trace.rounds), len(trace.rounds)
    draft_ms, verify_ms = (
        sum(getattr(round, name) for round in trace.rounds) for name in ("draft_ms", "verify_ms")
    )
    per_second = 1000 * tokens / (draft_ms + verify_ms)
    c = trace.stats.drafter_step_ms / trace.stats.target_step_ms
    expected = {
        "tokens": f"{tokens}",
        "tokens_per_second": f"{per_second:.1f}",
        "acceptance_rate": f"{accepted / (accepted + rejected):.0%}",
        "mean_tokens_per_round": f"{tokens / rounds:.2f}",
        "rounds": f"{rounds}",
        "target_forwards": f"{trace.stats.target_forwards}",
        "saved": f"{tokens - rounds}",
        "cost_ratio": f"{c:.3f}",
        "implied": f"{tokens / rounds / (len(drafts) / rounds * c + 1):.2f} ×",
        "measured": f"{per_second * trace.stats.target_step_ms / 1000:.2f} ×",
        "draft_ms": f"{draft_ms:,.0f} ms",
        "verify_ms": f"{verify_ms:,.0f} ms",
        "seed": "3",
        "finish": trace.finish,
    }
    assert {name: number(page, name) for name in NUMBERS} == expected


def test_each_number_has_its_definition_when_pointed_at(seen):
    page, _ = seen
    page.mouse.move(5, 5)
    box = page.get_by_test_id("metrics")
    assert box.locator(".says:visible").count() == 0
    for name, (label, definition) in NUMBERS.items():
        entry = box.locator("div").filter(has=page.locator(f'[data-number="{name}"]'))
        entry.hover()
        assert box.locator(".says:visible").all_text_contents() == [definition]
        assert entry.locator("dt").text_content() == label
        shown = box.locator(".says:visible").bounding_box()
        assert shown["x"] >= 0 and shown["x"] + shown["width"] <= 1280
    page.mouse.move(5, 5)


def test_a_replay_plays_the_same_run_again_and_can_be_skipped(seen):
    page, trace = seen
    before = page.locator(".stage [data-round]").all_text_contents()
    page.get_by_test_id("replay").get_by_role("combobox").select_option(label="1/25 of it")
    page.get_by_role("button", name="Replay").click()
    wait_for_state(page, "running")
    page.locator(".stage [data-round]").first.wait_for()
    assert page.locator(".stage [data-round]").count() < len(before)
    page.get_by_role("button", name="Skip").click()
    wait_for_state(page, "ended")
    assert page.locator(".stage [data-round]").all_text_contents() == before
    assert marks(page).count() == len(trace.rounds)


def test_the_numbers_move_while_the_run_goes_on(visit, endless):
    page = visit(endless)
    set_field(page, "Max new tokens", 30_000)
    page.get_by_role("button", name="Generate").click()
    seen = set()
    for _ in range(200):
        seen.add(number(page, "tokens"))
        if len(seen) > 4:
            break
        page.wait_for_timeout(50)
    assert len(seen) > 4 and number(page, "finish") == "…"
    page.get_by_role("button", name="Stop").click()
    wait_for_state(page, "ended")
