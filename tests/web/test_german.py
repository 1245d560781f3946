"""The page in German: what Gradio draws, what the server tells of a run, and what it warns of."""

from contextlib import contextmanager

import pytest

from tests.web.screen import first_token, generate, open_settings, run, wait_for_end

pytestmark = pytest.mark.slow


@contextmanager
def reader(browser, url: str, locale: str):
    """A page of somebody whose browser asks for this language."""
    context = browser.new_context(locale=locale)
    page = context.new_page()
    try:
        page.set_default_timeout(20_000)
        page.emulate_media(reduced_motion="reduce")
        page.goto(url)
        page.locator('.run:not([data-state="empty"])').wait_for()
        yield page
    finally:
        context.close()


@pytest.mark.parametrize(("locale", "query"), [("de-AT", ""), ("en-US", "?lang=de")])
def test_a_run_is_told_in_the_visitors_language(browser, url, locale, query):
    with reader(browser, f"{url}{query}", locale) as page:
        assert page.title() == "Spekulatives Dekodieren, Token für Token"
        assert page.locator("html").get_attribute("lang") == "de"
        assert page.get_by_test_id("whose").text_content().startswith("Aufgezeichneter Lauf: ")
        assert "kleines Modell" in page.locator(".intro").text_content()
        page.get_by_label("Prompt", exact=True).and_(page.locator("textarea")).fill("Once")
        page.get_by_role("button", name="Einstellungen").click()
        page.get_by_label("Höchstzahl neuer Token").and_(page.locator("input")).first.fill("12")
        page.get_by_label("Seed").and_(page.locator("input, textarea")).first.fill("1")
        before = first_token(page)
        page.get_by_role("button", name="Erzeugen").click()
        wait_for_end(page, before)
        assert "Durchläufen des Zielmodells" in page.get_by_test_id("verdict").text_content()
        assert "Seed 1" in page.get_by_test_id("whose").text_content()
        assert "Gewichte im Speicher" in page.get_by_test_id("notice").text_content()
        if query:
            assert "lang=de" in page.url


def test_a_warning_and_a_refusal_name_the_control_as_it_is_called(browser, url):
    with reader(browser, f"{url}?lang=de", "en-US") as page:
        page.get_by_role("button", name="Einstellungen").click()
        seed = page.locator("#set-seed")
        seed.locator("input, textarea").fill("x")
        seed.locator("input, textarea").blur()
        seed.get_by_text("⚠").wait_for()
        page.get_by_label("Temperatur").and_(page.locator("input[type=number]")).first.fill("0")
        page.get_by_label("Temperatur").and_(page.locator("input[type=number]")).first.blur()
        page.get_by_text("0 ist greedy").wait_for()
        page.get_by_role("button", name="Erzeugen").click()
        page.locator('.notice[data-kind="error"]').wait_for()
        refused = "Seed: erlaubt ist eine ganze Zahl von 0 bis 9.007.199.254.740.991, nicht 'x'"
        assert page.get_by_test_id("notice").text_content() == refused
        assert seed.get_by_text("⚠").text_content().startswith("⚠ erlaubt ist eine ganze Zahl von 0 bis ")
        assert seed.locator("[aria-invalid]").count() == 1


def test_an_english_reader_beside_a_german_one_reads_english(browser, url):
    with reader(browser, url, "de-DE") as german, reader(browser, url, "en-US") as english:
        assert german.get_by_role("button", name="Erzeugen").is_visible()
        run(english, "Once", max_new_tokens=12, seed=1)
        assert "target forward" in english.get_by_test_id("verdict").text_content()
        generate(english, seed="x")
        english.locator('.notice[data-kind="error"]').wait_for()
        open_settings(english)
        assert english.locator("#set-seed").get_by_text("must be").is_visible()
