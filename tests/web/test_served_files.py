"""A server's run in a real browser, opened from a file: what it tells is there, and the rest is called so.

tests/js/served.test.js tests what is written about it.
"""

from pathlib import Path

import pytest

from specdemo.events.speedup import estimates
from specdemo.events.trace import Trace
from specdemo.ui.view.served import ENGINE_ONLY, SERVER_NUMBERS
from tests.runs_served import served_trace
from tests.web.conftest import RECORDED
from tests.web.screen import (
    fates,
    inspector,
    joined,
    notice,
    number,
    on_stage,
    open_trace,
    saved,
    tokens,
    wait_for_state,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[bool, Path]:
    """Whether the server tells how much it drafts -> the trace of such a run."""
    folder = tmp_path_factory.mktemp("served")
    made = {told: folder / f"told-{told}.json" for told in (True, False)}
    for told, file in made.items():
        served_trace(told).save(file)
    return made


@pytest.fixture(scope="module")
def shared(visit_for_all, bare):
    return visit_for_all(bare, still=True)


def opened(page, file: Path):
    open_trace(page, file)
    wait_for_state(page, "recorded")
    page.get_by_role("tab", name="Text", exact=True).click()
    return page


def shown(page, name: str) -> bool:
    page.locator(".metrics details").evaluate("details => { details.open = true; }")
    visible = page.locator(f'[data-number="{name}"]').is_visible()
    page.locator(".metrics details").evaluate("details => { details.open = false; }")
    return visible


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_the_stage_has_what_the_server_tells(shared, files, told):
    trace, page = served_trace(told), opened(shared, files[told])
    unknown = {None: ""}
    expected = [
        (fate, unknown.get(token.id, str(token.id)), str(one.index), token.text)
        for one in trace.rounds
        for fate, token in fates(one)
    ]
    assert on_stage(page) == expected and joined(tokens(page), "prompt") == "Once upon a time"
    assert page.locator(".stage b.unknown").count() == (5 if told else 0)
    assert saved(page) == trace
    assert notice(page, "recorded").startswith("A recorded run, played without a server. A server made it: ")
    whose = page.get_by_test_id("whose").text_content()
    assert ("drafting by eagle3 · γ 3" if told else "how it drafts is not told") in whose


def test_a_token_that_is_not_told_is_seen_and_can_be_hidden(shared, files):
    page = opened(shared, files[True])
    chip = page.locator('.stage [data-fate="rejected"]').first
    sign = chip.locator("b").evaluate("word => getComputedStyle(word, '::before').content")
    assert sign == '"?"' and chip.bounding_box()["width"] > 4 and chip.text_content() == ""
    legend = page.get_by_test_id("legend")
    legend.get_by_role("button", name="rejected").click()
    assert not chip.is_visible()
    legend.get_by_role("button", name="rejected").click()
    assert chip.is_visible()


def test_the_inspector_says_what_is_not_told(shared, files):
    page = opened(shared, files[True])
    panel = inspector(page)
    for fate, raw_p, rows in (("accepted", "0.6250", 2), ("rejected", "not told by the server", 0)):
        page.locator(f'.stage [data-fate="{fate}"] b').first.click()
        untold = ["not told by the server"] * 3
        assert panel.locator(".values dd").all_text_contents() == [raw_p, *untold]
        assert panel.locator(".likely tbody tr:visible").count() == rows
        assert not panel.locator(".judgement").is_visible()
    assert panel.locator(".what code").text_content() == "?"
    assert panel.locator(".verdict").text_content().endswith("Which token that was is not told.")
    opened(page, files[False])
    page.locator('.stage [data-round="1"][data-fate="sampled"] b').click()
    assert "(bonus) is not known" in panel.locator(".verdict").text_content()


def test_the_timeline_has_one_bar_by_arrival(shared, files):
    page = opened(shared, files[True])
    timeline = page.get_by_test_id("timeline")
    keys = timeline.locator(".key > span:visible").all_text_contents()
    assert timeline.locator(".mark").count() == 5 and keys[-1].startswith("arrival; full height: 50 ms")
    mark = timeline.locator(".mark").nth(1)
    assert "3 tokens, arrived 30.0 ms after the round before" in mark.get_attribute("aria-label")
    bars = [mark.evaluate(f"mark => mark.style.getPropertyValue('--{bar}')") for bar in ("draft", "verify")]
    assert bars == ["0", "30"]


def test_the_numbers_are_those_of_a_server_and_change_back_with_the_run(shared, files):
    page = opened(shared, files[True])
    label = page.locator('div:has(> [data-number="tokens_per_second"]) > dt')
    assert label.text_content() == "tokens/s by arrival" and number(page, "tokens_per_second") == "91.7"
    assert number(page, "network_ms") == "41 ms" and number(page, "acceptance_rate") == "70%"
    assert not any(shown(page, name) for name in ENGINE_ONLY)
    assert all(shown(page, name) for name in SERVER_NUMBERS)
    assert "No speed-up is known" in page.get_by_test_id("verdict").text_content()
    clock = page.locator('.replay option[value="1"]')
    assert clock.text_content() == "server speed"
    opened(page, files[False])
    assert number(page, "acceptance_rate") == "not told"
    assert label.text_content() == "tokens/s by arrival"
    opened(page, RECORDED)
    assert label.text_content() == "tokens/s" and clock.text_content() == "engine speed"
    assert all(shown(page, name) for name in ENGINE_ONLY)
    assert not any(shown(page, name) for name in SERVER_NUMBERS)
    trace = Trace.load(RECORDED)
    assert number(page, "tokens_per_second") == f"{trace.stats.tokens_per_second:,.1f}"


def test_the_other_views_offer_what_the_facts_allow(shared, files):
    page = opened(shared, files[True])
    page.get_by_role("tab", name="Where drafts die").click()
    panel = page.get_by_test_id("positions")
    assert panel.locator(".places tbody tr").count() == 3 and not panel.locator(".kinds").is_visible()
    panel.get_by_text("Not by kind of token").wait_for()
    assert panel.locator(".counters tbody").inner_text().split()[:5] == ["place", "1", "4", "3", "75%"]
    page.get_by_role("tab", name="Exactness").click()
    assert "does not tell p, q and u" in page.get_by_test_id("exactness").locator(".answer").text_content()
    assert not page.get_by_test_id("exactness").locator("figure").is_visible()
    assert not page.get_by_text("Why the text is the target's own").is_visible(), "nobody here can tell"
    page.get_by_role("tab", name="Gamma").click()
    gamma = page.get_by_test_id("gamma")
    gamma.get_by_text("Tokens a round only: Leviathan’s formula needs p and q").wait_for()
    trace = served_trace()
    estimated = [f"{one.seen_tokens:.2f}" for one in estimates(trace.rounds, trace.stats)]
    seen = gamma.locator('tbody [data-column="tokensSeen"]').all_text_contents()
    assert len(estimated) == 4 and seen[:5] == [*estimated, "–"]
    opened(page, files[False])
    page.get_by_role("tab", name="Where drafts die").click()
    panel.get_by_text("the server does not tell how many tokens it drafted").wait_for()
    panel.get_by_text("Other visitors' requests count there, too").wait_for()
    assert not panel.locator(".places").is_visible() and panel.locator(".counters").is_visible()
    opened(page, RECORDED)
    page.get_by_role("tab", name="Where drafts die").click()
    assert panel.locator(".kinds").is_visible() and not panel.locator(".counters").is_visible()
