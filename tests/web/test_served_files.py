"""A server's run in a real browser, opened from a file: what it tells is there, and the rest is called so.

tests/js/served.test.js tests what is written about it.
"""

import pytest

from specdemo.events.speedup import estimates
from specdemo.ui.view.served import ENGINE_ONLY, SERVER_NUMBERS
from tests.runs_served import served_trace
from tests.web.conftest import RECORDED
from tests.web.screen import (
    fates,
    inspector,
    joined,
    number,
    on_stage,
    open_trace,
    saved,
    tokens,
    wait_for_state,
)


@pytest.fixture(scope="module")
def opened(visit_for_all, bare, tmp_path_factory):
    """opened(told): a page that shows the run of a server that tells how much it drafts, or not; None: a run
    of the engine."""
    page, folder = visit_for_all(bare, still=True), tmp_path_factory.mktemp("served")
    files = {told: folder / f"told-{told}.json" for told in (True, False)}
    for told, file in files.items():
        served_trace(told).save(file)

    def open_one(told: bool | None):
        open_trace(page, files.get(told, RECORDED))
        wait_for_state(page, "recorded")
        page.get_by_role("tab", name="Text", exact=True).click()
        return page

    return open_one


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_the_stage_has_what_the_server_tells(opened, told):
    trace, page = served_trace(told), opened(told)
    unknown = {None: ""}
    expected = [
        (fate, unknown.get(token.id, str(token.id)), str(one.index), token.text)
        for one in trace.rounds
        for fate, token in fates(one)
    ]
    assert on_stage(page) == expected and joined(tokens(page), "prompt") == "Once upon a time"
    assert saved(page) == trace
    assert page.get_by_test_id("whose").text_content().startswith("Recorded run: ")
    signs = "words => words.map((word) => getComputedStyle(word, '::before').content)"
    assert page.locator(".stage b.unknown").evaluate_all(signs) == ['"?"'] * (5 if told else 0)
    assert page.get_by_test_id("timeline").locator(".mark").count() == 5


def test_the_inspector_says_what_is_not_told(opened):
    page = opened(True)
    panel = inspector(page)
    for fate, raw_p, rows in (("accepted", "0.6250", 2), ("rejected", "not told by the server", 0)):
        page.locator(f'.stage [data-fate="{fate}"] b').first.click()
        untold = ["not told by the server"] * 3
        assert panel.locator(".values dd").all_text_contents() == [raw_p, *untold]
        assert panel.locator(".likely tbody tr:visible").count() == rows
        assert not panel.locator(".judgement").is_visible()
    assert panel.locator(".what code").text_content() == "?"


def test_the_numbers_are_those_of_a_server_and_change_back_with_the_run(opened):
    def shown(page) -> set[str]:
        page.locator(".all-numbers").evaluate("details => { details.open = true; }")
        numbers = page.locator("[data-number]:visible")
        return set(numbers.evaluate_all("numbers => numbers.map((one) => one.dataset.number)"))

    page = opened(True)
    label = page.locator('div:has(> [data-number="tokens_per_second"]) > dt')
    clock = page.locator('.replay option[value="1"]')
    assert (label.text_content(), clock.text_content()) == ("tokens/s by arrival", "server speed")
    assert number(page, "network_ms") == "41 ms" and number(page, "acceptance_rate") == "70%"
    assert shown(page) >= {*SERVER_NUMBERS} and not shown(page) & {*ENGINE_ONLY}
    assert "No speed-up is known" in page.get_by_test_id("verdict").text_content()
    assert number(opened(False), "acceptance_rate") == "not told"
    opened(None)
    assert (label.text_content(), clock.text_content()) == ("tokens/s", "engine speed")
    assert shown(page) >= {*ENGINE_ONLY} - {"experts_read"} and not shown(page) & {*SERVER_NUMBERS}
    page.locator(".all-numbers").evaluate("details => { details.open = false; }")


def test_the_other_views_offer_what_the_facts_allow(opened):
    page = opened(True)
    page.get_by_role("tab", name="Where drafts die").click()
    panel = page.get_by_test_id("positions")
    assert panel.locator(".places tbody tr").count() == 3 and not panel.locator(".kinds").is_visible()
    assert panel.locator(".counters tbody").inner_text().split()[:5] == ["place", "1", "4", "3", "75%"]
    page.get_by_role("tab", name="Exactness").click()
    exactness = page.get_by_test_id("exactness")
    assert "does not tell p, q and u" in exactness.locator(".answer").text_content()
    assert not exactness.locator("figure").is_visible()
    page.get_by_role("tab", name="Gamma").click()
    gamma = page.get_by_test_id("gamma")
    gamma.get_by_text("Tokens a round only: Leviathan’s formula needs p and q").wait_for()
    trace = served_trace()
    estimated = [f"{one.seen_tokens:.2f}" for one in estimates(trace.rounds, trace.stats)]
    seen = gamma.locator('tbody [data-column="tokensSeen"]').all_text_contents()
    assert len(estimated) == 4 and seen[:5] == [*estimated, "–"]
    opened(False)
    page.get_by_role("tab", name="Where drafts die").click()
    panel.get_by_text("the server does not tell how many tokens it drafted").wait_for()
    assert not panel.locator(".places").is_visible() and panel.locator(".counters").is_visible()
    opened(None)
    page.get_by_role("tab", name="Where drafts die").click()
    assert panel.locator(".kinds").is_visible() and not panel.locator(".counters").is_visible()
