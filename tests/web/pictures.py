"""Makes the pictures of the READMEs.

python -m tests.web.pictures
python -m tests.web.pictures --vllm URL    only the picture of a vLLM server's run
"""

import io
import sys
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from specdemo.events.trace import Trace
from specdemo.ui.page.page import RECORDED, STORY
from tests.web.conftest import ROOT, executable, launch_flags, serving
from tests.web.screen import close_settings, set_field

WINDOW = {"width": 1280, "height": 900}
FRAMES, PAUSE = 48, 120  # of the animated picture; ms


def finished(page: Page) -> Page:
    set_field(page, "Seed", Trace.load(RECORDED).params.seed)
    close_settings(page)
    page.get_by_role("button", name="Generate").click()
    page.locator('.run[data-state="ended"]').wait_for()
    return page


def page_at(page: Page, url: str) -> Page:
    page.goto(f"{url}/?__theme=light")
    page.locator('.run:not([data-state="empty"])').wait_for()  # the scripts are there
    return page


def animate(browser, url: str, file: Path) -> None:
    """A run played slowly, as moving picture."""
    page = browser.new_page(viewport=WINDOW)
    finished(page_at(page, url))
    page.get_by_test_id("replay").get_by_role("combobox").select_option("0.04")
    page.get_by_role("button", name="Replay").click()
    frame, frames = page.locator(".run").bounding_box(), []
    while len(frames) < FRAMES:
        frames.append(Image.open(io.BytesIO(page.screenshot(clip=frame))).convert("RGB"))
    page.close()
    how = {"save_all": True, "duration": PAUSE, "loop": 0, "quality": 60, "method": 4}
    frames[0].save(file, append_images=frames[1:], **how)


def picture_of_server(address: str) -> None:
    with serving("--vllm", address) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=launch_flags())
        page = browser.new_page(viewport=WINDOW)
        page.goto(f"{url}/?__theme=light&temperature=0&prompt={quote(STORY)}&run=1")
        page.locator('.run[data-state="ended"]').wait_for()
        page.locator('[data-fate="rejected"]').first.click()
        page.screenshot(path=ROOT / "assets" / "vllm.png")
        browser.close()


def main(option: str = "", address: str = "") -> None:
    if option == "--vllm":
        return picture_of_server(address)
    with serving() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=launch_flags())
        page = finished(page_at(browser.new_page(viewport=WINDOW), url))
        page.locator('[data-fate="rejected"]').nth(1).click()
        page.screenshot(path=ROOT / "assets" / "page-light.png")
        animate(browser, url, ROOT / "assets" / "run.webp")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
