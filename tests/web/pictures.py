"""Makes the pictures of the READMEs.

python -m tests.web.pictures [FOLDER]      with a folder: pictures in both themes and widths, to look at
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

FRAMES, PAUSE = 48, 120  # of the animated picture; ms


def finished(page: Page) -> Page:
    set_field(page, "Seed", Trace.load(RECORDED).params.seed)
    close_settings(page)
    page.get_by_role("button", name="Generate").click()
    page.locator('.run[data-state="ended"]').wait_for()
    return page


def look(browser, url: str, folder: Path) -> None:
    for theme in ("light", "dark"):
        for width, height in ((1280, 900), (390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=1)
            finished(page_at(page, url, theme))
            rejected = page.locator('[data-fate="rejected"]').nth(1)
            rejected.click()
            page.wait_for_timeout(300)
            page.screenshot(path=folder / f"page-{theme}-{width}.png", full_page=width < 800)
            page.close()


def page_at(page: Page, url: str, theme: str = "light") -> Page:
    page.goto(f"{url}/?__theme={theme}")
    page.locator('.run:not([data-state="empty"])').wait_for()  # the scripts are there
    return page


def animate(browser, url: str, file: Path) -> None:
    """A run played slowly, as moving picture."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    finished(page_at(page, url))
    page.get_by_test_id("replay").get_by_role("combobox").select_option("0.04")
    page.get_by_role("button", name="Replay").click()
    frame, frames = page.locator(".run").bounding_box(), []
    while len(frames) < FRAMES:
        frames.append(Image.open(io.BytesIO(page.screenshot(clip=frame))).convert("RGB"))
    page.close()
    frames[0].save(
        file, save_all=True, append_images=frames[1:], duration=PAUSE, loop=0, quality=60, method=4
    )


def picture_of_server(address: str) -> None:
    with serving("--vllm", address) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=launch_flags())
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}/?__theme=light&temperature=0&prompt={quote(STORY)}&run=1")
        page.locator('.run[data-state="ended"]').wait_for()
        page.locator('[data-fate="rejected"]').first.click()
        page.screenshot(path=ROOT / "assets" / "vllm.png")
        browser.close()


def main(folder: str | None = None, address: str = "") -> None:
    if folder == "--vllm":
        return picture_of_server(address)
    with serving() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=launch_flags())
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            look(browser, url, Path(folder))
        else:
            page = finished(page_at(browser.new_page(viewport={"width": 1280, "height": 900}), url))
            page.locator('[data-fate="rejected"]').nth(1).click()
            page.screenshot(path=ROOT / "assets" / "page-light.png")
            animate(browser, url, ROOT / "assets" / "run.webp")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
