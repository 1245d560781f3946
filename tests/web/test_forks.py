"""The comparison with plain text beside a greedy run in 16 bits, in a real browser.
tests/models/test_fork_of_page.py has what is told."""

import json

import pytest

import specdemo.session as session
from tests.models.test_fork import accepts_all
from tests.web.conftest import serving
from tests.web.screen import close_settings, run

TAB, BUTTON = "Exactness", "Compare with plain text"


def plant() -> None:
    session.rule_of = lambda params: accepts_all


@pytest.fixture(scope="module")
def in_16_bits():
    with serving("--pair", "embedded-poor", "--dtype", "bfloat16", change=plant) as url:
        yield url


def opened(page):
    page.get_by_role("tab", name=TAB, exact=True).click()
    page.get_by_test_id("exactness").locator(".answer").wait_for()
    return page.get_by_test_id("exactness").locator(".fork")


def test_a_greedy_run_in_16_bits_is_compared_and_the_report_saved(visit, in_16_bits):
    page = visit(in_16_bits, still=True)
    run(page, "Once upon a time", temperature=0.8, max_new_tokens=24)
    close_settings(page)
    assert not opened(page).is_visible(), "it is sampled"
    run(page, temperature=0)
    close_settings(page)
    fork = opened(page)
    fork.get_by_role("button", name=BUTTON).click()
    verdict = fork.get_by_test_id("fork-verdict")
    verdict.wait_for()
    assert verdict.inner_text().startswith("A fault: the speculative text has a token whose logit is ")
    rows = fork.locator("tbody th").all_inner_texts()
    assert rows == ["Plain, 1 row", "Verifying, 5 rows", "The model's own", "float32"]
    with page.expect_download() as download:
        fork.get_by_role("button", name="JSON").click()
    report = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert report["verdict"] == "fault" and report["fork"]["plain"]["text"]


def test_a_run_in_float32_offers_none(visit, url):
    page = visit(url, still=True)
    run(page, "Once upon a time", temperature=0, max_new_tokens=24)
    close_settings(page)
    assert not opened(page).is_visible()
