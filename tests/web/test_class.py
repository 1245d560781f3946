"""A class: exercises in a hall, by phone; the handout; and the files that need no server."""

import re

import pytest

from specdemo.cli.main import main
from tests.web.conftest import listening
from tests.web.screen import PHONE, wait_for_state


def test_a_hall_answers_what_the_lecturer_asks(browser, visit, bare):
    page = visit(f"{bare}/?tab=exercises", still=True)
    panel = page.get_by_test_id("exercises")
    panel.get_by_role("button", name="Ask the hall").click()
    link = panel.locator(".way code").inner_text()
    assert panel.locator(".way img").evaluate("e => e.naturalWidth") > 100
    phone = listening(browser.new_context(**PHONE).new_page())
    phone.goto(link)
    student = phone.get_by_test_id("exercises")
    question = panel.locator(".question").inner_text()
    student.get_by_text(question).wait_for()
    assert not phone.get_by_role("button", name="Generate").is_visible()
    student.get_by_role("button", name="rejected").tap()
    verdict = student.get_by_test_id("exercise-verdict")
    assert verdict.inner_text().startswith(("Right.", "No."))
    box = verdict.bounding_box()
    assert box["y"] + box["height"] < PHONE["viewport"]["height"], "above the fold"
    panel.get_by_role("button", name="kept").click()
    panel.get_by_role("button", name="rejected1").wait_for()
    panel.get_by_role("button", name="Show me").click()
    assert page.locator(".stage .pinned").count() == 1
    page.get_by_role("tab", name="Exercises").click()
    panel.get_by_role("button", name="Another").click()
    student.get_by_text(panel.locator(".question").inner_text()).wait_for()
    assert verdict.inner_text() == ""


def test_the_handout_has_the_run_a_worked_rejection_and_why_it_is_exact_on_two_pages(visit, bare):
    page = visit(bare, still=True)
    wait_for_state(page, "recorded")
    assert len(re.findall(rb"/Type ?/Page\b", page.pdf(format="A4"))) == 2
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.locator("body").inner_text()
    for words in (
        "Rejected: u = 0.8700 is not below min(1, p/q) = 0.7786",
        "So x is drafted",
        "seed 33",
        "= p",
    ):
        assert words in printed
    assert "Generate" not in printed and "What could be done wrong" not in printed
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator(".inspector .hint").first.is_visible(), "and then it is as before"


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_class_needs_no_server(browser, tmp_path, language):
    assert main(["export", str(tmp_path), "--language", language]) == 0
    files = [*tmp_path.iterdir()]
    assert sum(file.stat().st_size for file in files) < 5e6
    page = listening(browser.new_context(offline=True).new_page())
    page.goto((tmp_path / "index.html").as_uri())
    assert page.locator("a").count() == len(files) - 1
    page.locator("a").first.click()
    page.locator("#tab-exercises").click()
    page.locator(".choices button").first.click()
    assert page.get_by_test_id("exercise-verdict").inner_text()
    page.locator(".lecture").click()
    page.keyboard.press("1")
    page.keyboard.press("ArrowRight")
    page.locator('.stage [data-round="0"]').first.wait_for()
    assert page.broken == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.startswith("specdemo: folder must be one that can be written to, not ")
