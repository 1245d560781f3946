"""Runs of vLLM servers in a real browser: opened from a file, and live against stand-ins. What the server
does not tell is called so. tests/js/served.test.js tests what is written about it."""

import pytest

from specdemo.ui.view.texts import ENGINE_ONLY
from tests.runs_served import served_trace
from tests.stand_ins.vllm import StandIn, slowly
from tests.web.conftest import RECORDED, serving
from tests.web.screen import (
    fates,
    inspector,
    joined,
    number,
    on_stage,
    open_settings,
    open_trace,
    run,
    saved,
    tokens,
    wait_for_state,
)

DRAFTING = [(5,), *((4 * at + 6, 4 * at + 7, 4 * at + 8, 4 * at + 9)[: at % 4 + 1] for at in range(30))]


@pytest.fixture(scope="module")
def opened(visit_for_all, bare, tmp_path_factory):
    """opened(served): a page that shows the run of a server, or one of the engine."""
    page, file = visit_for_all(bare, still=True), tmp_path_factory.mktemp("served") / "run.json"
    served_trace(True).save(file)

    def open_one(served: bool):
        open_trace(page, file if served else RECORDED)
        wait_for_state(page, "recorded")
        page.get_by_role("tab", name="Text", exact=True).click()
        return page

    return open_one


def test_the_stage_has_what_the_server_tells(opened):
    trace, page = served_trace(True), opened(True)
    unknown = {None: ""}
    expected = [
        (fate, unknown.get(token.id, str(token.id)), str(one.index), token.text)
        for one in trace.rounds
        for fate, token in fates(one)
    ]
    assert on_stage(page) == expected and joined(tokens(page), "prompt") == "Once upon a time"
    assert saved(page) == trace


def test_what_is_not_told_is_called_so_and_comes_back_with_a_run_of_the_engine(opened):
    def shown(page) -> set[str]:
        page.locator(".all-numbers").evaluate("details => { details.open = true; }")
        numbers = page.locator("[data-number]:visible")
        return set(numbers.evaluate_all("numbers => numbers.map((one) => one.dataset.number)"))

    page = opened(True)
    panel = inspector(page)
    page.locator('.stage [data-fate="rejected"] b').first.click()
    assert panel.locator(".values dd").all_text_contents() == ["not told by the server"] * 4
    assert not panel.locator(".judgement").is_visible() and panel.locator(".what code").text_content() == "?"
    assert not shown(page) & {*ENGINE_ONLY}
    places = page.get_by_test_id("positions").locator(".places")
    page.get_by_role("tab", name="Where drafts die").click()
    assert places.is_visible()
    page.get_by_role("tab", name="Exactness").click()
    assert "does not tell p, q and u" in page.get_by_test_id("exactness").locator(".answer").text_content()
    page.get_by_role("tab", name="Gamma").click()
    page.get_by_test_id("gamma").get_by_text("Tokens a round only").wait_for()
    opened(False)
    assert shown(page) >= {*ENGINE_ONLY}
    page.get_by_role("tab", name="Where drafts die").click()
    assert places.is_visible()


@pytest.fixture(scope="module")
def drafting():
    return StandIn(DRAFTING, gamma=3, detailed=True, others=1, before_chunk=slowly(0.02))


@pytest.fixture(scope="module")
def page(visit_for_all, drafting):
    with drafting.serving() as first, serving("--vllm", first) as url:
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


def test_what_the_server_decides_has_no_controls(page):
    open_settings(page)
    for label in ("Drafting method", "Draft length γ"):
        assert not page.get_by_label(label).is_visible()
