"""A model hub on this machine, for tests: it lists and sends the files of a directory, as well or as badly as
a test wants."""

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Hub:
    """`own/NAME` is the directory NAME of `folder`.

    before_file: called with each file's path and how to write, before it is sent; it may wait, or write a
    part and raise to break off. sent: the files that were asked for. The hub takes calls and never answers
    while `silent` is set.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[str] = []
        self.before_file: Callable[[Path, Callable[[bytes], object]], None] = lambda file, write: None
        self.go_on = threading.Event()  # ends every silence
        self.silent = False
        self.sizes: dict[str, int] = {}  # that the list tells wrongly, by name

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Gives its address."""
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                self.go_on.set()
                server.shutdown()

    def answer(self, path: str) -> tuple[int, dict[str, str], Path | bytes]:
        path = path.split("?")[0]
        if model := re.fullmatch(r"/api/models/own/([\w-]+)", path):
            files = [
                {"rfilename": file.name, "size": self.sizes.get(file.name, file.stat().st_size)}
                for file in (self.folder / model[1]).iterdir()
            ]
            listed = {"id": f"own/{model[1]}", "sha": "a" * 40, "siblings": files}
            return 200, {}, json.dumps(listed).encode()
        found = re.fullmatch(r"/own/([\w-]+)/resolve/\w+/([\w.-]+)", path)
        file = self.folder.joinpath(*found.groups()) if found else self.folder / "nothing"
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        tag = f'"{file.parent.name}-{file.name}"'
        return 200, {"X-Repo-Commit": "a" * 40, "ETag": tag}, file

    def _handler(hub) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.respond(with_body=False)

            def do_GET(self) -> None:
                self.respond(with_body=True)

            def respond(self, with_body: bool) -> None:
                if hub.silent:
                    hub.go_on.wait()
                    return
                status, headers, body = hub.answer(self.path)
                content = body if isinstance(body, bytes) else body.read_bytes()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if not with_body:
                    return
                if isinstance(body, Path):
                    hub.sent.append(f"{body.parent.name}/{body.name}")
                    try:
                        hub.before_file(body, self.wfile.write)
                    except ConnectionError:
                        self.close_connection = True
                        return
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
