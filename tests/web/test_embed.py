"""The page in another one, under a path prefix, and where a part of it is missing: the reduced page within
one of another origin, who may frame it, what is served, and what is said without a script or a server."""

import re
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from specdemo.ui.page.frame import STATIC, scripts_path
from tests.web.conftest import PATIENCE, RECORDED, address_of, fork, listening, serving
from tests.web.screen import generate, inspector, notice, run, tokens

ASKED = {"prompt": "Once upon a time", "max_new_tokens": 20, "temperature": 0.8, "seed": 7, "gamma": 3}
RUNNING = urlencode({**ASKED, "run": 1, "token": "1.0"})
FOLLOWING = re.compile(r"/specdemo/runs/[0-9a-f]{32}")  # in the address of a run that was asked for
START = "Run the frame's own prompt"
HIDDEN = ("Generate", "Stop", "Examples", "Settings", "Instruments", "Lecture", "Save trace", "Copy link")
PREFIX = "/some/where"


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
    page = listening(desk.new_page())
    page.set_viewport_size({"width": 1000, "height": 700})
    yield page
    page.close()


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
        start = tab.frame_locator("iframe").get_by_role("button", name=START)
        start.wait_for()
        assert asked == []
        start.click()
        tab.frame_locator("iframe").locator('.run[data-state="ended"]').wait_for()
        assert asked and not start.is_visible(), "it starts one"
        frame = tab.frames[1]
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


def test_the_whole_page_of_a_host_is_not_framed_by_another_site(tab, hosted):
    """tests/pure/test_gate_alone.py tests who may frame what."""
    with course(hosted) as site:
        tab.goto(site)
        tab.wait_for_event("console", lambda said: "frame-ancestors" in said.text) if not tab.broken else None
        assert any("frame-ancestors" in said for said in tab.broken)
        assert not tab.frames[1].url.startswith("http"), "Chromium shows its own page in its place"


def test_the_redirect_is_relative_and_keeps_the_query(hosted):
    query = "prompt=%0d%0aSet-Cookie:%20a&seed=1"
    answer = httpx.get(f"{hosted}/embed?{query}")
    assert answer.headers["Location"] == f"./?frame=1&{query}" and "set-cookie" not in answer.headers


@contextmanager
def prefixing(port: int):
    """A reverse proxy that serves the port under a path prefix. Gives its address without the prefix, where a
    page stands that shows the other one in a frame."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                return self.send_frame()
            if not self.path.startswith(f"{PREFIX}/"):
                return self.send_error(404)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {**self.headers, "Accept-Encoding": "identity"}
            connection = HTTPConnection("127.0.0.1", port)
            connection.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            with suppress(OSError, HTTPException):  # one side has left
                while part := answer.read1():
                    self.wfile.write(part)

        do_POST = do_GET

        def send_frame(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            address = f"http://127.0.0.1:{self.server.server_port}{PREFIX}/"
            frame = f'<iframe src="{address}" width="1200" height="900"></iframe>'
            self.wfile.write(f'<link rel="icon" href="data:,">{frame}'.encode())

        def log_message(self, *_) -> None: ...

    class Proxy(ThreadingHTTPServer):
        request_queue_size = 128  # connections that wait; a browser opens more than the usual 5 at once

    with Proxy(("127.0.0.1", 0), Handler) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()


def test_in_a_frame_of_another_site_behind_a_path_prefix(browser):
    with serving(GRADIO_ROOT_PATH=PREFIX) as url, prefixing(urlsplit(url).port) as proxy:
        # Another site for the browser. It has to be a real one: from a made-up page on the internet, a recent
        # Chromium lets no frame reach this machine.
        site = f"{proxy.replace('127.0.0.1', 'localhost')}/"
        page = listening(browser.new_page())
        page.goto(site)
        frame = page.frame_locator("iframe")
        frame.locator('.run:is([data-state="running"], [data-state="recorded"])').wait_for()
        frame.locator(".stage [data-round]").first.wait_for()
        frame.get_by_role("button", name="Settings").click()
        frame.get_by_label("Max new tokens").first.fill("3")
        frame.get_by_role("button", name="Generate").click()
        frame.locator('.run[data-state="ended"]').wait_for()
        assert page.broken == []
        own = (site, f"{proxy}{PREFIX}/", "data:", "blob:")
        assert all(address.startswith(own) for address in page.requested)
        assert any(scripts_path() in address for address in page.requested)
        page.close()


def test_a_script_that_cannot_be_loaded_is_reported_on_the_page(browser, bare):
    page = listening(browser.new_page())
    page.route("**/verdict.js", lambda route: route.abort())
    page.goto(bare)
    assert notice(page, "error").startswith("This page's scripts could not be loaded or started.")
    page.close()


def test_when_the_server_has_gone_the_page_says_so_and_keeps_the_run(browser):
    app = fork()
    page = listening(browser.new_page())
    try:
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


def test_only_the_scripts_are_served(bare):
    address = f"{bare}/{scripts_path()}"
    script = httpx.get(f"{address}/page/main.js")
    assert script.text == (STATIC / "page" / "main.js").read_text(encoding="utf-8")
    assert script.headers["Content-Type"].startswith("text/javascript")
    assert "immutable" in script.headers["Cache-Control"]
    others = ("", "view/stage.css", "page/", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "..%5cpage.py")
    for path in (*others, "//etc/passwd", str(RECORDED), "../other/main.js"):
        assert httpx.get(f"{address}/{path}").status_code == 404, path
