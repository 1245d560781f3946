"""A stand-in for a server that answers what it is given: kept answers, and one stream of events."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.recorded import recorded
from tests.stand_ins.serving import Handler, serving
from tests.stand_ins.vllm import line


@dataclass
class Replayed:
    """answers: by path; /completion is answered by the events."""

    answers: dict[str, Any]
    events: Sequence[dict[str, Any]]
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def serving(self) -> AbstractContextManager[str]:
        """Gives its address."""
        return serving(_handler(self))


def _handler(stand_in: Replayed) -> type[Handler]:
    class Answers(Handler):
        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

        def answer(self, body: Any) -> None:
            stand_in.requests.append((self.path, body))
            if self.path == "/completion":
                content = b"".join(map(line, stand_in.events))
            else:
                content = json.dumps(stand_in.answers.get(self.path, {"error": "not found"})).encode()
            known = self.path in stand_in.answers or self.path == "/completion"
            self.reply(200 if known else 404, {}, content)

    return Answers


def llama(name: str = "draft") -> Replayed:
    """What the real llama.cpp has sent."""
    kept = recorded(name, "llama-cpp")
    answers = {"/v1/models": kept["models"], "/props": kept["props"]}
    answers |= {"/tokenize": {"tokens": kept["request"]["prompt"]}, "/apply-template": {"prompt": "<user>Hi"}}
    return Replayed(answers, kept["events"])
