"""The reduced page within one of another origin: what it shows, who may frame it, its use by keyboard."""

import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from tests.web.conftest import PATIENCE
from tests.web.screen import inspector

ASKED = {"prompt": "Once upon a time", "max_new_tokens": 20, "temperature": 0.8, "seed": 7, "gamma": 3}
RUNNING = urlencode({**ASKED, "run": 1, "token": "1.0"})
FOLLOWING = re.compile(r"/specdemo/runs/[0-9a-f]{32}")  # in the address of a run that was asked for
START = "Run the frame's own prompt"
HIDDEN = ("Generate", "Stop", "Examples", "Settings", "Instruments", "Lecture", "Save trace", "Copy link")


@contextmanager
def course(framed: str):
    """A course's page that has the other address in a frame; gives its own."""
    frame = f'<iframe src="{framed}" width="900" height="620"></iframe>'
    html = f'<!DOCTYPE html><link rel="icon" href="data:,">{frame}'

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"  # another site than the framed one
        server.shutdown()


@pytest.fixture
def tab(desk):
    page = desk.new_page()
    page.set_viewport_size({"width": 1000, "height": 700})
    page.set_default_timeout(PATIENCE)
    page.broken = []
    page.on("pageerror", lambda error: page.broken.append(str(error)))
    page.on("console", lambda said: page.broken.append(said.text) if said.type == "error" else None)
    yield page
    page.close()


def ended(page):
    """The frame in the page, when the run that its address asks for was started and has ended."""
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name=START).click()
    frame.locator('.run[data-state="ended"]').wait_for()
    assert not frame.get_by_role("button", name=START).is_visible(), "it starts one"
    return page.frames[1]


def tab_to(page, frame, selector: str) -> list[str]:
    """Presses Tab until such an element has the focus; the names of what had it."""
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        active = frame.evaluate_handle("document.activeElement")
        names.append(active.evaluate("e => e.ariaLabel ?? e.textContent.trim()"))
        if active.evaluate("(e, selector) => e.matches(selector)", selector):
            return names
    raise AssertionError(f"Tab does not lead to {selector}: {names}")


def test_a_hosted_page_in_a_page_of_another_origin(tab, hosted):
    """What it shows, that nothing runs before its button is pressed, and its use by keyboard."""
    asked = []
    tab.on("request", lambda request: asked.append(request.url) if FOLLOWING.search(request.url) else None)
    with course(f"{hosted}/embed?{RUNNING}") as site:
        tab.goto(site)
        tab.frame_locator("iframe").get_by_role("button", name=START).wait_for()
        assert asked == []
        frame = ended(tab)
        assert asked
        assert urlsplit(frame.url).path == "/" and parse_qs(urlsplit(frame.url).query)["frame"] == ["1"]
        for name in HIDDEN:
            assert not frame.get_by_role("button", name=name, exact=True).is_visible(), name
        assert not frame.get_by_label("Prompt", exact=True).is_visible() and frame.locator("h1").is_hidden()
        for seen in ("stage", "legend", "inspector", "replay", "verdict"):
            assert frame.get_by_test_id(seen).is_visible(), seen
        inspector(frame).get_by_text("round 2, ").wait_for()  # the pinned token
        # Nothing is cut off, and the player is seen without scrolling.
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
        place = frame.locator(".replay").evaluate("e => e.getBoundingClientRect().bottom - innerHeight")
        assert place <= 0

        tab_to(tab, frame, ".stage [data-token], .stage")
        for key in ("Escape", "Home", "End", "Enter"):
            tab.keyboard.press(key)
        frame.wait_for_function("/token=(?!1[.]0)/.test(location.search)")
        asked.clear()
        tab.keyboard.press("Control+Enter")  # asks for a run on the whole page
        reached = tab_to(tab, frame, ".way-out")
        assert "Replay" in reached and "One round back" in reached and not {*HIDDEN} & {*reached}
        with tab.context.expect_page() as opened:
            tab.keyboard.press("Enter")
        whole = opened.value
        whole.set_default_timeout(PATIENCE)
        token = parse_qs(frame.evaluate("location.search.slice(1)"))["token"]
        whole.get_by_role("button", name="Generate").wait_for()
        query = parse_qs(urlsplit(whole.url).query)
        assert "frame" not in query and query["token"] == token and query["prompt"] == [ASKED["prompt"]]
        assert asked == [] and frame.locator(".run").get_attribute("data-state") == "ended"
        whole.close()
        assert tab.broken == []


def test_without_a_run_it_shows_the_recorded_one_and_begins_no_game(tab, hosted):
    """Whose words a click would send."""
    with course(f"{hosted}/embed?prompt=Once&guess=1") as site:
        tab.goto(site)
        frame = tab.frame_locator("iframe")
        frame.locator('.run:is([data-state="running"], [data-state="recorded"])').wait_for()
        frame.get_by_role("button", name="Skip").click()
        frame.locator('.run[data-state="recorded"]').wait_for()
        assert frame.get_by_test_id("stage").is_visible() and not frame.get_by_test_id("guess").is_visible()
        assert frame.get_by_role("link", name="Open the page").is_visible()


def test_the_whole_page_of_a_host_is_not_framed_by_another_site(tab, hosted):
    """tests/pure/test_gate_checks.py tests who may frame what."""
    with course(hosted) as site:
        tab.goto(site)
        tab.wait_for_event("console", lambda said: "frame-ancestors" in said.text) if not tab.broken else None
        assert any("frame-ancestors" in said for said in tab.broken)
        assert not tab.frames[1].url.startswith("http"), "Chromium shows its own page in its place"


def test_the_redirect_is_relative_and_keeps_the_query(hosted):
    for query in ("", "prompt=%0d%0aSet-Cookie:%20a&seed=1", "prompt=%C3%A4%00&%2F%2Fevil.example"):
        answer = httpx.get(f"{hosted}/embed?{query}")
        assert answer.headers["Location"] == f"./?frame=1&{query}" and "set-cookie" not in answer.headers
    assert httpx.post(f"{hosted}/embed").status_code == 405
