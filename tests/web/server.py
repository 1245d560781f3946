"""The app in a process whose log and memory a test can look at."""

import asyncio
import gc
import re
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from specdemo.ui.page.page import Page, build_page
from specdemo.ui.page.serve import launch
from specdemo.ui.runs.limits import Limits
from specdemo.ui.runs.models import Models
from specdemo.ui.runs.queue import RunQueue
from tests.web.conftest import tiny_pair
from tests.web.forked import Forked


def awaited(coroutine: Coroutine) -> Any:
    """In a thread of its own, since the browser's driver has this one's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def controls_of(url: str) -> dict[str, Any]:
    """What the page's controls hold at first, by name."""
    parts = [one["props"] for one in httpx.get(f"{url}/config", timeout=60).json()["components"]]
    named = {str(part.get("elem_id")): part.get("value") for part in parts}
    return {name.removeprefix("set-"): named[name] for name in named if re.match("prompt$|set-", name)}


@dataclass
class Server:
    url: str
    process: Forked
    file: Path

    def log(self) -> str:
        return self.file.read_text(encoding="utf-8", errors="replace")

    def memory(self) -> float:
        """MiB that the process holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def run(self, **arguments) -> str:
        """The stream of one short run by the API; it waits while the server is busy."""
        arguments = {"prompt": "Once", "max_new_tokens": 4} | arguments
        asked = f"{self.url}/gradio_api/call/v2/generate"
        for _ in range(60):
            answer = httpx.post(asked, json=arguments, timeout=120)
            if answer.status_code != 429:
                break
            time.sleep(float(answer.headers["Retry-After"]))
        assert answer.status_code == 200, answer.text
        event = answer.json()["event_id"]
        return httpx.get(f"{self.url}/gradio_api/call/generate/{event}", timeout=120).text


@contextmanager
def served_here(folder: Path, limits: Limits) -> Iterator[tuple[str, Page]]:
    """The page over a tiny pair, in this process, for limits that no server has: its address, and it."""
    arguments = dict(zip(("target", "drafter"), tiny_pair(folder)[1::2], strict=True))
    models, queue = Models(arguments, limits), RunQueue(limits)
    models.get()
    demo = build_page(models, queue, limits)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with patch.object(gc, "freeze"):  # what this process holds now is to be freed later
        url = launch(demo, queue, "127.0.0.1", port, limits)
    try:
        yield url, demo
    finally:
        demo.close(verbose=False)
        queue.close()


@contextmanager
def watched(folder: Path, *arguments: str, change: Callable[[], None] | None = None) -> Iterator[Server]:
    """change: see Forked."""
    file = folder / "log.txt"
    file.touch()
    app = Forked(arguments, str(file), {}, change)
    try:
        while not (found := re.search(r"the page is at (http://\S+)[\s\S]* is ready on", file.read_text())):
            assert app.poll() is None, file.read_text()
            time.sleep(0.2)
        yield Server(found[1], app, file)
    finally:
        app.terminate()
        app.wait(60)
