"""The real app in a process of its own, and the system's Chromium to look at it."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from specdemo.pairs import EMBEDDED

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 120_000  # ms; machines that run tests are busy


def start_app(*arguments: str) -> tuple[subprocess.Popen, str]:
    """The app's process and the address of its page, which is there before the models are."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "app.py", "--port", "0", *arguments]
    app = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    said = ""
    for line in app.stderr:
        said += line
        if found := re.search(r"the page is at (http://\S+)", line):
            return app, found[1]
    raise RuntimeError(f"the app ended with status {app.wait()} and said:\n{said}")


@contextmanager
def serving(*arguments: str):
    app, url = start_app(*arguments)
    # Somebody has to go on reading what it says, or it stops when the pipe is full.
    Thread(target=app.stderr.read, daemon=True).start()
    yield url
    app.terminate()
    app.wait(30)


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    """The page over the embedded pair, or where that has not been built over a tiny one."""
    built = (EMBEDDED / "drafter" / "config.json").exists()
    with serving(*([] if built else tiny_pair(tmp_path_factory.mktemp("pair")))) as url:
        yield url


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The page over a tiny pair that never ends its text, for minutes."""
    with serving(*tiny_pair(tmp_path_factory.mktemp("endless"))) as url:
        yield url


def tiny_pair(folder: Path) -> list[str]:
    from tests.tiny import noisy, tiny, tokenizer

    tokens = tokenizer(eos=None)
    target = tiny("llama", vocab_size=len(tokens), max_position_embeddings=32_768)
    for role, model in (("target", target), ("drafter", noisy(target))):
        model.save_pretrained(folder / role)
        tokens.save_pretrained(folder / role)
    return ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]


@pytest.fixture(scope="session")
def browser():
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)} is on the PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """visit(url) opens a fresh page and waits until it can be used. `page.requested` collects the addresses that it asks
    for, `page.broken` what goes wrong in it."""
    contexts = []

    def visit(url: str):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}))  # a visitor of its own
        page = contexts[-1].new_page()
        page.requested, page.broken = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("pageerror", lambda error: page.broken.append(str(error)))
        page.on("console", lambda said: page.broken.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: (page.broken.append(dialog.message), dialog.dismiss()))
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        page.get_by_role("button", name="Generate").wait_for()
        return page

    yield visit
    for context in contexts:
        context.close()


@pytest.fixture
def page(visit, url):
    return visit(url)
