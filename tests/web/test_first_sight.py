"""What a newcomer sees at first, and what the page says when its server has gone."""

import pytest

from tests.web.conftest import PATIENCE, address_of, start
from tests.web.screen import generate, notice, run, tokens

pytestmark = pytest.mark.slow


def test_the_instruments_come_when_they_are_asked_for(visit, bare):
    page = visit(bare, still=True, first=True)
    tab = page.get_by_role("tab", name="Text")
    assert not tab.is_visible()
    page.get_by_role("button", name="Instruments").focus()
    page.keyboard.press("Enter")
    assert tab.is_visible() and tab.evaluate("e => e === document.activeElement")
    assert page.get_by_role("button", name="Lecture").is_visible()


def test_when_the_server_has_gone_the_page_says_so_and_keeps_the_run(browser):
    app = start()
    page = browser.new_page()
    try:
        page.set_default_timeout(PATIENCE)
        page.emulate_media(reduced_motion="reduce")
        page.goto(address_of(app))
        page.locator('.run:not([data-state="empty"])').wait_for()
        run(page, "Once", max_new_tokens=12, seed=1)
        before = tokens(page)
        app.kill()
        app.wait()
        generate(page)
        assert notice(page, "error") == "The server has gone. Your run is kept."
        assert tokens(page) == before and page.get_by_role("button", name="Stop").is_disabled()
        page.get_by_role("button", name="One round back").click()
        assert 0 < len(tokens(page)) < len(before)
    finally:
        page.close()
        app.kill()
