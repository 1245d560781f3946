"""A stand-in for a server that answers what it is given: kept answers, and one stream of events."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.recorded import recorded
from tests.stand_ins.vllm import BreakOff, line


@dataclass
class Replayed:
    """answers: by path; /completion is answered by the events. before: called with an event's number; it may
    raise BreakOff."""

    answers: dict[str, Any]
    events: Sequence[dict[str, Any]]
    before: Callable[[int], None] = lambda number: None
    requests: list[tuple[str, Any]] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Gives its address."""
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()


def _handler(stand_in: Replayed) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

        def answer(self, body: Any) -> None:
            stand_in.requests.append((self.path, body))
            if self.path == "/completion":
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for number, event in enumerate(stand_in.events):
                        stand_in.before(number)
                        self.wfile.write(line(event))
                except OSError:
                    self.close_connection = True
                return
            known = self.path in stand_in.answers
            content = json.dumps(stand_in.answers.get(self.path, {"error": "not found"})).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


def breaks_off_at(number: int) -> Callable[[int], None]:
    def before(at: int) -> None:
        if at == number:
            raise BreakOff

    return before


def llama(name: str = "draft") -> Replayed:
    """What the real llama.cpp has sent."""
    kept = recorded(name, "llama-cpp")
    answers = {"/v1/models": kept["models"], "/props": kept["props"]}
    answers |= {"/tokenize": {"tokens": kept["request"]["prompt"]}, "/apply-template": {"prompt": "<user>Hi"}}
    return Replayed(answers, kept["events"])
