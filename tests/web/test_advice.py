"""The adviser in a real browser: what is measured before it is stopped is shown, and can be saved."""

from tests.web.screen import close_settings, set_field
from tests.web.test_measurements import tab, wait_for_state


def test_it_says_what_pays_for_the_chosen_work_and_saves_a_report(visit_for_all, url):
    page = visit_for_all(url, still=True)
    set_field(page, "Max new tokens", 24)
    close_settings(page)
    panel = tab(page, "Advise", "advise")
    works = panel.locator(".works input")
    assert works.count() == 6 and all(works.nth(at).is_checked() for at in range(6))
    for at in range(6):
        works.nth(at).uncheck()
    panel.get_by_role("button", name="Advise").click()
    panel.get_by_text("Choose at least one kind of work").wait_for()
    wait_for_state(page, "advise", "failed")
    panel.get_by_label("Story").check()
    panel.get_by_role("button", name="Advise").click()
    panel.locator(".advised dt").first.wait_for(timeout=120_000)
    panel.get_by_role("button", name="Stop").click()
    wait_for_state(page, "advise", "stopped")
    assert panel.locator(".advised dt").all_inner_texts()[0].startswith("Story: ")
    assert panel.locator(".advised dt").count() == 1, "one kind of work needs no setting for all"
    panel.get_by_text("Measured so far for").wait_for()
    panel.locator("summary", has_text="All that was measured").click()
    assert panel.locator("tbody tr").count() >= 1
    with page.expect_download() as saved:
        panel.get_by_role("button", name="Save report").click()
    report = saved.value.path().read_text(encoding="utf-8")
    assert report.startswith("<!doctype html>") and "specdemo.advice/1" in report
