"""Runs of vLLM servers in a real browser, against stand-ins: live rounds, what changes at the end, a race, a
typed address, and a server that dies."""

import pytest

from tests.stand_ins.vllm import BreakOff, StandIn, slowly
from tests.web.conftest import serving
from tests.web.screen import (
    box,
    fates,
    joined,
    notice,
    number,
    on_stage,
    open_settings,
    run,
    saved,
    set_field,
    tokens,
)

DRAFTING = [(5,), *((4 * at + 6, 4 * at + 7, 4 * at + 8, 4 * at + 9)[: at % 4 + 1] for at in range(30))]
ALONE = [(id_,) for round_ in DRAFTING for id_ in round_]


@pytest.fixture(scope="module")
def drafting():
    return StandIn(DRAFTING, gamma=3, detailed=True, others=1, before_chunk=slowly(0.02))


@pytest.fixture(scope="module")
def alone():
    return StandIn(ALONE, gamma=None, before_chunk=slowly(0.02))


@pytest.fixture(scope="module")
def page(visit_for_all, drafting, alone):
    with (
        drafting.serving() as first,
        alone.serving() as second,
        serving("--vllm", first, "--vllm", second) as url,
    ):
        yield visit_for_all(url, still=True)


def test_a_run_is_shown_round_by_round_and_settled_at_its_end(page):
    run(page, "Once")
    trace = saved(page)
    assert [one.next.source for one in trace.rounds[1:6]] == ["resampled"] * 3 + ["bonus", "resampled"]
    assert all(one.drafts_told for one in trace.rounds)
    shown = [fate for fate, *_ in on_stage(page)]
    assert shown == [fate for one in trace.rounds for fate, _ in fates(one)]
    assert joined(tokens(page), "accepted", "resampled", "bonus", "sampled") == trace.text
    assert number(page, "tokens") == str(trace.stats.tokens)
    assert "drafts up to 3 tokens" in notice(page, "note")


def test_what_the_server_decides_has_no_controls_and_the_two_servers_race(page):
    open_settings(page)
    assert page.get_by_label("Sampler").is_visible()
    for label in ("Drafting method", "Draft length γ"):
        assert not page.get_by_label(label).is_visible()
    page.get_by_role("tab", name="Race").click()
    page.get_by_role("button", name="Race: the target alone against this setting").click()
    race = page.get_by_test_id("race")
    race.get_by_text("drafting (Server").first.wait_for(timeout=120_000)
    race.get_by_text("cannot be seen from here").wait_for()
    page.get_by_role("tab", name="Text", exact=True).click()


def test_a_server_that_dies_leaves_what_came_and_the_next_run_works(page, drafting):
    def dies(number, write):
        if number == 3:
            raise BreakOff

    drafting.before_chunk = dies
    box(page, "Prompt").fill("Twice")
    page.get_by_role("button", name="Generate").click()
    page.locator('[data-kind="error"]').filter(has_text="broke off").wait_for()
    assert len({token["round"] for token in tokens(page) if token["fate"] != "prompt"}) == 3
    drafting.before_chunk = slowly(0.02)
    run(page, "Thrice")
    assert saved(page).finish == "length"


def test_an_address_that_is_typed_takes_the_place_of_the_pair(page):
    with StandIn([(5,), (6,), (7,)], gamma=None, model="typed").serving() as url:
        set_field(page, "Server", url)
        run(page, "Once")
        assert saved(page).pair.server.model == "typed"
        assert page.get_by_label("Pair", exact=True).count() == 0
        set_field(page, "Server", "host")
        page.get_by_role("button", name="Generate").click()
        wrong = "Server must be an address that begins with http"
        page.locator('[data-kind="error"]').filter(has_text=wrong).wait_for()
        set_field(page, "Server", "")
        page.get_by_label("Pair", exact=True).wait_for()
