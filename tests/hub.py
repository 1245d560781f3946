"""A model hub on this machine, for tests: it lists and sends the files of a directory, as well or as badly as
a test wants."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

from tests.stand_ins.serving import Handler, serving


class Hub:
    """`own/NAME` is the directory NAME of `folder`; its revision REV is NAME-REV, where there is one.

    before_file: called with each file's path and how to write, before it is sent; it may wait, or write a
    part and raise to break off. sent: the files that were asked for. The hub takes calls and never answers
    while `silent` is set. refused: the status and the word for the reason that it answers with, by the names
    of models that it gives to nobody (NAME/resolve: by their files' calls only). asks: headers that come with
    these answers. shown: the tokens that came with calls for these.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[str] = []
        self.before_file: Callable[[Path, Callable[[bytes], object]], None] = lambda file, write: None
        self.go_on = threading.Event()  # ends every silence
        self.silent = False
        self.sizes: dict[str, int] = {}  # that the list tells wrongly, by name
        self.refused: dict[str, tuple[int, str]] = {}
        self.asks: dict[str, str] = {}
        self.shown: set[str | None] = set()

    @contextmanager
    def used(self, patch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
        """Serves for the library, with this folder for its cache. It reads its settings once, on import."""
        with serving(self._handler()) as endpoint:
            template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            patch.setattr(constants, "HF_HUB_CACHE", str(cache))
            patch.setattr(constants, "ENDPOINT", endpoint)
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            try:
                yield
            finally:
                self.go_on.set()

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], Path | bytes]:
        path = path.split("?")[0]
        if reasons := [reason for name, reason in self.refused.items() if f"own/{name}" in path]:
            self.shown.add(token)
            why = {"X-Error-Code": reasons[0][1], "X-Error-Message": f"not with {token}"}
            return reasons[0][0], why | self.asks, b""
        if model := re.fullmatch(r"/api/models/own/([\w-]+)(?:/revision/([^/]+))?", path):
            folder, commit = self._revision(model[1], model[2] or "main")
            if folder is None:
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            files = [
                {"rfilename": file.name, "size": self.sizes.get(file.name, file.stat().st_size)}
                for file in folder.iterdir()
            ]
            listed = {"id": f"own/{model[1]}", "sha": commit, "siblings": files}
            return 200, {}, json.dumps(listed).encode()
        found = re.fullmatch(r"/own/([\w-]+)/resolve/([^/]+)/([\w.-]+)", path)
        folder, commit = self._revision(found[1], found[2]) if found else (self.folder / "nothing", "")
        if folder is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if not found or not (file := folder / found[3]).is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        tag = f'"{file.parent.name}-{file.name}"'
        return 200, {"X-Repo-Commit": commit, "ETag": tag}, file

    def _revision(self, name: str, revision: str) -> tuple[Path | None, str]:
        """Its directory and its commit."""
        if revision in ("main", "a" * 40):
            return self.folder / name, "a" * 40
        folder = self.folder / f"{name}-{unquote(revision).replace('/', '-')}"
        return (folder, "b" * 40) if folder.is_dir() else (None, "")

    def _handler(hub) -> type[Handler]:
        class Answers(Handler):
            def do_HEAD(self) -> None:
                self.respond(with_body=False)

            def do_GET(self) -> None:
                self.respond(with_body=True)

            def respond(self, with_body: bool) -> None:
                if hub.silent:
                    hub.go_on.wait()
                    return
                status, headers, body = hub.answer(self.path, self.headers.get("Authorization"))
                content = body if isinstance(body, bytes) else body.read_bytes()
                self.reply(status, headers, content, with_body=False)
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

        return Answers
