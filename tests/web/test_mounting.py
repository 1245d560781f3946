"""The scripts load wherever the page is mounted, only they are served, and what the page says when they or
its server are not there."""

from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import httpx

from specdemo.ui.page.frame import STATIC, scripts_path
from tests.web.conftest import PATIENCE, RECORDED, address_of, fork, serving
from tests.web.screen import generate, notice, run, tokens

PREFIX = "/some/where"


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
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        requested, broken = [], []
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.on("console", lambda said: broken.append(said.text) if said.type == "error" else None)
        # Another site for the browser. It has to be a real one: from a made-up page on the internet, a recent
        # Chromium lets no frame reach this machine.
        site = f"{proxy.replace('127.0.0.1', 'localhost')}/"
        page.goto(site)
        frame = page.frame_locator("iframe")
        frame.locator('.run:is([data-state="running"], [data-state="recorded"])').wait_for()
        frame.locator(".stage [data-round]").first.wait_for()
        frame.get_by_role("button", name="Settings").click()
        frame.get_by_label("Max new tokens").first.fill("3")
        frame.get_by_role("button", name="Generate").click()
        frame.locator('.run[data-state="ended"]').wait_for()
        assert broken == []
        assert all(address.startswith((site, f"{proxy}{PREFIX}/", "data:", "blob:")) for address in requested)
        assert any(scripts_path() in address for address in requested)
        page.close()


def test_a_script_that_cannot_be_loaded_is_reported_on_the_page(browser, bare):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/verdict.js", lambda route: route.abort())
    page.goto(bare)
    said = "This page's scripts could not be loaded or started. Reload the page"
    assert notice(page, "error").startswith(said)
    page.close()


def test_when_the_server_has_gone_the_page_says_so_and_keeps_the_run(browser):
    app = fork()
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


def test_only_the_scripts_are_served(bare):
    address = f"{bare}/{scripts_path()}"
    for encoding in ("br", "identity", "br"):  # Gradio compresses what it sends
        script = httpx.get(f"{address}/page/main.js", headers={"Accept-Encoding": encoding})
        assert script.text == (STATIC / "page" / "main.js").read_text(encoding="utf-8")
        assert script.headers["Content-Type"].startswith("text/javascript")
        assert "immutable" in script.headers["Cache-Control"]
    others = ("", "view/stage.css", "page/", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "..%5cpage.py")
    for path in (*others, "//etc/passwd", str(RECORDED), "../other/main.js"):
        assert httpx.get(f"{address}/{path}").status_code == 404, path
