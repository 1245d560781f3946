"""A page whose connections are cut, and one that sleeps, goes on where it was."""

import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
import pytest

from tests.web.conftest import PATIENCE, executable, launch_flags
from tests.web.screen import (
    generate,
    number,
    on_stage,
    recorded,
    run,
    saved,
    wait_for_end,
    wait_for_rounds,
    wait_for_state,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]

LONG = 30_000  # tokens; the tiny pair is busy for minutes


class Proxy:
    """Carries connections to a port. From `begin()` on it cuts all of them every `period` seconds."""

    def __init__(self, port: int, period: float) -> None:
        self.port, self.period = port, period
        self.open: list[socket.socket] = []
        self.cuts = 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self) -> None:
        threading.Thread(target=self._cut, daemon=True).start()

    def close(self) -> None:
        self.period = 0
        self.door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                visitor, _ = self.door.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                self.open += [visitor, server]
                for source, sink in ((visitor, server), (server, visitor)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)

    def _cut(self) -> None:
        while self.period:
            time.sleep(self.period)
            self.open, cut = [], self.open
            self.cuts += 1
            for end in cut:
                with suppress(OSError):
                    # Closing it then sends a reset.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def test_a_proxy_that_cuts_every_stream(browser, endless, capsys):
    proxy = Proxy(urlsplit(endless).port, 3)
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    loads = []
    page.on("load", lambda: loads.append(page.url))
    open_and_begin(page, proxy.address)
    proxy.begin()
    seen = [rounds_of(page)]
    for _ in range(3):
        wait_for_a_cut(proxy)
        wait_for_rounds(page, seen[-1] + 5)  # it goes on
        seen.append(rounds_of(page))
    page.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    assert len(loads) == 1, "the page was not loaded again"
    assert number(page, "finish") == "cancelled" and rounds_of(page) >= seen[-1]
    assert on_stage(page) == recorded(saved(page))
    with capsys.disabled():
        print(f"\nall connections cut {proxy.cuts} times; rounds on the page before and after: {seen}")
    proxy.close()
    page.close()


def test_a_browser_that_sleeps_for_a_minute_comes_back_to_its_run(browser, endless):
    other = browser.browser_type.launch(executable_path=executable(), args=launch_flags())
    page = other.new_page()
    open_and_begin(page, endless, max_new_tokens=2000)
    processes = latest_browser()
    for process in processes:
        process.suspend()
    time.sleep(60)
    for process in processes:
        process.resume()
    page.set_default_timeout(PATIENCE)
    wait_for_state(page, "ended")
    assert number(page, "tokens") == "2,000" and on_stage(page) == recorded(saved(page))
    run(page, seed=4, max_new_tokens=2)  # and goes on
    assert number(page, "tokens") == "2"
    other.close()


def open_and_begin(page, address: str, max_new_tokens: int = LONG) -> None:
    page.goto(address)
    page.locator('.run:not([data-state="empty"])').wait_for()
    generate(page, "Once", max_new_tokens=max_new_tokens, seed=3)
    wait_for_state(page, "running")  # and not "recorded", as the first run on every page
    wait_for_rounds(page)


def wait_for_a_cut(proxy: Proxy) -> None:
    before, deadline = proxy.cuts, time.monotonic() + 60
    while proxy.cuts == before:
        assert time.monotonic() < deadline, "nothing was cut"
        time.sleep(0.1)


def rounds_of(page) -> int:
    return int(number(page, "rounds").replace(",", ""))


def latest_browser() -> list[psutil.Process]:
    """The processes of browsers that were started after the tests' own."""
    ours = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
    roots = [one for one in ours if "--type=" not in " ".join(one.cmdline())]
    last = max(roots, key=lambda one: one.create_time())
    return [last, *last.children(recursive=True)]
