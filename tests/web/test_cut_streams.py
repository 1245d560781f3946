"""A page whose connections are cut, and one that sleeps, goes on where it was."""

import time

import psutil
import pytest

from specdemo.ui.runs.limits import LOCAL
from tests.web.conftest import PATIENCE, executable, launch_flags
from tests.web.screen import (
    generate,
    number,
    on_stage,
    recorded,
    run,
    saved,
    wait_for_end,
    wait_for_rounds,
    wait_for_state,
)
from tests.web.server import served_here

pytestmark = pytest.mark.long

LONG = 30_000  # tokens; the tiny pair is busy for minutes


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with served_here(tmp_path_factory.mktemp("pair"), LOCAL) as served:
        yield served


def test_a_page_whose_connections_are_all_cut(browser, served, capsys):
    url, demo = served
    page = browser.new_page()
    loads = []
    page.on("load", lambda: loads.append(page.url))
    open_and_begin(page, url)
    (table,) = demo.server.config.http_protocol_class.args
    seen = [rounds_of(page)]
    for _ in range(3):
        for connection in [*table.open]:
            connection.loop.call_soon_threadsafe(connection.abandon)
        wait_for_rounds(page, seen[-1] + 5)  # it goes on
        seen.append(rounds_of(page))
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert len(loads) == 1, "the page was not loaded again"
    assert number(page, "finish") == "cancelled" and rounds_of(page) >= seen[-1]
    assert on_stage(page) == recorded(saved(page))
    with capsys.disabled():
        print(f"\nall connections cut three times; rounds on the page before and after: {seen}")
    page.close()


def test_a_browser_that_sleeps_for_a_minute_comes_back_to_its_run(browser, served):
    before = chromiums()
    other = browser.browser_type.launch(executable_path=executable(), args=launch_flags())
    page = other.new_page()
    open_and_begin(page, served[0], max_new_tokens=2000)
    processes = chromiums() - before
    for process in processes:
        process.suspend()
    time.sleep(60)
    for process in processes:
        process.resume()
    wait_for_state(page, "ended")
    assert number(page, "tokens") == "2,000" and on_stage(page) == recorded(saved(page))
    run(page, seed=4, max_new_tokens=2)  # and goes on
    assert number(page, "tokens") == "2"
    other.close()


def open_and_begin(page, address: str, max_new_tokens: int = LONG) -> None:
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.locator('.run:not([data-state="empty"])').wait_for()
    generate(page, "Once", max_new_tokens=max_new_tokens, seed=3)
    wait_for_state(page, "running")  # and not "recorded", as the first run on every page
    wait_for_rounds(page)


def rounds_of(page) -> int:
    return int(number(page, "rounds").replace(",", ""))


def chromiums() -> set[psutil.Process]:
    """The processes of all browsers that the tests have started."""
    return {one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()}
